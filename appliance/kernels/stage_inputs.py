"""What a stage of a program sees of a step."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from appliance.kernels.interface import StepInputs


class StageInputs(NamedTuple):
    """Makes the inputs of a stage of those of the whole program.

    groups: by number, the groups of caches that the stage has. places: the logical weights that adapters may change in
    it. The others say whether it has states, and the table of embeddings.
    """

    groups: tuple[int, ...]
    has_states: bool
    places: frozenset[str]
    embeds: bool

    def of(self, inputs: StepInputs, given: np.ndarray | None) -> StepInputs:
        """Returns the step of the stage. given: f32 [T, W], what the stage before handed on."""
        groups = list(self.groups)
        return replace(
            inputs,
            slot_mapping=inputs.slot_mapping[groups],
            block_tables=inputs.block_tables[groups],
            states=inputs.states if self.has_states else None,
            adapters=inputs.adapters if self.places else None,
            token_types=inputs.token_types if self.embeds else None,
            given=given,
            embeds=inputs.embeds if self.embeds else None,
        )
