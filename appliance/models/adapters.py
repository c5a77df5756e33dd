"""The places of a model for adapters: which of its weights they may change, and by which names."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple

from msgspec.structs import replace

from appliance.checkpoint.facts import ModelFacts, StoredConventions
from appliance.layers.spec import WeightSource
from appliance.models.describe import build_decoder

HEAD: Final = "head"
EMBEDDING: Final = "embed"
EXPERTS: Final = "experts"
ROUTERS: Final = "routers"
# The names of an expert's matrices in checkpoints and in transformers, and what they are.
_EXPERT_PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "gate_up_proj": ("gate", "up"),
    "gate_proj": ("gate",),
    "up_proj": ("up",),
    "down_proj": ("down",),
    "w1": ("gate",),
    "w3": ("up",),
    "w2": ("down",),
}
_EXPERT: Final = re.compile(r"(?:.*\.)?layers\.(\d+)\.(?:.*\.)?experts\.(?:(\d+)\.)?(\w+)")


class ExpertModule(NamedTuple):
    """What a module of experts is. expert: None for a stack of all. parts: of its rows, one after the other."""

    layer: int
    expert: int | None
    parts: tuple[str, ...]


def expert_of(module: str) -> ExpertModule | None:
    """Returns what a module is by its name; None if it is none of experts."""
    match = _EXPERT.fullmatch(module)
    if match is None or match[3] not in _EXPERT_PARTS:
        return None
    return ExpertModule(int(match[1]), None if match[2] is None else int(match[2]), _EXPERT_PARTS[match[3]])


def trained_weights(
    facts: ModelFacts, max_model_len: int, conventions: StoredConventions | None = None
) -> Mapping[str, WeightSource]:
    """Returns where transformers keeps each logical weight, because adapters are trained there: the weights may lie
    elsewhere in the model's own checkpoint. conventions: those of another kind of file. A head that is the embedding is
    a module of its own there. Where the value heads of a delta rule lie in another order than there, its weights are
    left out: adapters have no place there. Raises like build_decoder."""
    spec = build_decoder(replace(facts, stored=conventions or StoredConventions()), max_model_len)
    tied = {HEAD: WeightSource("lm_head.weight")} if HEAD not in spec.weights else {}
    sources = {**tied, **spec.weights}
    if facts.stored.tiled_value_heads:
        return {name: source for name, source in sources.items() if ".delta." not in name}
    return sources


def kind_of(weight: str) -> str | None:
    """Returns the kind of a weight that has a place only where an adapter needs it: the head, the embedding, experts or
    routers. None for a linear map of a layer."""
    if weight in (HEAD, EMBEDDING):
        return weight
    if weight.endswith(".router"):
        return ROUTERS
    return EXPERTS if ".experts." in weight else None


def kinds_needed(weights: Mapping[str, WeightSource], modules: Iterable[str]) -> tuple[str, ...]:
    """Returns the kinds of weights (kind_of) that modules of adapters are, sorted."""
    by_tensor = {name: weight for weight, source in weights.items() for name in module_names(source)}
    kinds = {EXPERTS if expert_of(module) else kind_of(by_tensor.get(module, "")) for module in modules}
    return tuple(sorted(kind for kind in kinds if kind is not None))


def whole_weights(weights: Mapping[str, WeightSource], modules: Collection[str]) -> frozenset[str]:
    """Returns the head and the embedding, those of them that are among the modules."""
    return frozenset(name for name in (HEAD, EMBEDDING) if {*module_names(weights[name])} & {*modules})


def module_names(source: WeightSource) -> tuple[str, ...]:
    """Returns the names of the module in which a weight lies: transformers 5 renamed the blocks of some families in
    memory, and adapters have these names."""
    module = source.tensor.removesuffix(".weight")
    renamed = module.replace(".block_sparse_moe.", ".mlp.")
    return (module,) if renamed == module else (module, renamed)


def place_filter(
    weights: Mapping[str, WeightSource], target_modules: Collection[str] | None, kinds: Collection[str] = ()
) -> Callable[[str], bool]:
    """Returns what tells whether a logical weight has a place for adapters: those that `target_modules` names by the
    end of the module's name; None names all linear maps of layers, and those of the kinds (kind_of)."""

    def is_place(name: str) -> bool:
        kind = kind_of(name)
        if name not in weights or not (name.startswith("layers.") or name in (HEAD, EMBEDDING)):
            return False
        if target_modules is None or kind in kinds:
            return kind is None or kind in kinds
        module = weights[name].tensor.removesuffix(".weight")
        return any(f".{module}".endswith(f".{end}") for end in target_modules)

    return is_place
