"""Counters of a scheduler since its start."""

from bisect import bisect_left
from dataclasses import dataclass, field

from appliance.engine.messages import STEP_TOKEN_BOUNDS


@dataclass(slots=True)
class Counters:
    """Counts of steps and tokens. `step_sizes`: steps by size, one for each of STEP_TOKEN_BOUNDS and one above."""

    num_steps: int = 0
    step_tokens: int = 0
    step_sizes: list[int] = field(default_factory=lambda: [0] * (len(STEP_TOKEN_BOUNDS) + 1))
    prompt_tokens: int = 0
    generation_tokens: int = 0

    def count_step(self, num_tokens: int) -> None:
        self.num_steps += 1
        self.step_tokens += num_tokens
        self.step_sizes[bisect_left(STEP_TOKEN_BOUNDS, num_tokens)] += 1
