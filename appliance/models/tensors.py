"""Checks that a checkpoint has the tensors that its decoder reads, in the shapes that its config requires."""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from math import prod

from appliance.checkpoint.facts import ModelFacts, TensorFacts
from appliance.layers.spec import DecoderSpec, WeightSource
from appliance.models.describe import Described
from appliance.models.errors import Problem

_SHOWN = 8  # names in one problem


def tensor_problems(described: Described, facts: ModelFacts) -> Iterator[Problem]:
    """Yields problems before any tensor is read: missing tensors, tensors that would not be read, and wrong shapes."""
    spec, stored = described.spec, {tensor.name: tensor for tensor in facts.tensors}
    wanted = dict.fromkeys(source.tensor for source in spec.weights.values())
    missing = [name for name in wanted if name not in stored]
    unread = [name for name in stored if name not in wanted and not is_ignored(name, spec)]
    mismatch = "does the architecture in config.json match the weights?"
    incomplete = f"other tensors are in their place: {mismatch}" if unread else "is the download complete?"
    yield from _problem("the checkpoint lacks", missing, incomplete)
    yield from _problem("no part of the model reads", unread, mismatch)
    if not missing:
        yield from _misshapen(described, stored)


def is_ignored(name: str, spec: DecoderSpec) -> bool:
    """Returns whether a tensor is known and not a weight of the decoder."""
    return any(fnmatchcase(name, pattern) for pattern in spec.ignored_tensors)


def shape_of(tensor: TensorFacts, source: WeightSource) -> tuple[int, ...]:
    """Returns the shape of a logical weight in the program: (out_features, in_features), or (size,) for a vector. A
    tensor without dimensions is a vector of one number."""
    shape = (tensor.shape or (1,)) if source.index is None else tensor.shape[1:]
    shape = shape[::-1] if source.transform == "transpose" else shape
    shape = shape if source.rows is None else (source.num_parts * len(range(*source.rows)), *shape[1:])
    if source.transform == "transpose_parts" and len(shape) > 1:
        return source.num_parts * shape[1], shape[0] // source.num_parts
    return shape


def _misshapen(described: Described, stored: dict[str, TensorFacts]) -> Iterator[Problem]:
    for use in described.compiled.uses():
        for part, shape in zip(use.parts, use.shapes, strict=True):
            source = described.spec.weights[part]
            found = shape_of(stored[source.tensor], source)
            if len(shape) == 1:  # a vector may be stored by head
                found = (prod(found),)
            if found != shape and not (shape[0] < 0 and found[1:] == shape[1:]):
                yield Problem(f"{source.tensor} has the shape {found}; the config calls for {shape}")


def _problem(what: str, names: Sequence[str], hint: str) -> Iterator[Problem]:
    if names:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        noun = "tensor" if len(names) == 1 else "tensors"
        yield Problem(f"{what} {len(names)} {noun}: {', '.join(names[:_SHOWN])}{more}", hint=hint)
