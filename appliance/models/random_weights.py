"""The tensors of a model that has a config and no weight files, in the shapes that its program needs."""

from collections.abc import Mapping
from math import prod
from typing import Any, Final

from msgspec.structs import replace

from appliance.checkpoint.config import text_config
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import ModelFacts, Storage, TensorFacts
from appliance.checkpoint.storage import stored_bytes
from appliance.layers.decoder import compile_decoder
from appliance.layers.spec import WeightSource
from appliance.models.describe import build_decoder
from appliance.models.errors import ModelError

_STORAGES: Final[dict[str, Storage]] = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
_Slice = tuple[tuple[int, ...], WeightSource]


def with_random_tensors(facts: ModelFacts) -> ModelFacts:
    """Returns the facts of a model without weight files with the tensors that its family reads, in the config's dtype;
    with none where this version has no decoder for it, which planning refuses.

    Parts that only a checkpoint's own tensors tell of, such as a classifier, are not among them. Raises CheckpointError
    for a dtype that weights cannot have.
    """
    storage = _storage(facts.config)
    try:
        shapes = stated_shapes(facts)
    except ModelError:
        return facts
    known = {tensor.name for tensor in facts.tensors}
    stated = (_tensor(name, shape, storage) for name, shape in shapes.items() if name not in known)
    return replace(facts, tensors=(*stated, *facts.tensors))


def stated_shapes(facts: ModelFacts) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each tensor that the model's family reads, by its name, as the config alone states them.

    Raises ModelError or CheckpointError like `build_decoder`.
    """
    spec = build_decoder(facts, facts.geometry.max_position)
    tables = {
        "positions": facts.geometry.max_position + spec.position_offset,
        "types": int(facts.config.get("type_vocab_size") or 1),
    }
    shapes = {
        part: (tables[part], *shape[1:]) if shape[0] < 0 else shape
        for use in compile_decoder(spec, {}).uses()
        for part, shape in zip(use.parts, use.shapes, strict=True)
    }
    slices: dict[str, list[_Slice]] = {}
    for name, source in spec.weights.items():
        slices.setdefault(source.tensor, []).append((shapes[name], source))
    return {name: _whole(each) for name, each in slices.items()}


def _storage(config: Mapping[str, Any]) -> Storage:
    inner = text_config(config)
    stated = next((each[key] for each in (inner, config) for key in ("dtype", "torch_dtype") if each.get(key)), None)
    name = "bfloat16" if stated is None else str(stated).removeprefix("torch.")
    if name not in _STORAGES:
        raise CheckpointError("config.json", f"dtype is {name}, in which no random weights are made",
                              f"one of {', '.join(_STORAGES)}")  # fmt: skip
    return _STORAGES[name]


def _tensor(name: str, shape: tuple[int, ...], storage: Storage) -> TensorFacts:
    size = stored_bytes(storage, shape)
    return TensorFacts(
        name=name, stored_name=name, shape=shape, storage=storage, file="", offset_bytes=0, size_bytes=size
    )


def _whole(parts: list[_Slice]) -> tuple[int, ...]:
    """Returns the shape of the tensor of which the parts are slices: rows side by side, and matrices of a stack. A
    vector of several numbers a row is stored with rows."""
    slices = {(source.index, source.rows): _with_rows(shape, source) for shape, source in parts}
    matrices = {index for index, _ in slices}
    rows = sum(shape[0] for shape in slices.values()) // len(matrices)
    shape = next(iter(slices.values()))
    if any(source.transform == "transpose" for _, source in parts):
        shape = (*shape[1:], rows)
    elif len(shape) > 1 or len(slices) > 1:
        shape = (rows, *shape[1:])
    return shape if matrices == {None} else (len(matrices), *shape)


def _with_rows(shape: tuple[int, ...], source: WeightSource) -> tuple[int, ...]:
    """Returns the shape of a slice as it is stored, but for a transposition."""
    if source.transform == "transpose_parts":
        return shape[1] * source.num_parts, shape[0] // source.num_parts
    if len(shape) > 1 or source.rows is None:
        return shape
    num_rows = source.num_parts * len(range(*source.rows))
    return shape if shape[0] == num_rows else (num_rows, prod(shape) // num_rows)
