"""The decoder of a planned model: its program, and what of the checkpoint each of its weights is made of."""

from collections.abc import Mapping
from typing import NamedTuple, Self

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.draft_spec import KeptStates
from appliance.layers.program import CompiledDecoder
from appliance.loading.inventory import InventoryItem, take_inventory
from appliance.models.describe import Described, describe
from appliance.plan.types import EnginePlan, PrecisionPlan


class PlannedDecoder(NamedTuple):
    """compiled: with weights joined where the planned forms are alike; described: with as many joined as there are."""

    described: Described
    inventory: Mapping[str, InventoryItem]
    compiled: CompiledDecoder

    @classmethod
    def of(cls, described: Described, facts: ModelFacts, precision: PrecisionPlan) -> Self:
        """Raises WeightError like `take_inventory`."""
        inventory = take_inventory(described, facts, precision)
        return cls(
            described, inventory, described.stored_as({name: item.form for name, item in inventory.items()}).compiled
        )


def planned_decoder(plan: EnginePlan, facts: ModelFacts) -> PlannedDecoder:
    """Returns the decoder of a planned model. Raises ModelError or WeightError."""
    kept = plan.model.kept_layers
    keeps = None if kept is None else KeptStates(kept)
    length, pooling = plan.model.max_model_len, plan.model.pooling_choice
    described = describe(facts, length, pooling, keeps, takes_embeds=plan.model.takes_embeds)
    return PlannedDecoder.of(described, facts, plan.precision)
