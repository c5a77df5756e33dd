"""StepPlan and StepResult: the values that cross between the scheduler and the runner."""

from collections.abc import Collection

import msgspec

from appliance.engine.grammar.interface import Grammar
from appliance.engine.messages import ErrorKind, SamplingParams, TokenLogprobs
from appliance.engine.prompt_embeds import PromptEmbeds


class NewRow(msgspec.Struct, frozen=True):
    """A sequence that takes a row of the runner's persistent state this step (first time, or after preemption)."""

    row: int
    sequence_id: int
    token_ids: list[int]  # all known tokens: the prompt, then the generated ones; the runner copies them
    num_prompt_tokens: int
    sampling: SamplingParams
    eos_token_ids: tuple[int, ...]
    seed: int
    prompt_logprobs: int | None  # requested and not delivered yet
    grammar: Grammar | None = None
    second_segment: int | None = None  # the first token whose type is 1
    drafts_salt: str | None = None  # drafts come from no answer of another salt
    adapter_slot: int = -1  # of the sequence's adapter; negative: none
    adapter_scale: float = 1.0
    embeds: PromptEmbeds | None = None  # of the first tokens, whose ids are of no account


class DraftTokens(msgspec.Struct, frozen=True):
    """Tokens that a drafter proposes to come next. `strength` is the drafter's own class of how sure it is, from 0: of
    one method, drafts of one class are accepted about equally often."""

    token_ids: list[int]
    method: str
    strength: int = 0

    def cut(self, count: int) -> "DraftTokens":
        """Returns the draft of the first `count` tokens."""
        return self if count == len(self.token_ids) else DraftTokens(self.token_ids[:count], self.method, self.strength)


class StateMoves(msgspec.Struct, frozen=True):
    """Snapshots of recurrent states that a chunk uses.

    resumes_from: the slot with the states before its first token; None if these are the row's own. leaves: for each
    snapshot that it leaves, how many tokens of the sequence come before it, and its slot; in order.
    """

    resumes_from: int | None
    leaves: tuple[tuple[int, int], ...]


class Chunk(msgspec.Struct, frozen=True):
    """`length` tokens of one row from position `start`.

    Positions below `write_start` are in the cache already (a full prefix hit, a fork): they run for their logits and
    are not stored again. `new_blocks` are appended to the row's block tables before the chunk runs: as many for each
    group of caches, or nothing at all. `sample` is set when the chunk reaches the last known token. `is_decode`: the
    prompt has run, so the chunk continues an answer; its tokens were sampled, or forced, or are drafts. The last
    tokens are those of `draft`, if there is one: each counts only if the model samples the same. `states`: None if it
    begins with its row's states and leaves no snapshots.
    """

    row: int
    start: int
    length: int
    write_start: int
    new_blocks: tuple[tuple[int, ...], ...]
    sample: bool
    is_decode: bool = False
    draft: DraftTokens | None = None
    states: StateMoves | None = None

    @property
    def num_drafts(self) -> int:
        return 0 if self.draft is None else len(self.draft.token_ids)


class BlockMove(msgspec.Struct, frozen=True):
    """What moves between a row's cache and host memory: block blocks[i] lies at place places[i] there. A state lies at
    all of state_places together, in this order; `state` is its slot, None in a model that has none."""

    row: int
    blocks: tuple[int, ...]
    places: tuple[int, ...]
    state: int | None = None
    state_places: tuple[int, ...] = ()

    @property
    def num_places(self) -> int:
        return len(self.places) + len(self.state_places)


class Moved(msgspec.Struct, frozen=True):
    """What the moves of a step took: places of host memory, and seconds. unloaded: rows whose blocks came back other
    than they were stored; nothing of these was loaded."""

    num_stored: int = 0
    store_s: float = 0.0
    num_loaded: int = 0
    load_s: float = 0.0
    unloaded: frozenset[int] = frozenset()


