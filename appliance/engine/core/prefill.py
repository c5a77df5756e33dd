"""The rules for how much of a prompt runs in a step: the token budget and the limits on partial prefills."""

from appliance.engine.core.building import StepBuilder
from appliance.engine.core.config import SchedulerConfig
from appliance.engine.core.sequence import Sequence


class PrefillRules:
    """A prompt is long when it has more tokens than long_prefill_token_threshold (0: no prompt is long).

    - At most max_num_partial_prefills prompts are left unfinished by a step; they share its budget evenly.
    - Of these at most max_long_partial_prefills are long; other long ones wait and let shorter ones pass.
    - A long prompt takes at most long_prefill_token_threshold tokens of a step.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config

    def use(self, config: SchedulerConfig) -> None:
        self._config = config

    @property
    def is_one_by_one(self) -> bool:
        """Returns whether a long prompt runs to its end before any later prompt starts."""
        config = self._config
        takes_all = config.max_num_partial_prefills == 1 and config.long_prefill_token_threshold == 0
        return takes_all and config.policy == "fcfs"

    def shares(self, num_candidates: int) -> int:
        return min(self._config.max_num_partial_prefills, num_candidates)

    def is_long(self, sequence: Sequence) -> bool:
        return 0 < self._config.long_prefill_token_threshold < sequence.num_prompt

    def length(self, sequence: Sequence, num_computed: int, step: StepBuilder) -> int:
        """Returns the tokens to compute in this step; 0 when none can be."""
        remaining = len(sequence.tokens) - num_computed
        room = min(step.budget, step.logits) if step.pools_all else step.budget
        if not self._config.chunked_prefill and remaining > room:
            return 0
        length = min(remaining, step.budget)
        if self._config.chunked_prefill:
            if self.is_long(sequence):
                length = min(length, self._config.long_prefill_token_threshold)
            if step.shares > 1:
                length = min(length, -(-step.budget // step.shares))
        if sequence.prompt_logprobs_left is not None:
            length = min(length, step.logits)
        elif length == remaining and step.logits == 0:
            length = 0
        return length

    def longest_chunk(self, sequence: Sequence, num_computed: int) -> int:
        """Returns the most tokens of the sequence that any later step may compute."""
        config, remaining = self._config, len(sequence.tokens) - num_computed
        if not config.chunked_prefill:
            return remaining
        most = config.max_num_batched_tokens
        return min(remaining, most, config.long_prefill_token_threshold if self.is_long(sequence) else most)

    def may_stay_partial(self, sequence: Sequence, end: int, step: StepBuilder) -> bool:
        return end == len(sequence.tokens) or step.num_partials < self._config.max_num_partial_prefills

    def must_let_pass(self, sequence: Sequence, step: StepBuilder) -> bool:
        """Returns whether a long prompt has to wait while shorter, later ones go first."""
        return self.is_long(sequence) and step.num_long_partials >= self._config.max_long_partial_prefills

    def count(self, sequence: Sequence, step: StepBuilder) -> None:
        """Counts a prompt that was considered in this step."""
        step.shares = max(0, step.shares - 1)
        if sequence.num_computed < len(sequence.tokens):
            step.num_partials += 1
            step.num_long_partials += self.is_long(sequence)
