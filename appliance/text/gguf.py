"""A tokenizer from GGUF metadata: byte-level BPE ("gpt2") and SentencePiece BPE with byte fallback ("llama").

The keys are those of ggml's docs/gguf.md. Token types: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused,
6 byte. Control tokens are special; control and user-defined tokens are matched whole in text.
"""

from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from appliance.checkpoint.gguf import GgufFile, plain
from appliance.text.byte_alphabet import spelled_bytes
from appliance.text.errors import TokenizerError
from appliance.text.pre_tokenizers import SPLITTINGS

_CONTROL, _USER_DEFINED, _BYTE = 3, 4, 6
_SPACE = "\u2581"
_GEMMA = ("gemma", "gemma2", "gemma3")  # merges follow the order of tokens; no prefix space
_PREPENDING = ("phi3",)  # the prefix space is put before every text, also one that starts with a space


def build_tokenizer(file: GgufFile) -> Tokenizer:
    """Raises TokenizerError for a vocabulary kind or a pre-tokenizer that is not known here."""
    kind = _value(file, "model")
    if kind == "gpt2":
        tokenizer = _byte_level(file)
    elif kind == "llama":
        tokenizer = _sentencepiece(file)
    else:
        raise TokenizerError(
            f"the tokenizer kind {kind!r} of this GGUF file is not in this version",
            hint="known kinds are gpt2 (byte-level BPE) and llama (SentencePiece BPE)",
        )
    _add_tokens(file, tokenizer, byte_level=kind == "gpt2")
    _add_bos_and_eos(file, tokenizer, default_bos=kind == "llama")
    return tokenizer


def special_tokens(file: GgufFile) -> dict[str, str]:
    """The tokens that chat templates call bos_token, eos_token, unk_token and pad_token."""
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    found: dict[str, str] = {}
    for name, key in names.items():
        token_id = _value(file, f"{key}_token_id")
        if isinstance(token_id, int) and isinstance(tokens, Sequence) and 0 <= token_id < len(tokens):
            found[name] = tokens[token_id]
    return found


def chat_templates(file: GgufFile) -> dict[str, str]:
    """By name; the unnamed one is "default"."""
    prefix = "tokenizer.chat_template"
    found = {key: value for key, value in file.metadata.items() if key.startswith(prefix) and isinstance(value, str)}
    return {key.removeprefix(prefix).removeprefix(".") or "default": value for key, value in found.items()}


def _byte_level(file: GgufFile) -> Tokenizer:
    name = _value(file, "pre") or "default"
    if name not in SPLITTINGS:
        raise TokenizerError(
            f"the pre-tokenizer {name!r} of this GGUF file is not in this version",
            hint=f"known ones: {', '.join(sorted(SPLITTINGS))}; or give model.tokenizer a folder with tokenizer.json",
        )
    vocabulary = {token: token_id for token_id, token in enumerate(_tokens(file))}
    merges = [_pair(merge) for merge in _list(file, "merges")]
    # Llama 3 vocabularies take a word that is itself a token before they look at merges.
    whole_words = name in ("llama-bpe", "llama-v3", "llama3", "tekken", "pixtral", "gpt-4o", "llama4")
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=whole_words))
    splitting = SPLITTINGS[name]
    if splitting.compose:
        tokenizer.normalizer = splitting.normalizer()
    tokenizer.pre_tokenizer = splitting.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(file: GgufFile) -> Tokenizer:
    architecture = str(file.metadata.get("general.architecture", ""))
    is_gemma = architecture in _GEMMA
    tokens = [_respelled(token) if is_gemma else token for token in _tokens(file)]
    scores = [float(-place) for place in range(len(tokens))] if is_gemma else _list(file, "scores")
    if len(scores) != len(tokens):
        raise TokenizerError(f"this GGUF file has {len(tokens)} tokens but {len(scores)} scores")
    merges = [_pair(merge) for merge in _list(file, "merges")] or derived_merges(tokens, scores)
    unknown = _value(file, "unknown_token_id")
    model = models.BPE(
        {token: token_id for token_id, token in enumerate(tokens)},
        merges,
        unk_token=tokens[unknown] if isinstance(unknown, int) and 0 <= unknown < len(tokens) else None,
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    prefix = False if is_gemma else bool(_value(file, "add_space_prefix", True))
    _set_spaces(tokenizer, prefix=prefix, prepend=architecture in _PREPENDING)
    return tokenizer


def _set_spaces(tokenizer: Tokenizer, *, prefix: bool, prepend: bool) -> None:
    steps: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if not prefix:
        tokenizer.normalizer = normalizers.Replace(" ", _SPACE)
    elif prepend:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), normalizers.Replace(" ", _SPACE)])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme="first", split=False)
    if prefix:
        steps.append(decoders.Strip(content=" ", left=1))
    tokenizer.decoder = decoders.Sequence(steps)


