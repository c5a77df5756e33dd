"""Reads a GGUF file's tokenizer metadata. The keys are those of ggml's docs/gguf.md."""

from collections.abc import Sequence
from typing import Any

from appliance.checkpoint.gguf import GgufFile, plain
from appliance.text.errors import TokenizerError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # token types

# llama.cpp's defaults for files without these keys, by kind of tokenizer.
_USUAL_IDS = {
    "llama": {"bos": 1, "eos": 2, "unknown": 0},
    "bert": {"cls": 101, "seperator": 102, "unknown": 100, "padding": 0, "mask": 103},
}
_NAMED = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "pad_token": "padding",
    "cls_token": "cls",
    "sep_token": "seperator",  # as ggml spells it
    "mask_token": "mask",
}


def kind(file: GgufFile) -> str:
    """Returns the kind of tokenizer: "gpt2" for byte-level BPE, "llama" for SentencePiece BPE, and so on."""
    return str(value(file, "model"))


def value(file: GgufFile, key: str, default: Any = None) -> Any:
    """Returns the value of `tokenizer.ggml.KEY`, or the default."""
    return file.metadata.get(f"tokenizer.ggml.{key}", default)


def listed(file: GgufFile, key: str) -> list[Any]:
    """Returns the list under `tokenizer.ggml.KEY`; an empty one if there is none."""
    found = value(file, key)
    found = plain(found) if found is not None else []
    return found if isinstance(found, list) else []


def tokens(file: GgufFile) -> list[str]:
    """Returns the vocabulary in the order of its ids. Raises TokenizerError if there is none."""
    found = listed(file, "tokens")
    if not found:
        hint = "give model.tokenizer a folder with tokenizer.json"
        raise TokenizerError("this GGUF file holds no tokenizer", hint=hint)
    return found


def special_tokens(file: GgufFile) -> dict[str, str]:
    """Returns the special tokens by the names that chat templates use (bos_token, eos_token ...)."""
    vocabulary = file.metadata.get("tokenizer.ggml.tokens")
    usual = _USUAL_IDS.get(kind(file), {})
    found: dict[str, str] = {}
    for name, key in _NAMED.items():
        token_id = value(file, f"{key}_token_id", usual.get(key))
        if isinstance(token_id, int) and isinstance(vocabulary, Sequence) and 0 <= token_id < len(vocabulary):
            found[name] = vocabulary[token_id]
    return found


def chat_templates(file: GgufFile) -> dict[str, str]:
    """Returns the chat templates by name; the unnamed one is "default"."""
    prefix = "tokenizer.chat_template"
    found = {key: text for key, text in file.metadata.items() if key.startswith(prefix) and isinstance(text, str)}
    return {key.removeprefix(prefix).removeprefix(".") or "default": text for key, text in found.items()}
