"""The index of a checkpoint that was written by rank (`appliance shard`).

Such a folder has, beside the files of the checkpoint that are no weights, the weights of each rank as kernel sets take
them, in files of safetensors under vLLM's names, and the index: what it was written from, for which ranks, and what
each of them has. It is written last, so a folder without it is none.
"""

import re
from pathlib import Path
from typing import Final

import msgspec

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import CheckpointFormat, ShardFacts, TensorFacts
from appliance.checkpoint.lfs import refuse_pointer
from appliance.checkpoint.safetensors import MAX_DIMENSIONS, is_size

FORM: Final = "sharded_state"
INDEX: Final = "sharded_state.json"
VERSION: Final = 1
PATTERN: Final = "model-rank-*-part-*.safetensors"
WRITE_HINT: Final = "write it from the checkpoint: appliance shard SPEC --output FOLDER"
_NAME: Final = re.compile(r"model-rank-\d{1,5}-part-\d{1,5}\.safetensors")
_MAX_BYTES: Final = 1 << 28
_SOURCES: Final = ("safetensors", "pt", "mistral", "tensorizer", "custom")


class RankState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a rank has. identity: a digest that tells its weights from others. files: their sizes in bytes, by name."""

    identity: str
    files: dict[str, int]


class ShardedIndex(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """source: the format of the checkpoint. tensors: those that it had, which are in no file here. raw: the bytes that
    this was read from."""

    version: int
    source: CheckpointFormat
    shards: ShardFacts
    tensors: tuple[TensorFacts, ...]
    ranks: tuple[RankState, ...]
    raw: bytes = b""


class _Version(msgspec.Struct):
    version: int


def file_name(rank: int, part: int) -> str:
    """Returns the name that vLLM gives to such a file."""
    return f"model-rank-{rank}-part-{part}.safetensors"


def metadata_of(name: str) -> dict[str, str]:
    """Returns what the header of a file says beside its tensors: ranks may have tensors of the same shapes."""
    return {"name": name}


def is_sharded(folder: Path) -> bool:
    return (folder / INDEX).is_file()


def rank_files(folder: Path) -> list[str]:
    """Returns the names of the files of all ranks that are here."""
    return sorted(path.name for path in folder.glob(PATTERN))


def read_index(folder: Path) -> ShardedIndex:
    """Raises CheckpointError."""
    try:
        size = (folder / INDEX).stat().st_size
        raw = (folder / INDEX).read_bytes() if size <= _MAX_BYTES else b""
    except FileNotFoundError as error:
        raise _no_index(folder) from error
    except OSError as error:
        raise CheckpointError(INDEX, f"cannot be read: {error.strerror}") from error
    if size > _MAX_BYTES:
        raise CheckpointError(INDEX, f"has {size} bytes; at most {_MAX_BYTES} are read")
    refuse_pointer(INDEX, raw)
    try:
        version = msgspec.json.decode(raw, type=_Version).version
        if version != VERSION:
            problem = f"is of version {version}, and this version of appliance reads {VERSION}"
            raise CheckpointError(INDEX, problem, WRITE_HINT)
        index = msgspec.json.decode(raw, type=ShardedIndex)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(INDEX, f"is no index of weights by rank: {error}", WRITE_HINT) from error
    _check(index)
    return msgspec.structs.replace(index, raw=raw)


def _no_index(folder: Path) -> CheckpointError:
    if not rank_files(folder):
        return CheckpointError(folder.name, f"there is no {INDEX}: the weights are not written by rank", WRITE_HINT)
    problem = f"has files by rank and no {INDEX}: vLLM wrote them for kernels of its own, or writing was cut off"
    return CheckpointError(folder.name, problem, WRITE_HINT)


def _check(index: ShardedIndex) -> None:
    """Raises CheckpointError for what cannot be."""
    shards, broken = index.shards, "is broken"
    if index.source not in _SOURCES:
        raise CheckpointError(INDEX, f"{broken}: it says that it was written from {index.source}", WRITE_HINT)
    if shards.tensor < 1 or shards.pipeline < 1 or len(index.ranks) != shards.tensor * shards.pipeline:
        message = f"{broken}: it has {len(index.ranks)} ranks, and is for {shards.tensor} x {shards.pipeline}"
        raise CheckpointError(INDEX, message, WRITE_HINT)
    for name in (name for rank in index.ranks for name in rank.files):
        if _NAME.fullmatch(name) is None:
            raise CheckpointError(INDEX, f"{broken}: it names the file {name[:80]!r}", WRITE_HINT)
    for part in (part for tensor in index.tensors for part in tensor.parts):
        if len(part.shape) > MAX_DIMENSIONS or not all(map(is_size, (*part.shape, part.size_bytes))):
            raise CheckpointError(INDEX, f"{broken}: {part.name[:80]!r} has an impossible shape", WRITE_HINT)
