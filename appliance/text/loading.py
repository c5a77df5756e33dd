"""Finds the tokenizer of a checkpoint; keeps converted ones in a cache of tokenizer.json files."""

import os
import tempfile
from pathlib import Path

from tokenizers import Tokenizer as Backend

from appliance.base.hashing import sha256_hex
from appliance.base.log import fields, logger
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.gguf import GgufFile, open_gguf
from appliance.text import gguf, huggingface
from appliance.text.errors import TokenizerError
from appliance.text.tokenizer import Tokenizer, TokenizerIdentity

CONVERSION = 1  # part of the cache key: raise it when text.gguf converts otherwise

_log = logger("text")


def load_tokenizer(path: Path, cache: Path | None = None) -> Tokenizer:
    """From a folder with tokenizer.json, a tokenizer.json, or a .gguf file.

    A GGUF tokenizer is converted once and kept under `cache`, named by the digest of the file's header. Raises
    TokenizerError when there is no tokenizer or it cannot be read.
    """
    if path.suffix == ".gguf":
        return _from_gguf(path, cache)
    folder = path if path.is_dir() else path.parent
    identity = TokenizerIdentity(huggingface.special_tokens(folder), huggingface.chat_templates(folder))
    return Tokenizer(huggingface.build_tokenizer(folder), identity)


def _from_gguf(path: Path, cache: Path | None) -> Tokenizer:
    try:
        with open_gguf(path) as file:
            if cache is None:
                return Tokenizer(gguf.build_tokenizer(file), _identity(file))
            with file.header as header:
                digest = sha256_hex(bytes(header))
            kept = cache / "tokenizers" / f"{digest[:32]}-{CONVERSION}.json"
            backend = _read_cached(kept)
            if backend is None:
                backend = gguf.build_tokenizer(file)
                _keep(kept, backend)
            return Tokenizer(backend, _identity(file))
    except CheckpointError as error:
        raise TokenizerError(str(error)) from error


def _identity(file: GgufFile) -> TokenizerIdentity:
    return TokenizerIdentity(gguf.special_tokens(file), gguf.chat_templates(file))


def _read_cached(path: Path) -> Backend | None:
    if not path.is_file():
        return None
    try:
        return Backend.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception; a broken cache is made anew
        _log.warning("a cached tokenizer is broken and is made anew", extra=fields(path=str(path), reason=str(error)))
        return None


def _keep(path: Path, backend: Backend) -> None:
    """Writes beside and renames, so that a reader never meets half a file. A cache that cannot be written is logged."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(backend.to_str())
        Path(temporary).replace(path)
    except OSError as error:
        _log.warning("a converted tokenizer cannot be kept", extra=fields(path=str(path), reason=str(error)))
