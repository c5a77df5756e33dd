"""What a rank runs of a step: all of it, or the layers of its stage."""

from collections.abc import Mapping

import numpy as np

from appliance.engine.ranks.share import Parts, Share
from appliance.kernels.interface import Adapters, Executable, Keeping, StepInputs, WeightChange
from appliance.kernels.logits import Logits
from appliance.kernels.stage_inputs import StageInputs
from appliance.loading.moved_experts import MovedExperts


def own_changes(changes: Mapping[str, WeightChange], parts: Parts) -> dict[str, WeightChange]:
    """Returns what an adapter changes of a rank's rows, of weights of which it has any."""
    found: dict[str, WeightChange] = {}
    for name, change in changes.items():
        first, last = parts.get(name, (None, None))
        if first is None or last is None:
            found[name] = change
        elif first < last:
            found[name] = change.of_rows(first, last)
    return found


class StageShare:
    """The executable of a rank, and its place among the stages."""

    def __init__(
        self,
        executable: Executable,
        share: Share,
        sees: StageInputs | None,
        parts: Parts,
        experts: MovedExperts | None = None,
    ) -> None:
        """sees: None if there is one stage. experts: None if they stay where they are."""
        self.executable, self.experts, self._parts = executable, experts, parts
        self._sees, self._stage, self._mail, self._keeps = sees, share.stage, share.mail, share.keeps
        self._hands_on = share.ranks.rank == 0  # the ranks of a stage all know what it keeps

    def run(self, number: int, inputs: StepInputs) -> Logits:
        """Runs the rank's share of step `number`. Raises like Executable.run, and RankError."""
        if self._sees is None or self._mail is None:
            return self.executable.run(inputs)
        logits = self.executable.run(self._sees.of(inputs, self._mail.given(number, inputs)))
        if self._hands_on:
            self._hand_on(number, logits)
        return logits

    def put_adapter(self, slot: int, changes: Mapping[str, WeightChange]) -> None:
        """Puts what an adapter changes of the rank's own rows and layers into a slot."""
        if self._sees is not None:
            changes = {name: change for name, change in changes.items() if name in self._sees.places}
        if self._has_places:
            self._adapters.put_adapter(slot, own_changes(changes, self._parts))

    def drop_adapter(self, slot: int) -> None:
        if self._has_places:
            self._adapters.drop_adapter(slot)

    @property
    def _has_places(self) -> bool:
        return self._sees is None or bool(self._sees.places)

    @property
    def _adapters(self) -> Adapters:
        assert isinstance(self.executable, Adapters), "the plan has adapters"
        return self.executable

    def _hand_on(self, number: int, logits: Logits) -> None:
        assert self._mail is not None, "there are several stages"
        assert self._stage is not None, "there are several stages"
        if not self._stage.is_last:
            self._mail.hand_on(number, self._kept())
        else:
            self._mail.hand_back(number, logits.host(), self._kept() if self._keeps else None)

    def _kept(self) -> np.ndarray:
        assert isinstance(self.executable, Keeping), "its program keeps rows"
        return self.executable.kept()
