"""What the parts of an engine tell beside its scheduler."""

import msgspec

from appliance.engine.expert_messages import moving_of
from appliance.engine.idle import IdleWork
from appliance.engine.messages import EngineStats
from appliance.engine.pausing import Pausing
from appliance.engine.sleep import Sleep
from appliance.engine.weight_changes import WeightChanges


class Telling:
    """Adds to the statistics of each step, so what can be found once is."""

    def __init__(
        self,
        idle: IdleWork,
        sleep: Sleep | None,
        weights: WeightChanges | None,
        pausing: Pausing,
        executable: object,
    ) -> None:
        self._idle, self._sleep, self._weights, self._pausing = idle, sleep, weights, pausing
        self._moving = moving_of(executable)

    def added_to(self, stats: EngineStats) -> EngineStats:
        """Returns statistics of the scheduler with those of the other parts."""
        return msgspec.structs.replace(
            stats,
            graphs=self._idle.graphs,
            sleep=None if self._sleep is None else self._sleep.stats,
            experts=None if self._moving is None else self._moving.stats,
            weights=None if self._weights is None else self._weights.stats,
            pause=self._pausing.mode,
            num_waiting=stats.num_waiting + self._pausing.num_held,
        )
