"""The places of a model for adapters, and which of them a module of an adapter belongs to."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, NamedTuple, Protocol

from appliance.base.errors import ApplianceError
from appliance.checkpoint.adapter_modules import AdapterModule
from appliance.checkpoint.facts import ModelFacts, StoredConventions, TensorFacts
from appliance.checkpoint.gguf_architectures import CONVENTIONS
from appliance.layers.spec import WeightSource
from appliance.models.adapters import expert_of, module_names, trained_weights
from appliance.program.adapters import AdapterLinear, AdapterPlace, places_of
from appliance.program.operators import Linear, StepProgram

OTHER_BASE: Final = "it was trained on another base model"
_PLAIN: Final = ("none", "transpose", "unpermute_heads")  # a transposed weight's adapters are not transposed


class AdapterError(ApplianceError):
    """An adapter does not fit the model. The message names the tensor."""


class BaseReader(Protocol):
    """Reads logical weights of the model as arrays of f32 [n, d], vectors as [n, 1]."""

    def has(self, name: str) -> bool: ...

    def read(self, name: str) -> Any: ...


class Piece(NamedTuple):
    """The rows of a module that are a logical weight. expert: the matrix of a stack."""

    weight: str
    source: WeightSource
    expert: int | None = None


@dataclass(frozen=True)
class AdapterPlaces:
    """The places of a program for adapters.

    by_weight: the place of each logical weight that has one. sources: where a kind of file has each logical weight:
    adapters are trained on transformers' modules, so this says which rows of which module it is; it may lie elsewhere
    in the model's own checkpoint. accumulating: weights whose products are added to something else. base: the model's
    weights, which some adapters need; None where adapters are only checked.
    """

    by_weight: Mapping[str, AdapterPlace]
    sources: Callable[[StoredConventions], Mapping[str, WeightSource]]
    accumulating: frozenset[str] = frozenset()
    base: BaseReader | None = None

    @classmethod
    def of(
        cls, facts: ModelFacts, max_model_len: int, program: StepProgram, base: BaseReader | None = None
    ) -> "AdapterPlaces":
        """Returns the places of a program. Raises like build_decoder when a source is asked for."""
        return cls(
            by_weight={part: place for place in places_of(program.operators) for part in place.parts},
            sources=lambda conventions: trained_weights(facts, max_model_len, conventions),
            accumulating=frozenset(_accumulating(program)),
            base=base,
        )

    def shape(self, weight: str) -> tuple[int, int]:
        return dict(self.by_weight[weight].shapes())[weight]

    def fit(self, module: AdapterModule, gguf_architecture: str | None) -> list[Piece]:
        """Returns the logical weights that are rows of a module. Raises AdapterError if it does not fit them."""
        pieces = self._find(module, gguf_architecture)
        if not pieces:
            message = f"{module.first.name}: the model has no place for an adapter of {module.name}"
            raise AdapterError(message, hint=self._hint(module))
        for piece in pieces:
            self._check_place(module, piece.weight)
        num_rows, width = sum(self.shape(piece.weight)[0] for piece in pieces), self.shape(pieces[0].weight)[1]
        own = num_rows // max(module.num_experts, 1), width
        for tensor, shape in module.shapes(*own):
            if tensor.shape != shape:
                message = f"{tensor.name}: the adapter is of a weight {_weight(module, tensor)}, and"
                raise AdapterError(f"{message} {module.name} is {own} in this model", hint=OTHER_BASE)
        return pieces

    def _check_place(self, module: AdapterModule, weight: str) -> None:
        place = self.by_weight[weight]
        if module.down is not None and module.rank > place.max_rank:
            message = f"{module.down.name} has rank {module.rank}, and the slots are for ranks up to {place.max_rank}"
            raise AdapterError(message, hint=f"set lora.max_rank: {module.rank}")
        if module.whole is not None and not place.takes_whole:
            message = f"{module.whole.name} is a matrix of its own, and only the head and the embedding may have one"
            raise AdapterError(message, hint="train it as a target module, or merge the adapter into its base model")
        has_vectors = module.magnitude is not None or module.bias is not None
        if has_vectors and (place.is_table or (module.magnitude is not None and weight in self.accumulating)):
            message = f"{module.first.name}: there is no DoRA and no bias of {module.name} in this version"
            raise AdapterError(message, hint="train the adapter without, or merge it into its base model")

    def _hint(self, module: AdapterModule) -> str:
        """Returns how a module gets a place that the model has but the program has not; or where there are places."""
        if any(module.name in module_names(source) for source in self._stored.values()) or expert_of(module.name):
            end = module.name.rpartition(".")[2]
            return f"it is none of lora.target_modules: add {end}, or list the adapter in lora.adapters without them"
        names = sorted(self._trained)
        kinds = sorted({name.rpartition(".")[2] for name in names})
        return f"there are places at {', '.join(kinds)}, such as {names[0]}"

    def _find(self, module: AdapterModule, gguf_architecture: str | None) -> list[Piece]:
        conventions = CONVENTIONS.get(gguf_architecture or "", StoredConventions())
        by_module = self._interleaved if conventions.interleaved_heads else self._trained
        if module.name in by_module:
            return by_module[module.name]
        return self._experts(module)

    def _experts(self, module: AdapterModule) -> list[Piece]:
        """Returns the pieces of a module of experts by the parts of its name, for the modules of a checkpoint may be
        those of one expert each, and those that are trained stacks of all, or the reverse."""
        found = expert_of(module.name)
        if found is None:
            return []
        experts = range(module.num_experts) if found.expert is None else [found.expert]
        names = [[f"layers.{found.layer}.experts.{expert}.{part}" for part in found.parts] for expert in experts]
        last = f"layers.{found.layer}.experts.{len(names)}.{found.parts[0]}"
        is_fewer = found.expert is None and last in self.by_weight
        if not names or is_fewer or any(name not in self.by_weight for each in names for name in each):
            return []
        return [
            Piece(name, WeightSource(module.name, rows=self._rows(each, at)), expert if module.num_experts else None)
            for expert, each in zip(experts, names, strict=True)
            for at, name in enumerate(each)
        ]

    def _rows(self, names: list[str], at: int) -> tuple[int, int] | tuple[int, int, int] | None:
        """Returns which rows of a module one of its weights is: gate and up lie one after the other, or take turns."""
        if len(names) == 1:
            return None
        stored, width = self._stored[names[at]].rows, self.shape(names[at])[0]
        return stored if stored is not None and len(stored) > 2 else (at * width, (at + 1) * width)

    @cached_property
    def _trained(self) -> dict[str, list[Piece]]:
        return self._by_module(self._stored)

    @cached_property
    def _interleaved(self) -> dict[str, list[Piece]]:
        return self._by_module(self.sources(StoredConventions(interleaved_heads=True)))

    @cached_property
    def _stored(self) -> Mapping[str, WeightSource]:
        return self.sources(StoredConventions())

    def _by_module(self, sources: Mapping[str, WeightSource]) -> dict[str, list[Piece]]:
        found: dict[str, list[Piece]] = {}
        for weight in self.by_weight:
            source = sources.get(weight)
            if source is not None and source.index is None and source.transform in _PLAIN:
                for name in module_names(source):
                    found.setdefault(name, []).append(Piece(weight, source))
        return found


def _weight(module: AdapterModule, tensor: TensorFacts) -> str:
    """Describes the shape of the weight that a tensor of an adapter is of."""
    if module.down is None or module.up is None or tensor not in (module.down, module.up):
        return str(tensor.shape)
    return f"of {list(module.up.shape)} @ {list(module.down.shape)}"


def _accumulating(program: StepProgram) -> list[str]:
    pairs = pairwise(program.operators)
    return [part for before, op in pairs if isinstance(op, AdapterLinear) and _accumulates(before) for part in op.parts]


def _accumulates(operator: object) -> bool:
    return isinstance(operator, Linear) and operator.accumulate
