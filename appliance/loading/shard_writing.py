"""Writes the weights of a plan by rank: each rank's as its kernel set takes them, piece by piece."""

import itertools
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np

from appliance.base.disk import remedy
from appliance.base.errors import ApplianceError, ExitCode
from appliance.checkpoint.facts import ModelFacts
from appliance.checkpoint.sharded_state import (
    INDEX,
    VERSION,
    RankState,
    ShardedIndex,
    file_name,
    metadata_of,
)
from appliance.checkpoint.storage import NUMPY_TYPES, SAFETENSORS_TYPES, stored_bytes
from appliance.kernels.layout import CanonicalWeight
from appliance.loading.decoder import PlannedDecoder, planned_decoder
from appliance.loading.model import tensor_source
from appliance.loading.sharded_weights import share_of_rank
from appliance.loading.stored_form import Planned, StoredArray, stored_arrays, stored_names
from appliance.loading.weights import DecoderWeights
from appliance.plan.by_rank import not_to_be_written, shards_of
from appliance.plan.overrides import with_config_overrides
from appliance.plan.types import EnginePlan
from appliance.program.shard_layout import Shard
from appliance.program.stages import Stage

PART_BYTES: Final = 4 << 30  # a file has at most so many, but for a weight that has more by itself
PIECE_ELEMENTS: Final = 1 << 22  # translated at a time
_TYPES: Final = {storage: name for name, storage in SAFETENSORS_TYPES.items()}
_MODULE: Final = re.compile(r"\d+_\w+")  # a folder of a module of sentence-transformers
# Files of a checkpoint that are weights, or name those that are.
_WEIGHTS: Final = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".tensors", ".index.json", ".h5", ".msgpack", ".npz")

Progress = Callable[[int, int, int], None]  # (rank, bytes written of it, bytes of it)


class NotWrittenError(ApplianceError):
    """The weights cannot be written by rank, or not there."""

    exit_code = ExitCode.INVALID


class _Place(NamedTuple):
    """Where an array of a weight lies in its file. begin: of its bytes, after the header."""

    weight: str
    array: StoredArray
    begin: int

    @property
    def end(self) -> int:
        return self.begin + self.array.size_bytes

    @property
    def row_bytes(self) -> int:
        return stored_bytes(self.array.storage, self.array.shape[1:])


def write_by_rank(plan: EnginePlan, facts: ModelFacts, folder: Path, progress: Progress) -> ShardedIndex:
    """Writes a checkpoint that `load_format: sharded_state` reads, for the ranks and forms of a plan. The folder is new
    or empty, and is left so if this fails; only a process that is killed leaves files, and no index.

    Raises NotWrittenError for what is not written by rank, or if the disk refuses, and like `load_model`.
    """
    for refusal in not_to_be_written(plan, facts):
        raise NotWrittenError(f"{refusal.path}: {refusal.message}", hint=refusal.hint)
    facts = with_config_overrides(facts, plan.model.config_overrides)
    decoder = planned_decoder(plan, facts)
    if decoder.compiled.biases:
        message = "tables of position biases are made at the start, of tensors of the checkpoint"
        raise NotWrittenError(f"{message}, so this model is not written by rank", hint="load the checkpoint")
    with _new_folder(folder):
        with tensor_source(plan, facts, decoder.described) as reader:
            weights = DecoderWeights(decoder.compiled, decoder.inventory, reader, plan.model.max_model_len)
            ranks = tuple(
                _write_rank(folder, number, share, progress) for number, share in shares(plan, decoder, weights)
            )
        _copy_others(Path(facts.root), folder)
        source, shards = facts.format, shards_of(plan.parallel, plan.precision)
        index = ShardedIndex(version=VERSION, source=source, shards=shards, tensors=facts.tensors, ranks=ranks)
        _write_index(folder, index)
    return index


def shares(plan: EnginePlan, decoder: PlannedDecoder, weights: DecoderWeights) -> Iterator[tuple[int, Planned]]:
    """Yields the weights of each rank of a plan, with its number."""
    parallel = plan.parallel
    if parallel.num_ranks == 1:
        yield 0, weights
        return
    for number in range(parallel.num_ranks):
        stage, rank = divmod(number, parallel.tensor)
        own = Stage(stage, parallel.layers) if parallel.pipeline > 1 else None
        shard = Shard(rank, parallel.tensor)
        yield number, share_of_rank(decoder.compiled.program, None, weights, shard, own, parallel.placing).weights


