"""Checks the numbers of an adapter: that all are finite, and that it adds something.

It works on bytes, because planning loads no library of arrays.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from appliance.checkpoint.adapter_modules import AdapterModule
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import TensorFacts

_CHUNK_BYTES: Final = 1 << 20


class _Exponent(NamedTuple):
    """Where all bits of the exponent are set in NaN and infinity: the last byte matches `high`, and the one before is
    at least `low`. Numbers are little-endian."""

    size: int
    high: re.Pattern[bytes]
    low: int


_EXPONENTS: Final[Mapping[str, _Exponent]] = {
    "f64": _Exponent(8, re.compile(b"[\x7f\xff]"), 0xF0),
    "f32": _Exponent(4, re.compile(b"[\x7f\xff]"), 0x80),
    "f16": _Exponent(2, re.compile(b"[\x7c-\x7f\xfc-\xff]"), 0),
    "bf16": _Exponent(2, re.compile(b"[\x7f\xff]"), 0x80),
}


def check_numbers(root: Path, modules: Iterable[AdapterModule]) -> bool:
    """Returns whether the adapter adds anything: some `up` and its scale are not zero, or it has vectors or matrices of
    its own. Quantized tensors are taken as they are. Raises CheckpointError for a number that is not finite."""
    has_effect = False
    for module in modules:
        is_zero = {tensor.name: _is_zero(root, tensor) for tensor in module.tensors()}
        scaled = (module.up, module.up_bias) if module.scale else ()
        added = (*scaled, module.magnitude, module.whole, module.bias)
        has_effect |= any(each is not None and not is_zero[each.name] for each in added)
    return has_effect


def _is_zero(root: Path, tensor: TensorFacts) -> bool:
    exponent = _EXPONENTS.get(tensor.storage)
    if exponent is None:
        return False
    is_zero = True
    for chunk in _chunks(root / tensor.file, tensor):
        if not _is_finite(chunk, exponent):
            raise CheckpointError(
                tensor.file, f"{tensor.name} has a number that is not finite", "the training diverged"
            )
        # The bytes of both zeros. A few of the smallest numbers have no others, and such matrices add nothing either.
        is_zero = is_zero and not chunk.strip(b"\x00\x80")
    return is_zero


def _is_finite(chunk: bytes, exponent: _Exponent) -> bool:
    last, before = chunk[exponent.size - 1 :: exponent.size], chunk[exponent.size - 2 :: exponent.size]
    return not any(before[found.start()] >= exponent.low for found in exponent.high.finditer(last))


def _chunks(path: Path, tensor: TensorFacts) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(tensor.offset_bytes)
        left = tensor.size_bytes
        while left > 0 and (chunk := file.read(min(left, _CHUNK_BYTES))):
            left -= len(chunk)
            yield chunk
