"""A group whose ranks are stages of consecutive layers: while one runs a step, those before it run later ones."""

import numpy as np

from appliance.engine.ranks.group import RankGroup
from appliance.engine.ranks.mail import StageMail
from appliance.engine.ranks.stage_links import LeaderLinks
from appliance.kernels.interface import FewLogits, StepInputs
from appliance.kernels.logits import HostLogits, Logits
from appliance.kernels.ranks import RankError


class StagedGroup(RankGroup):
    """The leader is in the first stage. It runs its share of a step and then tells the later stages, which run it in
    their turn; the last one hands the logits back. No later stage hears of a step that the first one refuses."""

    _last_kept: np.ndarray | None = None

    @property
    def num_stages(self) -> int:
        stage = self._followers.share.stage
        assert stage is not None, "the plan has stages"
        return len(stage.layers)

    @property
    def early_rows(self) -> int:
        return 0  # later steps begin while this one is in other stages

    @property
    def few_logits(self) -> FewLogits | None:
        """The head is in the last stage, and so is what screens it."""
        return self._followers.last_few_logits

    def run(self, inputs: StepInputs) -> Logits:
        return self.finish(self.begin(inputs))

    def begin(self, inputs: StepInputs) -> int:
        told = self._told(inputs)
        self._followers.send_beside(told)
        self._ran(inputs)
        self._followers.send_behind(told)
        return told.number

    def finish(self, number: int) -> Logits:
        mail = self._followers.share.mail
        assert isinstance(mail, StageMail | LeaderLinks), "the plan has stages"
        try:
            logits, self._last_kept = mail.take_back(number)
        except RankError as error:
            raise self._lost(error) from error
        return HostLogits(logits)

    def kept(self) -> np.ndarray:
        assert self._last_kept is not None, "the program keeps rows"
        return self._last_kept
