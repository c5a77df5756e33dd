"""Keeps byte-pair tokenizers on disk in a form that loads in half the time of tokenizer.json.

Most of a tokenizer is its vocabulary and its merges: long lists of short strings. They are kept joined, and passed to
the library as lists; the rest is a small tokenizer.json. A tokenizer is kept only if it loads back equal.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import tokenizers
from tokenizers import AddedToken, models
from tokenizers import Tokenizer as Backend

from appliance.base.hashing import sha256_json
from appliance.base.log import fields, logger
from appliance.text.tokenizer import TokenizerIdentity

VERSION = 3  # increased when a conversion or the stored form changes
_JOINT = "\0"
_DIGEST_BYTES = 32
_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_OPTIONS = ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")
_FLAGS = ("fuse_unk", "byte_fallback", "ignore_merges")

_log = logger("text")


class _Added(msgspec.Struct, frozen=True):
    content: str
    single_word: bool
    lstrip: bool
    rstrip: bool
    normalized: bool
    special: bool


class _Kept(msgspec.Struct, frozen=True):
    special_tokens: dict[str, str]
    chat_templates: dict[str, str]
    skeleton: str  # tokenizer.json without tokens
    options: dict[str, Any]  # the model's options
    tokens: str  # joined in the order of their ids
    lefts: str  # the joined left sides of the merges
    rights: str
    added: tuple[_Added, ...]


Loaded = tuple[Backend, TokenizerIdentity]


def kept_tokenizer(files: Sequence[Path], cache: Path | None, load: Callable[[], Loaded]) -> Loaded:
    """Returns what `load` makes of `files`, from `cache` if it is kept there for files of the same size and mtime.

    A broken cache file is replaced, and a cache that cannot be written is not used; both are logged.
    """
    if cache is None:
        return load()
    path = cache / "tokenizers" / f"{_key(files)}.msgpack"
    found = _read(path)
    if found is not None:
        return found
    backend, identity = load()
    kept = _taken_apart(backend, identity)
    if kept is not None and _built(kept).to_str() == backend.to_str():
        _write(path, kept)
    return backend, identity


def _key(files: Sequence[Path]) -> str:
    seen: list[Any] = [VERSION, tokenizers.__version__]
    for file in files:
        status = file.stat() if file.exists() else None
        seen.append([str(file.resolve()), *((status.st_ino, status.st_size, status.st_mtime_ns) if status else ())])
    return sha256_json(seen)[:32]


def _read(path: Path) -> Loaded | None:
    try:
        data = path.read_bytes()
        if hashlib.sha256(data[_DIGEST_BYTES:]).digest() != data[:_DIGEST_BYTES]:
            raise msgspec.DecodeError("its bytes are damaged")
        kept = msgspec.msgpack.decode(data[_DIGEST_BYTES:], type=_Kept)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        _log.warning("a kept tokenizer is broken and is made anew", extra=fields(path=str(path), reason=str(error)))
        return None
    return _built(kept), TokenizerIdentity(kept.special_tokens, kept.chat_templates)


def _write(path: Path, kept: _Kept) -> None:
    """Writes a temporary file and renames it, so that a reader never sees half a file."""
    data = msgspec.msgpack.encode(kept)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
        with os.fdopen(descriptor, "wb") as file:
            file.write(hashlib.sha256(data).digest() + data)
        Path(temporary).replace(path)
    except OSError as error:
        _log.warning("a tokenizer cannot be kept", extra=fields(path=str(path), reason=str(error)))


def _taken_apart(backend: Backend, identity: TokenizerIdentity) -> _Kept | None:
    """Returns the stored form; None for a tokenizer of another kind, or with tokens that cannot be joined."""
    state: dict[str, Any] = json.loads(backend.to_str())
    model = state["model"]
    if model["type"] != "BPE":
        return None
    vocabulary: dict[str, int] = model["vocab"]
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    if [vocabulary[token] for token in tokens] != list(range(len(tokens))) or any(_JOINT in token for token in tokens):
        return None
    added = [msgspec.convert(each, _Added) for each in state["added_tokens"]]
    merges: list[list[str]] = model["merges"]
    bare = {**state, "added_tokens": [], "model": {**model, "vocab": {}, "merges": [], "unk_token": None}}
    return _Kept(
        special_tokens=dict(identity.special_tokens),
        chat_templates=dict(identity.chat_templates),
        skeleton=json.dumps(bare),
        options={name: model[name] for name in _OPTIONS if model[name] is not None} | {n: model[n] for n in _FLAGS},
        tokens=_JOINT.join(tokens),
        lefts=_JOINT.join(left for left, _ in merges),
        rights=_JOINT.join(right for _, right in merges),
        added=tuple(added),
    )


def _built(kept: _Kept) -> Backend:
    tokens = kept.tokens.split(_JOINT)
    merges = list(zip(kept.lefts.split(_JOINT), kept.rights.split(_JOINT), strict=True)) if kept.lefts else []
    backend = Backend(models.BPE(dict(zip(tokens, range(len(tokens)), strict=True)), merges, **kept.options))
    skeleton = Backend.from_str(kept.skeleton)
    for name in _PARTS:
        part = getattr(skeleton, name)
        if part is not None:
            setattr(backend, name, part)
    backend.add_tokens([AddedToken(**msgspec.structs.asdict(each)) for each in kept.added])
    return backend
