"""How fast tensors come from the disk, mapped and streamed, with nothing of the file in the page cache.

python docs/benchmarks/readers.py FOLDER --size-mib 1024 --rounds 3
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from appliance.checkpoint.facts import TensorFacts
from appliance.checkpoint.reader import TensorReader
from appliance.checkpoint.streamed import StreamedReader

TENSOR_BYTES = 32 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="on the disk to measure; a file is written there, and removed")
    parser.add_argument("--size-mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with written(options.folder, options.size_mib << 20) as tensors:
        for name, num_threads in (("mapped", 0), *((f"streamed, {n} threads", n) for n in (1, 2, 4, 8))):
            seconds = [measured(options.folder, tensors, num_threads) for _ in range(options.rounds)]
            rate = (options.size_mib << 20) / statistics.median(seconds) / 1e9
            sys.stdout.write(f"{name:22} {rate:6.2f} GB/s  {[round(each, 2) for each in seconds]}\n")


@contextmanager
def written(folder: Path, size_bytes: int) -> Iterator[list[TensorFacts]]:
    path = folder / "readers.bin"
    try:
        with path.open("wb") as file:
            for _ in range(0, size_bytes, TENSOR_BYTES):
                file.write(os.urandom(TENSOR_BYTES))
            file.flush()
            os.fsync(file.fileno())
        yield [tensor_at(start) for start in range(0, size_bytes, TENSOR_BYTES)]
    finally:
        path.unlink(missing_ok=True)


def tensor_at(start: int) -> TensorFacts:
    return TensorFacts(
        name=str(start), stored_name=str(start), shape=(TENSOR_BYTES,), storage="u8", file="readers.bin",
        offset_bytes=start, size_bytes=TENSOR_BYTES,
    )  # fmt: skip


def measured(folder: Path, tensors: list[TensorFacts], num_threads: int) -> float:
    """Returns the seconds in which each tensor is summed, the next one being asked for before."""
    with (folder / "readers.bin").open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    started = time.monotonic()
    with opened(folder, tensors, num_threads) as reader:
        for tensor, following in zip(tensors, [*tensors[1:], tensors[-1]], strict=True):
            reader.will_need(following.name)
            reader.read(tensor.name)[::4096].sum()  # a byte of each page
            reader.release(tensor.name, 0, TENSOR_BYTES)
    return time.monotonic() - started


def opened(
    folder: Path, tensors: list[TensorFacts], num_threads: int
) -> AbstractContextManager[TensorReader | StreamedReader]:
    return StreamedReader(folder, tensors, num_threads, 1 << 30) if num_threads else TensorReader(folder, tensors)


if __name__ == "__main__":
    main()
