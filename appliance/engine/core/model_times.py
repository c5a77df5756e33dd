"""The seconds that a drafting model takes, learnt from what it did; before that, presumed from those of the model."""

from appliance.engine.core.pace import Pace
from appliance.engine.core.times import TimesBySize, follow
from appliance.engine.step import Drafted, DraftWish

NEAR = 4  # tokens: a row that is no further behind, beside those of a draft, is read on with its next draft
CATCH_UP_S = 0.15  # of one step, to read what a row is behind, where no step has a target
FIRST_CATCH_UP = 64  # tokens, before their time is known


class ModelTimes:
    """share: the bytes that a pass reads, of those that a decode of the model reads."""

    def __init__(self, share: float, pace: Pace) -> None:
        self._share, self._pace = share, pace
        self._passes = TimesBySize()  # by number of rows
        self._token_s: float | None = None  # of a token that a row was behind
        self.seconds = 0.0
        self.num_passes = 0

    def learn(self, wish: DraftWish, drafted: Drafted, seconds: float) -> None:
        self.seconds += seconds
        self.num_passes += drafted.num_passes
        if not drafted.num_passes:
            return
        num_rows = len(wish.rows)
        if not drafted.num_behind:
            self._passes.learn(num_rows, seconds / drafted.num_passes)
        elif drafted.num_behind > NEAR:
            rest = max(0.0, seconds - drafted.num_passes * self.of_pass(num_rows))
            self._token_s = follow(self._token_s, rest / drafted.num_behind)

    def of_pass(self, num_rows: int) -> float:
        return self._passes.seconds(num_rows) or self._share * self._pace.decode_seconds(num_rows)

    def of_reading(self, num_behind: int) -> float:
        """Returns the seconds to read so many tokens that rows are behind."""
        return num_behind * (self._token_s or self._share * (self._pace.token_s or self._pace.decode_seconds(1) / NEAR))

    def most_behind(self, num_running: int) -> int:
        """Returns how many tokens that rows are behind may run before a step, so that the step still ends in time."""
        if not self._token_s:
            return FIRST_CATCH_UP
        target_s = self._pace.target_s or CATCH_UP_S
        room_s = max(target_s - self._pace.decode_seconds(num_running), target_s / 4)
        return max(FIRST_CATCH_UP // 4, int(room_s / self._token_s))