class StepPlan(msgspec.Struct, frozen=True):
    """One step. Order of work: stores, loads, freed_rows, adapter_puts, new_rows, block_copies, chunks.

    goes_on: unless a token ends a sequence or a message comes in, the next step decodes one more token of each row, and
    has blocks for it. So it may begin before it is planned.
    most_drafts: the longest draft of a row that the next step may take; 0: none is wanted.
    drafts_follow: a model drafts before the next step is planned, so that step cannot begin early.
    stores: of sequences that were preempted, before their blocks are used again. loads: of sequences that come back.
    """

    step: int
    freed_rows: tuple[int, ...]
    new_rows: tuple[NewRow, ...]
    block_copies: tuple[tuple[int, int], ...]  # (source, destination) whole blocks
    chunks: tuple[Chunk, ...]
    num_tokens: int
    goes_on: bool = False
    most_drafts: int = 0
    adapter_puts: tuple[tuple[int, str], ...] = ()  # (slot, digest of the adapter), into slots that no row has
    drafts_follow: bool = False
    stores: tuple[BlockMove, ...] = ()
    loads: tuple[BlockMove, ...] = ()

    def of(self, chunks: "tuple[Chunk, ...]") -> "StepPlan":
        """Returns the step that runs only these chunks."""
        num_tokens = sum(chunk.length for chunk in chunks)
        return msgspec.structs.replace(self, chunks=chunks, num_tokens=num_tokens, goes_on=False)

    def without(self, rows: Collection[int]) -> "StepPlan":
        """Returns the step without the chunks of these rows."""
        return self.of(tuple(chunk for chunk in self.chunks if chunk.row not in rows))


class RowError(msgspec.Struct, frozen=True):
    """Why one row failed, and whether its request is to blame."""

    kind: ErrorKind
    reason: str


class StepResult(msgspec.Struct, frozen=True):
    """The results of a step: a list of tokens for every chunk that samples; dicts for values that few rows have.

    tokens: the tokens of each chunk that samples, in the plan's order; of a row in `errors`, those before it failed.
    First come the drafts that the model accepts, then the sampled token, then forced tokens, for which the row's
    grammar leaves no choice, so that no step needs to sample them.
    logprobs: of each token; a row that has them has no forced tokens.
    drafts: for a row's next chunk, one of each drafter that has one; the scheduler takes the first tokens of one.
    began_early: the step began as soon as the one before it had its tokens.
    moved: what its moves took; None if it had none. Rows that were not loaded are in `errors` as well.
    """

    step: int
    tokens: list[list[int]]
    logprobs: dict[int, list[TokenLogprobs]] = {}  # by row
    prompt_logprobs: dict[int, list[TokenLogprobs]] = {}  # by row, for this chunk's prompt positions from `start` + 1
    errors: dict[int, RowError] = {}  # by row; that row alone failed
    drafts: dict[int, list[DraftTokens]] = {}  # by row
    vectors: dict[int, bytes] = {}  # by row, of a model that pools, in place of tokens
    completed: frozenset[int] = frozenset()  # rows whose grammar allows nothing more
    began_early: bool = False
    moved: Moved | None = None

    @property
    def moved_s(self) -> float:
        """The seconds of the step in which nothing was computed."""
        return 0.0 if self.moved is None else self.moved.store_s + self.moved.load_s

    @property
    def unloaded(self) -> frozenset[int]:
        """The rows whose blocks could not be loaded: their tokens are to be computed again."""
        return frozenset() if self.moved is None else self.moved.unloaded


class DraftWish(msgspec.Struct, frozen=True):
    """What a model is to draft between two steps: up to `num_tokens` tokens for each of the rows.

    most_behind: of rows of which the model has read less than is known, as many tokens may run now, of all together.
    """

    rows: tuple[int, ...]
    num_tokens: int
    most_behind: int


class Drafted(msgspec.Struct, frozen=True):
    """What a model drafted, and what it ran for that.

    drafts: by row; a row may have none. read: by row, how many tokens of it the model has read now; rows that it cannot
    follow are missing. num_passes: how often the model ran. num_behind: tokens that ran only because rows were behind.
    """

    drafts: dict[int, DraftTokens] = {}
    read: dict[int, int] = {}
    num_passes: int = 0
    num_behind: int = 0