@contextmanager
def _new_folder(folder: Path) -> Iterator[None]:
    """Makes a folder, or takes an empty one. It is gone, or empty, again if the block fails."""
    is_new = not folder.exists()
    if not is_new and (not folder.is_dir() or any(folder.iterdir())):
        raise NotWrittenError(f"{folder} is not empty", hint="name a new folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException as error:
        _remove(folder, is_new=is_new)
        if isinstance(error, OSError):
            message = f"{folder} cannot be written: {error.strerror or error}"
            raise NotWrittenError(message, hint=remedy(error, "--output")) from error
        raise


def _remove(folder: Path, *, is_new: bool) -> None:
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    if is_new and folder.is_dir():
        folder.rmdir()


def _write_rank(folder: Path, rank: int, weights: Planned, progress: Progress) -> RankState:
    parts = list(_parts(weights))
    total, done, files = sum(part[-1].end for part in parts), 0, dict[str, int]()
    for number, part in enumerate(parts):
        path = folder / file_name(rank, number)
        header = _header(part, metadata_of(path.name))
        size = len(header) + part[-1].end
        with path.open("xb") as file:
            os.posix_fallocate(file.fileno(), 0, size)  # a full disk is found before anything is translated
            os.pwrite(file.fileno(), header, 0)
            for written in _fill(file.fileno(), len(header), part, weights):
                done += written
                progress(rank, done, total)
            os.fsync(file.fileno())
        files[path.name] = size
    return RankState(weights.translated_identity, files)


def _parts(weights: Planned) -> Iterator[list[_Place]]:
    """Yields the arrays of each file, in their order."""
    part: list[_Place] = []
    for name in stored_names(weights):
        arrays = list(stored_arrays(weights, name))
        if part and part[-1].end + sum(each.size_bytes for each in arrays) > PART_BYTES:
            yield part
            part = []
        for each in arrays:
            part.append(_Place(name, each, part[-1].end if part else 0))
    if part:
        yield part


def _header(places: list[_Place], metadata: dict[str, str]) -> bytes:
    """Returns the header of a file of safetensors, padded so that what follows is aligned."""
    entries = {
        each.array.tensor: {
            "dtype": _TYPES[each.array.storage],
            "shape": each.array.shape,
            "data_offsets": (each.begin, each.end),
        }
        for each in places
    }
    text = json.dumps({"__metadata__": metadata, **entries}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _fill(descriptor: int, start: int, places: list[_Place], weights: Planned) -> Iterator[int]:
    """Writes the weights of a file piece by piece. Yields how many bytes each piece had."""
    for name, group in itertools.groupby(places, lambda each: each.weight):
        own = list(group)
        rows, columns = weights.full_shape(name)
        step = max(1, PIECE_ELEMENTS // max(1, columns))
        for row in range(0, rows, step):
            piece = weights.piece(name, row, min(row + step, rows)) if weights.is_matrix(name) else weights[name]
            yield sum(_write(descriptor, start + each.begin + row * each.row_bytes, each.array, piece) for each in own)


def _write(descriptor: int, at: int, array: StoredArray, piece: CanonicalWeight) -> int:
    rows = np.ascontiguousarray(getattr(piece, array.name))
    assert rows.dtype == NUMPY_TYPES[array.storage], "the form of a weight says the types of its arrays"
    data, done = rows.reshape(-1).view(np.uint8).data, 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done:], at + done)
    return len(data)


def _copy_others(root: Path, folder: Path) -> None:
    """Copies what of a checkpoint is no weights, and the small modules of sentence-transformers, which lie in
    folders."""
    for path in sorted(root.iterdir()):
        if path.is_file() and not path.name.endswith(_WEIGHTS):
            shutil.copyfile(path, folder / path.name)
        elif path.is_dir() and _MODULE.fullmatch(path.name):
            shutil.copytree(path, folder / path.name, copy_function=shutil.copyfile)


def _write_index(folder: Path, index: ShardedIndex) -> None:
    """Writes the index, which makes the folder a checkpoint, when all else is on the disk."""
    beside = folder / f".{INDEX}"
    with beside.open("xb") as file:
        file.write(msgspec.json.encode(index))
        file.flush()
        os.fsync(file.fileno())
    beside.replace(folder / INDEX)
