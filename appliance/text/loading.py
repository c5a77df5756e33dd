"""Finds the tokenizer of a checkpoint."""

from dataclasses import replace
from pathlib import Path

from appliance.catalog.tokenizer_modes import MISTRAL_COMMON, TokenizerMode
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.gguf import open_gguf
from appliance.text import gguf, gguf_fields, huggingface, tekken
from appliance.text.errors import TokenizerError
from appliance.text.kept import Loaded, kept_tokenizer
from appliance.text.mistral import load_mistral
from appliance.text.own_tokenizer import load_own
from appliance.text.slow_tokenizer import load_slow
from appliance.text.tokenizer import Tokenizer, TokenizerIdentity


def load_tokenizer(path: Path, cache: Path | None = None) -> Tokenizer:
    """Loads from a folder with tokenizer.json or tekken.json, a tokenizer.json, or a .gguf file.

    cache: keeps a form that loads fast.

    Raises TokenizerError when there is no tokenizer or it cannot be read.
    """
    if path.suffix == ".gguf":
        return Tokenizer(*kept_tokenizer([path], cache, lambda: _from_gguf(path)))
    folder = path if path.is_dir() else path.parent
    return Tokenizer(*kept_tokenizer(huggingface.files(folder), cache, lambda: _from_folder(folder)))


def load_other(path: Path, mode: TokenizerMode, qualname: str | None, cache: Path | None = None) -> Tokenizer:
    """Loads a tokenizer of another mode than auto. qualname: of the operator's class, in the mode custom.

    The names of special tokens and the chat templates are those of the folder's configuration, but for mistral-common.
    Raises PluginError, MissingExtraError or TokenizerError.
    """
    if mode == MISTRAL_COMMON:
        return load_mistral(path, cache)
    folder = path if path.is_dir() else path.parent
    identity = TokenizerIdentity(huggingface.special_tokens(folder), huggingface.chat_templates(folder))
    if mode == "slow":
        return Tokenizer(load_slow(folder), identity)
    assert qualname is not None, "a rule of the spec"
    return Tokenizer(load_own(qualname, folder), identity)


def _from_folder(folder: Path) -> Loaded:
    identity = TokenizerIdentity(huggingface.special_tokens(folder), huggingface.chat_templates(folder))
    if (folder / tekken.FILE_NAME).is_file() and not (folder / "tokenizer.json").is_file():
        named = {**tekken.SPECIAL_TOKENS, **identity.special_tokens}
        return tekken.build_tokenizer(folder / tekken.FILE_NAME), replace(identity, special_tokens=named)
    return huggingface.build_tokenizer(folder), identity


def _from_gguf(path: Path) -> Loaded:
    try:
        with open_gguf(path) as file:
            identity = TokenizerIdentity(gguf_fields.special_tokens(file), gguf_fields.chat_templates(file))
            return gguf.build_tokenizer(file), identity
    except CheckpointError as error:
        raise TokenizerError(str(error)) from error
