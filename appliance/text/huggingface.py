"""Builds a tokenizer from a Hugging Face folder: tokenizer.json, completed by tokenizer_config.json."""

from pathlib import Path
from typing import Any

import msgspec
from tokenizers import AddedToken, Tokenizer

from appliance.base.texts import NotUtf8Error, utf8_text, without_mark
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.lfs import refuse_pointer
from appliance.text.errors import TokenizerError

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


_FILES = ("tokenizer.json", "tekken.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


def files(folder: Path) -> list[Path]:
    """Returns the paths of all files that determine a folder's tokenizer; some may not exist."""
    return [*(folder / name for name in _FILES), *sorted((folder / "additional_chat_templates").glob("*.jinja"))]


def build_tokenizer(folder: Path) -> Tokenizer:
    """Builds the tokenizer. Only its post-processor decides about BOS and EOS, as in transformers: add_bos_token of the
    config is not read.

    Raises TokenizerError when tokenizer.json is missing or broken.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise TokenizerError(
            f"{folder.name} has no tokenizer.json",
            hint="save it with transformers' AutoTokenizer(...).save_pretrained and point model.tokenizer there",
        )
    data = path.read_bytes()
    try:
        refuse_pointer(path.name, data)
        tokenizer = Tokenizer.from_buffer(without_mark(data, path.name))
    except (CheckpointError, NotUtf8Error) as error:
        raise TokenizerError(str(error), hint=error.hint) from error
    except Exception as error:  # the library raises nothing finer
        raise TokenizerError(f"{path.name} cannot be read: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    config = _read(folder / "tokenizer_config.json")
    _add_listed_tokens(tokenizer, config)
    return tokenizer


def special_tokens(folder: Path) -> dict[str, str]:
    """Returns the text of the named special tokens, which chat templates may use."""
    config = {**_read(folder / "special_tokens_map.json"), **_read(folder / "tokenizer_config.json")}
    found = {name: _content(config.get(name)) for name in _NAMED}
    return {name: content for name, content in found.items() if content is not None}


def chat_templates(folder: Path) -> dict[str, str]:
    """Returns the chat templates by name; the unnamed one is "default". Files override tokenizer_config.json, as in
    transformers."""
    stored = _read(folder / "tokenizer_config.json").get("chat_template")
    found: dict[str, str] = {}
    if isinstance(stored, str):
        found["default"] = stored
    elif isinstance(stored, list):
        found |= {str(each.get("name")): str(each.get("template")) for each in stored if isinstance(each, dict)}
    if (single := folder / "chat_template.jinja").is_file():
        found["default"] = _template(single)
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        found[path.stem] = _template(path)
    return found


def _template(path: Path) -> str:
    try:
        return utf8_text(path.read_bytes(), path.name).replace("\r\n", "\n")
    except NotUtf8Error as error:
        raise TokenizerError(str(error), hint=error.hint) from error


def _add_listed_tokens(tokenizer: Tokenizer, config: dict[str, Any]) -> None:
    """Adds tokens that are only in tokenizer_config.json, in the order of their ids."""
    listed = config.get("added_tokens_decoder")
    if not isinstance(listed, dict):
        return
    wrong = [token_id for token_id in listed if not token_id.isdecimal()]
    if wrong:
        raise TokenizerError(
            f"tokenizer_config.json: added_tokens_decoder names the id {wrong[0]!r}, which is no number"
        )
    for token_id, entry in sorted(listed.items(), key=lambda item: int(item[0])):
        content = _content(entry)
        if content and tokenizer.token_to_id(content) is None and int(token_id) == tokenizer.get_vocab_size():
            is_special = isinstance(entry, dict) and entry.get("special") is True
            tokenizer.add_tokens([AddedToken(content, special=is_special, normalized=False)])


def _content(entry: Any) -> str | None:
    if isinstance(entry, dict):
        entry = entry.get("content")
    return entry if isinstance(entry, str) else None


def _read(path: Path) -> dict[str, Any]:
    """Reads a JSON object; an empty dict if there is no file. Raises TokenizerError if it is not a JSON object."""
    if not path.is_file():
        return {}
    try:
        value = msgspec.json.decode(without_mark(path.read_bytes(), path.name))
    except NotUtf8Error as error:
        raise TokenizerError(str(error), hint=error.hint) from error
    except msgspec.DecodeError as error:
        raise TokenizerError(f"{path.name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{path.name} is not a JSON object")
    return value
