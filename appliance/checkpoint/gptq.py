"""Reads checkpoints of GPTQ, as AutoGPTQ and GPTQModel write them: the tensors of one matrix become one TensorFacts.

A matrix of N rows and K columns is stored as `qweight` (int32 [K * bits / 32, N], codes along K, lowest bits first),
`qzeros` (int32 [groups, N * bits / 32]), `scales` (f16 [groups, N]) and `g_idx` (int32 [K], the group of each column).
Zero points are stored minus one, but not in the format gptq_v2. Bits and groups follow from the shapes.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import Packing, Storage, TensorFacts
from appliance.checkpoint.parts import (
    CONFIG,
    SECTION,
    Parts,
    bytes_of,
    expect,
    group_name,
    has_shape,
    join_modules,
    of_type,
    part_of,
)

METHOD: Final = "gptq"

_BITS: Final = (2, 3, 4, 8)
_SUFFIXES: Final = ("qweight", "qzeros", "scales", "g_idx")
_SCALE_TYPES: Final = ("f16", "bf16", "f32")
_OVERRIDES: Final = ("bits", "group_size", "desc_act", "sym", "damp_percent", "damp_auto_increment", "mse",
                     "static_groups", "true_sequential")  # fmt: skip


def join_gptq(root: Path, config: Mapping[str, Any], tensors: Sequence[TensorFacts]) -> tuple[TensorFacts, ...]:
    """Returns the tensors with every quantized matrix joined into one, named `<module>.weight`. `config`: the
    quantization_config.

    Raises CheckpointError naming a field or tensor that this version does not support, or tensors that do not match.
    """
    method = _Gptq(root, config)
    return tuple(join_modules(tensors, _SUFFIXES, "qweight", method.join))


class _Gptq:
    """What the config says of all modules."""

    def __init__(self, root: Path, config: Mapping[str, Any]) -> None:
        _check_config(config)
        rules = _rules(config)
        self._root = root
        self._bits: set[int] = {config["bits"], *(rule["bits"] for rule in rules if "bits" in rule)}
        self._group_sizes = {each.get("group_size", 128) for each in (config, *rules)}
        self._is_symmetric = config.get("sym", True) and all(rule.get("sym", True) for rule in rules)
        self._has_order = config.get("desc_act") or any(rule.get("desc_act") for rule in rules)
        self._packing: Packing = "gptq_v2" if _stored_form(config) == "gptq_v2" else "gptq"

    def join(self, module: str, parts: Parts) -> TensorFacts:
        codes = part_of(module, parts, "qweight", ("i32",))
        zeros = part_of(module, parts, "qzeros", ("i32",))
        scales = part_of(module, parts, "scales", _SCALE_TYPES)
        num_groups, num_rows = scales.shape if len(scales.shape) == 2 else (0, 0)
        bits = self._bits_of(zeros, num_groups, num_rows)
        num_columns = codes.shape[0] * 32 // bits
        has_shape(codes, (num_columns * bits // 32, num_rows), module)
        group = group_name(scales, num_columns, num_groups)
        self._check_group(scales, num_columns, num_groups)
        order = self._order(module, parts, num_columns, num_groups)
        suffix = "" if self._is_symmetric else "_zp"
        return TensorFacts(
            name=f"{module}.weight",
            stored_name=codes.stored_name,
            shape=(num_rows, num_columns),
            storage=cast(Storage, f"int{bits}_{group}{suffix}" if order is None else f"int{bits}_order"),
            file=codes.file,
            offset_bytes=codes.offset_bytes,
            size_bytes=codes.size_bytes,
            packing=self._packing,
            scale=scales,
            zero_point=zeros,
            order=order or parts.get("g_idx"),
        )

    def _bits_of(self, zeros: TensorFacts, num_groups: int, num_rows: int) -> int:
        """Returns the bits of a code by the shape of the zero points; the config must know them."""
        for bits in sorted(self._bits):
            if num_rows and zeros.shape == (num_groups, num_rows * bits // 32):
                return bits
        known = " or ".join(map(str, sorted(self._bits)))
        problem = f"tensor {zeros.name!r} of shape {zeros.shape} has no codes of {known} bits for {num_rows} rows"
        raise CheckpointError(zeros.file, problem, f"the bits that {SECTION} says")

    def _check_group(self, scales: TensorFacts, num_columns: int, num_groups: int) -> None:
        sizes = {num_columns if size == -1 else size for size in self._group_sizes}
        if num_columns // num_groups not in sizes and not (num_groups == 1 and num_columns < min(sizes)):
            said = " or ".join(map(str, sorted(sizes)))
            problem = f"tensor {scales.name!r} has groups of {num_columns // num_groups} columns"
            raise CheckpointError(scales.file, problem, f"{SECTION}.group_size says {said}")

    def _order(self, module: str, parts: Parts, num_columns: int, num_groups: int) -> TensorFacts | None:
        """Returns g_idx if groups have columns from anywhere; only for act-order its data is read here."""
        order = parts.get("g_idx")
        if order is None:
            if self._has_order and num_groups > 1:
                problem = f"{module} has no g_idx, the order of its columns"
                raise CheckpointError(parts["qweight"].file, problem, f"{SECTION}.desc_act is true")
            return None
        has_shape(of_type(order, ("i32",)), (num_columns,), module)
        if not self._has_order or num_groups == 1:
            return None
        size = num_columns // num_groups
        plain = b"".join((column // size).to_bytes(4, "little") for column in range(num_columns))
        return None if bytes_of(self._root, order) == plain else order


def _stored_form(config: Mapping[str, Any]) -> Any:
    return config.get("checkpoint_format") or config.get("format")


def _check_config(config: Mapping[str, Any]) -> None:
    expect(config.get("bits"), f"{SECTION}.bits", _BITS)
    expect(_stored_form(config), f"{SECTION}.checkpoint_format", (None, "gptq", "gptq_v2"))
    expect(config.get("is_marlin_format"), f"{SECTION}.is_marlin_format", (None, False))
    expect(config.get("pack_dtype"), f"{SECTION}.pack_dtype", (None, "int32"))
    _check_group_size(config.get("group_size", 128), f"{SECTION}.group_size")
    for flag in ("desc_act", "sym"):
        expect(config.get(flag), f"{SECTION}.{flag}", (None, False, True))
    for unread in ("adapter", "rotation"):
        expect(config.get(unread), f"{SECTION}.{unread}", (None, ""))


def _check_group_size(size: Any, where: str) -> None:
    if type(size) is not int or size == 0 or size < -1:
        raise CheckpointError(CONFIG, f"{where} is {size!r}", "read: -1, or how many columns share a scale")


def _rules(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns what GPTQModel's dynamic rules change; a rule that begins with "-" leaves modules plain."""
    dynamic, where = config.get("dynamic"), f"{SECTION}.dynamic"
    if dynamic is None:
        return []
    if not isinstance(dynamic, dict):
        raise CheckpointError(CONFIG, f"{where} must be an object of rules or null")
    rules = [rule for pattern, rule in dynamic.items() if not pattern.startswith("-") and rule is not False]
    for rule in rules:
        if not isinstance(rule, dict):
            raise CheckpointError(CONFIG, f"{where} must have an object for each pattern")
        for key, value in rule.items():
            expect(key, f"a key of {where}", _OVERRIDES)
            if key == "bits":
                expect(value, f"{where}.bits", _BITS)
            elif key == "group_size":
                _check_group_size(value, f"{where}.group_size")
            elif key in ("sym", "desc_act"):
                expect(value, f"{where}.{key}", (False, True))
    return rules
