"""The state of one sequence and of the request it belongs to."""

import enum

from appliance.engine.core.acceptance import OwnRates
from appliance.engine.core.adapter_slots import ServedAdapter
from appliance.engine.core.block_pool import BlockHash
from appliance.engine.core.policy import PolicyKey
from appliance.engine.core.swapped import Swapped
from appliance.engine.grammar.interface import Grammar
from appliance.engine.messages import DraftCounts, FinishReason, GenerateRequest, TokenLogprobs
from appliance.engine.refusal import RequestKey
from appliance.engine.step import DraftTokens, RowError
from appliance.engine.time_messages import PartSeconds, RequestTimes

NO_DRAFTS = DraftCounts()


class Status(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Request:
    """A request and its `n` sequences. The first is the leader, whose prompt blocks the others share."""

    __slots__ = (
        "adapter", "client", "decode_parts", "first_token_at", "grammar", "is_check", "message", "prefill_parts",
        "queued_at", "sequences", "started_at",
    )  # fmt: skip

    def __init__(
        self,
        client: bytes,
        message: GenerateRequest,
        grammar: Grammar | None = None,
        adapter: ServedAdapter | None = None,
    ) -> None:
        self.adapter = adapter
        self.is_check = False  # of an adapter, with one token: see AdapterChecks
        self.client = client
        self.message = message
        self.grammar = grammar
        self.sequences: list[Sequence] = []
        self.queued_at = 0.0
        self.started_at: float | None = None  # when its first step was scheduled
        self.first_token_at: float | None = None
        self.prefill_parts: PartSeconds | None = None  # of the steps that it ran in, where they are collected
        self.decode_parts: PartSeconds | None = None

    @property
    def key(self) -> RequestKey:
        return (self.client, self.message.request_id)

    def charge(self, step: PartSeconds) -> None:
        """Counts a step in which it ran, before the step's tokens are taken."""
        if self.first_token_at is None:
            self.prefill_parts = step if self.prefill_parts is None else self.prefill_parts + step
        else:
            self.decode_parts = step if self.decode_parts is None else self.decode_parts + step

    def times(self, now: float) -> RequestTimes:
        """Returns the times of a request that ends now."""
        if self.started_at is None:
            return RequestTimes(now - self.queued_at)
        if self.first_token_at is None:
            return RequestTimes(self.started_at - self.queued_at, prefill_parts=self.prefill_parts)
        queue_s, prefill_s = self.started_at - self.queued_at, self.first_token_at - self.started_at
        return RequestTimes(queue_s, prefill_s, now - self.first_token_at, self.prefill_parts, self.decode_parts)


class Sequence:
    """One token stream. `tokens` are the prompt and the generated tokens. `num_computed` tokens are in the KV cache, or
    will be when the step scheduled last has run; the drafts of that step count among them."""

    __slots__ = (
        "acceptance",
        "adapter_slot",
        "block_hashes",
        "boundaries",
        "draft",
        "draft_counts",
        "draft_slots",
        "failure",
        "has_run_prompt",
        "in_flight",
        "index",
        "is_spoiled",
        "key",
        "min_tokens",
        "num_blocks",
        "num_cached_tokens",
        "num_computed",
        "num_dropped",
        "num_passed",
        "num_prompt",
        "num_read",
        "num_registered",
        "order",
        "prompt_logprobs",
        "prompt_logprobs_left",
        "proposals",
        "request",
        "resumes_from",
        "row",
        "seed",
        "status",
        "stop_length",
        "swapped",
        "tables",
        "tokens",
    )

    def __init__(
        self, request: Request, index: int, *, order: int, key: PolicyKey, seed: int, max_sequence_len: int
    ) -> None:
        sampling = request.message.sampling
        self.request = request
        self.index = index
        self.order = order
        self.key = key
        self.seed = seed
        self.tokens = list(request.message.prompt_token_ids)
        self.num_prompt = len(self.tokens)
        self.stop_length = min(self.num_prompt + sampling.max_tokens, max_sequence_len)
        self.min_tokens = self.num_prompt + sampling.min_tokens
        self.status = Status.WAITING
        self.row = -1
        self.adapter_slot = -1  # while it runs
        self.num_passed = 0  # sequences with adapters that started before it while it waited for a slot
        self.num_computed = 0
        self.has_run_prompt = False  # True once the steps that compute the prompt have run
        self.in_flight = 0  # steps with a chunk of it that have begun and not ended; until then it keeps its row
        self.failure: RowError | None = None  # of one of these steps, while others have not ended
        self.is_spoiled = False  # one of these steps read what another row did not store
        self.proposals: list[DraftTokens] = []  # for its next chunk
        self.draft: DraftTokens | None = None  # the one that its next chunk should verify
        self.draft_slots: list[int] = []  # where its chunk leaves the states before each draft
        self.draft_counts = NO_DRAFTS
        self.num_read: int | None = 0  # tokens that a drafting model has read; None: it cannot follow this sequence
        self.acceptance: OwnRates = {}
        self.num_cached_tokens = 0
        self.tables: list[list[int]] = []  # a block table for each group of caches; none while it does not run
        self.num_blocks = 0  # in each table
        self.num_dropped: list[int] = []  # leading blocks of each table that were released
        self.block_hashes: list[BlockHash] = []
        self.num_registered = 0  # leading blocks of each table that were put into the prefix cache
        self.resumes_from: int | None = None  # the slot of states from which its next chunk begins; None: its row's
        self.boundaries: list[int] = []  # where its prompt has still to leave snapshots, as numbers of blocks
        self.swapped: Swapped | None = None  # what it has in host memory while it waits
        self.prompt_logprobs_left = sampling.prompt_logprobs if index == 0 else None
        self.prompt_logprobs: list[TokenLogprobs | None] = [None]

    @property
    def num_verified(self) -> int:
        """The tokens that are computed or scheduled, without drafts."""
        return min(self.num_computed, len(self.tokens))

    @property
    def leader(self) -> "Sequence":
        return self.request.sequences[0]

    @property
    def has_output(self) -> bool:
        return len(self.tokens) > self.num_prompt

    @property
    def is_streamed(self) -> bool:
        """A client reads the tokens as they come."""
        return self.request.message.is_streamed

    def finish_reason(self) -> tuple[FinishReason, int | None] | None:
        """Returns why the sequence ends with its last token, and the stop token that ended it; None if it goes on."""
        message = self.request.message
        token = self.tokens[-1]
        if len(self.tokens) >= self.min_tokens:
            if token in message.eos_token_ids and not message.sampling.ignore_eos:
                return FinishReason.STOP, None
            if token in message.sampling.stop_token_ids:
                return FinishReason.STOP, token
        if len(self.tokens) >= self.stop_length:
            return FinishReason.LENGTH, None
        return None