def derived_merges(tokens: Sequence[str], scores: Sequence[float]) -> list[tuple[str, str]]:
    """The merges that a scored vocabulary implies: every cut of a token into two tokens, best score first."""
    ids = {token: token_id for token_id, token in enumerate(tokens)}
    found: list[tuple[float, int, int, int, int]] = []
    for token, score in zip(tokens, scores, strict=True):
        for cut in range(1, len(token)):
            left = ids.get(token[:cut])
            if left is not None and (right := ids.get(token[cut:])) is not None:
                found.append((-score, -cut, cut - len(token), left, right))
    found.sort()
    return [(tokens[left], tokens[right]) for *_, left, right in found]


def _add_tokens(file: GgufFile, tokenizer: Tokenizer, *, byte_level: bool) -> None:
    tokens, kinds = _tokens(file), _list(file, "token_type")
    added: list[AddedToken] = []
    for token, kind in zip(tokens, kinds, strict=False):
        # A byte-level token outside the alphabet that is marked control is a mislabel that would grow the vocabulary.
        if kind == _CONTROL and byte_level and spelled_bytes(token) is None and tokenizer.token_to_id(token) is None:
            continue
        if kind in (_CONTROL, _USER_DEFINED) and token:
            spelled = token if byte_level else _respelled(token)
            added.append(AddedToken(spelled, normalized=False, special=kind == _CONTROL))
    tokenizer.add_tokens(added)


def _add_bos_and_eos(file: GgufFile, tokenizer: Tokenizer, *, default_bos: bool) -> None:
    names = special_tokens(file)
    bos = names.get("bos_token") if _value(file, "add_bos_token", default_bos) else None
    eos = names.get("eos_token") if _value(file, "add_eos_token", False) else None
    _set_bos_and_eos(tokenizer, bos, eos)


def _set_bos_and_eos(tokenizer: Tokenizer, bos: str | None, eos: str | None) -> None:
    """Tokens that `add_special_tokens` puts before and after a text; None puts none."""
    ends = [token for token in (bos, eos) if token is not None]
    single = " ".join([*([f"{bos}:0"] if bos else []), "$A:0", *([f"{eos}:0"] if eos else [])])
    ids = [(token, tokenizer.token_to_id(token)) for token in dict.fromkeys(ends)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single,
        pair=f"{single} $B:1",
        special_tokens=[(token, found) for token, found in ids if found is not None],
    )


def _respelled(token: str) -> str:
    """Gemma files hold runs of spaces as spaces; the normalizer turns them into the metaspace before they are met."""
    return _SPACE * len(token) if token and not token.strip(" ") else token


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _value(file: GgufFile, key: str, default: Any = None) -> Any:
    return file.metadata.get(f"tokenizer.ggml.{key}", default)


def _list(file: GgufFile, key: str) -> list[Any]:
    value = _value(file, key)
    found = plain(value) if value is not None else []
    return found if isinstance(found, list) else []


def _tokens(file: GgufFile) -> list[str]:
    tokens = _list(file, "tokens")
    if not tokens:
        hint = "give model.tokenizer a folder with tokenizer.json"
        raise TokenizerError("this GGUF file holds no tokenizer", hint=hint)
    return tokens
