"""The step plan that is being built."""

from appliance.engine.core.sequence import Request, Sequence
from appliance.engine.step import BlockMove, Chunk, DraftTokens, NewRow, StateMoves, StepPlan


class StepBuilder:
    """A step's remaining budget (`budget` tokens, `logits` rows of logits) and the chunks taken so far. pools_all: the
    row of every token is wanted."""

    __slots__ = (
        "block_copies", "budget", "chunks", "loads", "logits", "new_rows", "num_drafts", "num_going_on",
        "num_long_partials", "num_partials", "num_tokens", "pools_all", "shares",
    )  # fmt: skip

    def __init__(self, budget: int, logits: int, *, pools_all: bool = False) -> None:
        self.budget = budget
        self.logits = logits
        self.pools_all = pools_all
        self.num_tokens = 0
        self.num_drafts = 0
        self.num_going_on = 0  # decodes that will decode again and have a block for the next token
        self.shares = 0  # prefills that still share the budget, when several prompts may be prefilled at once
        self.num_partials = 0  # prompts that stay unfinished after this step
        self.num_long_partials = 0
        self.chunks: list[Chunk] = []
        self.new_rows: list[NewRow] = []
        self.block_copies: list[tuple[int, int]] = []
        self.loads: list[BlockMove] = []

    def append(
        self,
        sequence: Sequence,
        length: int,
        new_blocks: tuple[tuple[int, ...], ...],
        write_start: int | None = None,
        draft: DraftTokens | None = None,
        states: StateMoves | None = None,
    ) -> None:
        """Schedules the next `length` tokens of a running sequence, and a draft after the last one."""
        start = sequence.num_computed
        sample = start + length == len(sequence.tokens)
        num_drafts = 0
        if draft is not None:
            num_drafts = len(draft.token_ids)
            length += num_drafts
            self.num_drafts += num_drafts
        is_decode = sequence.has_run_prompt
        chunk = Chunk(sequence.row, start, length, write_start or start, new_blocks, sample, is_decode, draft, states)
        self.chunks.append(chunk)
        sequence.num_computed = start + length
        self.num_tokens += length
        self.budget -= length
        wants_all = self.pools_all or sequence.prompt_logprobs_left is not None
        self.logits -= length if wants_all else sample + num_drafts

    def append_row(self, sequence: Sequence) -> None:
        """Announces a sequence that has just taken its row."""
        message = sequence.request.message
        self.new_rows.append(
            NewRow(
                row=sequence.row,
                sequence_id=sequence.order,
                token_ids=sequence.tokens,
                num_prompt_tokens=sequence.num_prompt,
                sampling=message.sampling,
                eos_token_ids=message.eos_token_ids,
                seed=sequence.seed,
                prompt_logprobs=sequence.prompt_logprobs_left,
                grammar=sequence.request.grammar,
                second_segment=message.second_segment,
                drafts_salt=_drafts_salt(sequence.request),
                adapter_slot=sequence.adapter_slot,
                embeds=message.prompt_embeds,
                adapter_scale=1.0 if sequence.request.adapter is None else sequence.request.adapter.scale,
            )
        )

    def plan(
        self,
        step: int,
        freed_rows: tuple[int, ...],
        *,
        goes_on: bool,
        most_drafts: int = 0,
        adapter_puts: tuple[tuple[int, str], ...] = (),
        drafts_follow: bool = False,
        stores: tuple[BlockMove, ...] = (),
    ) -> StepPlan:
        return StepPlan(
            step=step,
            freed_rows=freed_rows,
            new_rows=tuple(self.new_rows),
            block_copies=tuple(self.block_copies),
            chunks=tuple(self.chunks),
            num_tokens=self.num_tokens,
            goes_on=goes_on,
            most_drafts=most_drafts,
            adapter_puts=adapter_puts,
            drafts_follow=drafts_follow,
            stores=stores,
            loads=tuple(self.loads),
        )


def _drafts_salt(request: Request) -> str | None:
    """Names the answers among which drafts are looked up: those of the same salt and the same adapter."""
    salt, adapter = request.message.cache_salt, request.adapter
    return salt if adapter is None else f"{adapter.namespace} {salt or ''}"
