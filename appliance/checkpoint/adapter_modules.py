"""Sorts the tensors of an adapter by the modules that they change, with peft's names."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from appliance.checkpoint.adapter_config import CONFIG_NAME, AdapterConfig
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import TensorFacts
from appliance.checkpoint.safetensors import WeightFileHeader

_PREFIX: Final = "base_model.model."  # what peft puts before the names of the model's modules
# The ends of names, longer ones before their own ends, and the field of a module that the tensor is.
_ENDS: Final = {
    ".lora_A.weight": "down",
    ".lora_B.weight": "up",
    ".lora_B.bias": "up_bias",
    ".lora_embedding_A": "embedding_down",
    ".lora_embedding_B": "embedding_up",
    ".lora_magnitude_vector": "magnitude",
    ".lora_magnitude_vector.weight": "magnitude",
    ".base_layer.weight": "copy",
    ".base_layer.bias": "bias",
    ".bias": "bias",
    ".weight": "whole",
}
_WRAPPED: Final = ".base_layer"
# The order in which a module of experts has its parameters, and so in which peft wraps one around the other.
_PARAMETERS: Final = ("gate_up_proj", "gate_proj", "up_proj", "down_proj")


class AdapterModule(msgspec.Struct, frozen=True, kw_only=True):
    """The change of one module, whose weight is [out_features, in_features].

    Either scale * up @ down is added to it: down [rank, in_features], up [out_features, rank], and up_bias
    [out_features] to its bias; with `magnitude` [out_features] the rows of the sum get these lengths (DoRA). Or `whole`
    takes its place. bias: it takes the place of the module's bias. is_table: the weight is an embedding's, [out, in]
    being [num_tokens, width], and `down` [rank, num_tokens] and `up` [width, rank] are stored for its transpose;
    is_turned: `down` is [num_tokens, rank].
    num_experts: of a stack of matrices, for which down is [rank * experts, in], by expert, and up
    [out, rank * experts], by rank; 0 of one matrix. copy: the base model's weight, which peft saves beside a change of
    head or embedding.
    """

    name: str  # of the module in the model, such as "model.layers.0.self_attn.q_proj"
    scale: float = 1.0
    down: TensorFacts | None = None
    up: TensorFacts | None = None
    up_bias: TensorFacts | None = None
    magnitude: TensorFacts | None = None
    whole: TensorFacts | None = None
    bias: TensorFacts | None = None
    copy: TensorFacts | None = None
    is_table: bool = False
    is_turned: bool = False
    num_experts: int = 0

    @property
    def rank(self) -> int:
        """The rank of the product that is added; 0 if there is none."""
        if self.down is None:
            return 0
        if len(self.down.shape) == 3 or self.is_turned:
            return self.down.shape[1]
        return self.down.shape[0] // max(self.num_experts, 1)

    def tensors(self) -> Iterator[TensorFacts]:
        every = (self.down, self.up, self.up_bias, self.magnitude, self.whole, self.bias, self.copy)
        yield from (each for each in every if each is not None)

    def shapes(self, rows: int, columns: int) -> Iterator[tuple[TensorFacts, tuple[int, ...]]]:
        """Yields the tensors, and the shape that each has if the weight is [rows, columns]; of a stack, one of them."""
        rank, experts = self.rank, self.num_experts
        if self.down is not None and self.up is not None:
            down, up = (rank, columns), (rows, rank)
            if self.is_table:
                down, up = (rows, rank) if self.is_turned else (rank, rows), (columns, rank)
            if len(self.down.shape) == 3:
                yield from ((self.down, (experts, *down)), (self.up, (experts, *up)))
            else:
                factor = max(experts, 1)
                yield self.down, ((factor * rank, columns) if experts else down)
                yield self.up, ((rows, factor * rank) if experts else up)
        for matrix in (self.whole, self.copy):
            if matrix is not None:
                yield matrix, (rows, columns)
        for vector in (self.up_bias, self.magnitude, self.bias):
            if vector is not None:
                yield vector, (rows,)

    @property
    def first(self) -> TensorFacts:
        """The tensor that stands for the module in messages."""
        return next(self.tensors())


def read_modules(file: str, header: WeightFileHeader, config: AdapterConfig) -> tuple[AdapterModule, ...]:
    """Returns the modules that the tensors of a file change. Raises CheckpointError that names a tensor with no use."""
    found: dict[str, dict[str, TensorFacts]] = {}
    for tensor in sorted(header.tensors, key=lambda each: each.name):
        end = next((end for end in _ENDS if tensor.name.endswith(end)), None)
        if end is None:
            raise CheckpointError(file, f"tensor {tensor.name!r} is nothing that a LoRA adapter has", "see peft_type")
        found.setdefault(tensor.name.removesuffix(end), {})[_ENDS[end]] = tensor
    if not found:
        raise CheckpointError(file, "there is no tensor of an adapter")
    wrapped = _wrapped(found, config)
    return tuple(_module(file, stem, wrapped.get(stem, stem), found[stem], config) for stem in sorted(found))


def _wrapped(found: Mapping[str, Mapping[str, TensorFacts]], config: AdapterConfig) -> Mapping[str, str]:
    """Returns the names of parameters by the stems of their tensors: a module of which several parameters were trained
    is wrapped once for each, from its first parameter on. Modules of another kind are not among them."""
    if not config.parameters:
        return {}
    by_module: dict[str, list[str]] = {}
    for stem, tensors in found.items():
        module = re.sub(rf"({re.escape(_WRAPPED)})+$", "", stem)
        if "down" in tensors and _parameters_of(module, config.parameters):
            by_module.setdefault(module, []).append(stem)
    names: dict[str, str] = {}
    for module, stems in by_module.items():
        parameters = _parameters_of(module, config.parameters)
        inner_first = sorted(stems, key=len, reverse=True)
        if len(parameters) == len(inner_first):
            names |= {stem: f"{module}.{name}" for stem, name in zip(inner_first, parameters, strict=True)}
    return names


def _parameters_of(module: str, targets: Sequence[str]) -> list[str]:
    """Returns the parameters of a module that `targets` name, such as "mlp.experts.down_proj" or "down_proj"."""
    is_experts = module.rpartition(".")[2] == "experts"
    named = [name for name in _PARAMETERS if any(f".{module}.{name}".endswith(f".{target}") for target in targets)]
    return named if is_experts else []


def _module(
    file: str, stem: str, wrapped: str, tensors: Mapping[str, TensorFacts], config: AdapterConfig
) -> AdapterModule:
    name = wrapped.removeprefix(_PREFIX)
    is_table = "embedding_down" in tensors or "embedding_up" in tensors
    fields = {key.removeprefix("embedding_"): tensor for key, tensor in tensors.items()}
    if fields.keys() - {"bias", "copy"} and "whole" not in fields:
        _check_pair(file, stem, fields)
    if "magnitude" in fields and not config.uses_dora:
        raise CheckpointError(file, f"{fields['magnitude'].name} is of DoRA, and {CONFIG_NAME} says no use_dora")
    if config.uses_dora and "down" in fields and "magnitude" not in fields:
        raise CheckpointError(file, f"{stem} has no lora_magnitude_vector, and {CONFIG_NAME} says use_dora")
    module = replace(AdapterModule(name=name, is_table=is_table), **fields)
    if "down" not in fields:
        return module
    rows, stated = fields["down"].shape[0], config.rank_of(name)
    num_experts = 0
    if stem != wrapped:
        if not stated or rows % stated:
            raise CheckpointError(file, f"{fields['down'].name} has {rows} rows, no multiple of the rank {stated}")
        num_experts = rows // stated
    rank = rows // max(num_experts, 1)
    if stated is not None and rank != stated:
        raise CheckpointError(file, f"{fields['down'].name} has rank {rank}, and {CONFIG_NAME} says {stated}")
    return replace(module, scale=config.scale(name, rank), num_experts=num_experts)


def _check_pair(file: str, stem: str, fields: Mapping[str, TensorFacts]) -> None:
    down, up = fields.get("down"), fields.get("up")
    if down is None:
        raise CheckpointError(file, f"tensor {next(iter(fields.values())).name!r} is no lora_A or lora_B of a pair")
    if up is None:
        raise CheckpointError(file, f"{stem} has lora_A and no lora_B")
    shapes = f"lora_B {list(up.shape)} @ lora_A {list(down.shape)}"
    if len(down.shape) != 2 or len(up.shape) != 2 or down.shape[0] != up.shape[1] or 0 in (*down.shape, *up.shape):
        raise CheckpointError(file, f"{stem}: {shapes} is no product of matrices")
