"""The places of a model for adapters: which of its linear maps they may change, and by which names."""

from collections.abc import Callable, Collection, Mapping

from msgspec.structs import replace

from appliance.checkpoint.facts import ModelFacts, StoredConventions
from appliance.layers.spec import WeightSource
from appliance.models.describe import build_decoder


def trained_weights(facts: ModelFacts, max_model_len: int) -> Mapping[str, WeightSource]:
    """Returns where transformers keeps each logical weight, because adapters are trained there: the weights may lie
    elsewhere in the model's own checkpoint. Where the value heads of a delta rule lie in another order than there, its
    weights are left out: adapters have no place there. Raises like build_decoder."""
    sources = build_decoder(replace(facts, stored=StoredConventions()), max_model_len).weights
    if facts.stored.tiled_value_heads:
        return {name: source for name, source in sources.items() if ".delta." not in name}
    return sources


def place_filter(weights: Mapping[str, WeightSource], target_modules: Collection[str] | None) -> Callable[[str], bool]:
    """Returns what tells whether a logical weight has a place for adapters: those of linear maps of layers that
    `target_modules` names by the end of the module's name; None names all but routers."""

    def is_place(name: str) -> bool:
        if not name.startswith("layers.") or name.endswith(".router") or name not in weights:
            return False
        module = weights[name].tensor.removesuffix(".weight")
        return target_modules is None or any(f".{module}".endswith(f".{end}") for end in target_modules)

    return is_place
