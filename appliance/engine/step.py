"""StepPlan and StepResult: the values that cross between the scheduler and the runner."""

from dataclasses import dataclass

from appliance.engine.messages import SamplingParams, TokenLogprobs


@dataclass(frozen=True, slots=True)
class NewRow:
    """A sequence that takes a row of the runner's persistent state this step (first time, or after preemption)."""

    row: int
    sequence_id: int
    token_ids: tuple[int, ...]  # everything known so far: prompt, then generated
    num_prompt_tokens: int
    sampling: SamplingParams
    eos_token_ids: tuple[int, ...]
    seed: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """`length` tokens of one row from position `start`. `sample` when the chunk reaches the last known token."""

    row: int
    start: int
    length: int
    new_blocks: tuple[int, ...]  # appended to the row's block table before the chunk runs
    sample: bool


@dataclass(frozen=True, slots=True)
class StepPlan:
    step: int
    new_rows: tuple[NewRow, ...]
    chunks: tuple[Chunk, ...]
    freed_rows: tuple[int, ...]  # rows given up since the last step; processed before new_rows

    @property
    def num_tokens(self) -> int:
        return sum(chunk.length for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class RowResult:
    """What the model said for one chunk: a sampled token (None when it did not sample), and wanted logprobs."""

    row: int
    token_id: int | None
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    error: str | None = None  # this row alone failed


@dataclass(frozen=True, slots=True)
class StepResult:
    step: int
    rows: tuple[RowResult, ...]
