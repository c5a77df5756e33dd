"""Reads checkpoints of AWQ in AutoAWQ's form "gemm": the tensors of one matrix become one TensorFacts.

A matrix of N rows and K columns is stored as `qweight` (int32 [K, N / 8]), `qzeros` (int32 [groups, N / 8]) and
`scales` (f16 [groups, N]): eight rows a word, four bits each, in the order of loading.formats.awq.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from appliance.checkpoint.facts import Storage, TensorFacts
from appliance.checkpoint.parts import SECTION, Parts, expect, group_name, has_shape, join_modules, part_of

METHOD: Final = "awq"

_SUFFIXES: Final = ("qweight", "qzeros", "scales")
_ROWS_OF_WORD: Final = 8


def join_awq(root: Path, config: Mapping[str, Any], tensors: Sequence[TensorFacts]) -> tuple[TensorFacts, ...]:
    """Returns the tensors with every quantized matrix joined into one, named `<module>.weight`. `config`: the
    quantization_config.

    Raises CheckpointError naming a field or tensor that this version does not support, or tensors that do not match.
    """
    del root  # shapes say all
    expect(config.get("bits", config.get("w_bit")), f"{SECTION}.bits", (4,))
    expect(config.get("zero_point"), f"{SECTION}.zero_point", (None, True))
    version = config.get("version", "gemm")
    expect(version.lower() if isinstance(version, str) else version, f"{SECTION}.version", ("gemm",))
    return tuple(join_modules(tensors, _SUFFIXES, "qweight", _join))


def _join(module: str, parts: Parts) -> TensorFacts:
    codes = part_of(module, parts, "qweight", ("i32",))
    zeros = part_of(module, parts, "qzeros", ("i32",))
    scales = part_of(module, parts, "scales", ("f16", "bf16", "f32"))
    num_groups, num_rows = scales.shape if len(scales.shape) == 2 else (0, 0)
    num_columns = codes.shape[0]
    has_shape(codes, (num_columns, num_rows // _ROWS_OF_WORD), module)
    has_shape(zeros, (num_groups, num_rows // _ROWS_OF_WORD), module)
    return TensorFacts(
        name=f"{module}.weight",
        stored_name=codes.stored_name,
        shape=(num_rows, num_columns),
        storage=cast(Storage, f"int4_{group_name(scales, num_columns, num_groups)}_zp"),
        file=codes.file,
        offset_bytes=codes.offset_bytes,
        size_bytes=codes.size_bytes,
        packing="awq",
        scale=scales,
        zero_point=zeros,
    )
