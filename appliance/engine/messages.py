"""The messages between an engine and its clients. They have token ids only; text never enters the engine."""

import enum
from itertools import zip_longest
from typing import Annotated, Any, Literal, Self

import msgspec

from appliance.engine.adapter_messages import AdaptersServed, AdapterStats
from appliance.engine.expert_messages import ExpertStats
from appliance.engine.extension_messages import ExtensionCall
from appliance.engine.graph_messages import GraphStats
from appliance.engine.pause_messages import PauseMode
from appliance.engine.prompt_embeds import PromptEmbeds
from appliance.engine.sleep_messages import SleepLevel, SleepStats, SleepTag
from appliance.engine.speculation_messages import SpeculationStats
from appliance.engine.swap_messages import SwapStats
from appliance.engine.time_messages import RequestTimes
from appliance.engine.weight_messages import Change, WeightStats
from appliance.plan.types import MODEL_METHODS, STAGE_METHODS, EnginePlan, SpeculationPlan


class ProcessorCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A logits processor by its dotted name: the object itself, or the object that it constructs from the arguments."""

    qualname: str
    is_constructor: bool = False
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The sampling parameters of one request. `catalog.sampling` has the bounds; `validate_sampling` checks them."""

    n: int = 1
    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 keeps all
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logit_bias: dict[int, float] = {}
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()  # token sequences whose last token is forbidden after the others
    logprobs: int | None = None  # k most likely beside the sampled one; -1 is the whole vocabulary
    prompt_logprobs: int | None = None
    logits_processors: tuple[ProcessorCall, ...] = ()


class Constraint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A constraint on the answer. `engine.grammar` compiles it; `validate_constraint` bounds its size.

    json_schema: `source` is a JSON Schema as text. regex: the whole answer matches it. choice: a JSON list of texts;
    the answer is one of them. lark, gbnf: a context-free grammar in that notation. tags: structural tags as JSON
    (TagRules), text in which tagged parts follow schemas. calls: tool calls or an answer, as JSON (CallsOrAnswer).
    """

    kind: Literal["json_schema", "regex", "choice", "lark", "gbnf", "tags", "calls"]
    source: str
    field: str  # the request's field that errors name
    whitespace: str | None = None  # a regex for the gaps in JSON; None is up to 64 of JSON's own, "" is none
    after: str | None = None  # the constraint applies only after this text; before it, output is free
    places: dict[str, str] = {}  # path of a part of the source -> the request's field that it comes from

    def field_of(self, path: str) -> str:
        """Returns the request's field to blame for the part of the source at `path`."""
        part = max((each for each in self.places if path.startswith(each)), key=len, default=None)
        return self.field + path if part is None else self.places[part] + path[len(part) :]


class Vocabulary(msgspec.Struct, frozen=True, kw_only=True, tag="vocabulary"):
    """The tokenizer, needed before the first request with a constraint. Later ones are ignored."""

    tokenizer: str  # a tokenizer.json
    eos_token_ids: tuple[int, ...]


class SpeculationCaps(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of speculation that can change live.

    num_tokens: of one draft, at most. adaptive: as many drafts are verified as pay; else all. disable_by_batch_size:
    none while more sequences decode. looks_up: some method finds its drafts within a step, without a model.
    model_method: the method of which a model or a head drafts between steps; model_share: the time of its decode, as a
    share of that of the model that it drafts for, before any was measured; model_reach: the tokens that a head reads of
    a row at most, when it is behind; model_tokens: those of one draft of it, at most.
    """

    enabled: bool = True
    num_tokens: Annotated[int, msgspec.Meta(ge=1)]
    adaptive: bool = True
    disable_by_batch_size: Annotated[int, msgspec.Meta(ge=1)] | None = None
    looks_up: bool = True
    model_method: str | None = None
    model_share: float = 0.0
    model_reach: int = 0
    model_tokens: int | None = None

    @classmethod
    def of(cls, plan: SpeculationPlan | None) -> Self | None:
        if plan is None:
            return None
        method = next((method for method in plan.methods if method in MODEL_METHODS), None)
        reach = 0 if plan.draft_model is None else plan.draft_model.num_kept_states
        return cls(
            enabled=plan.enabled,
            num_tokens=plan.num_tokens,
            adaptive=plan.adaptive,
            disable_by_batch_size=plan.disable_by_batch_size,
            looks_up=any(method not in MODEL_METHODS for method in plan.methods),
            model_method=method,
            model_share=0.0 if plan.draft_model is None else plan.draft_model.share,
            model_reach=min(reach, 1) if method in STAGE_METHODS else reach,
            model_tokens=None if plan.draft_model is None else plan.draft_model.num_tokens,
        )


class SchedulerCaps(msgspec.Struct, frozen=True, kw_only=True):
    """The scheduler's limits that no array size depends on, so that they can change live (see SchedulerConfig)."""

    max_num_partial_prefills: Annotated[int, msgspec.Meta(ge=1)]
    max_long_partial_prefills: Annotated[int, msgspec.Meta(ge=1)]
    long_prefill_token_threshold: Annotated[int, msgspec.Meta(ge=0)]
    max_waiting: Annotated[int, msgspec.Meta(ge=1)] | None
    speculation: SpeculationCaps | None = None

    @classmethod
    def of(cls, plan: EnginePlan) -> Self:
        scheduler = plan.scheduler
        return cls(
            max_num_partial_prefills=scheduler.max_num_partial_prefills,
            max_long_partial_prefills=scheduler.max_long_partial_prefills,
            long_prefill_token_threshold=scheduler.long_prefill_token_threshold,
            max_waiting=scheduler.max_waiting,
            speculation=SpeculationCaps.of(plan.speculation),
        )


class LiveSettings(msgspec.Struct, frozen=True, kw_only=True, tag="settings"):
    """The settings that may change in a running engine. They apply from the next message and step on."""

    scheduler: SchedulerCaps
    max_n: Annotated[int, msgspec.Meta(ge=1)]
    max_logprobs: Annotated[int, msgspec.Meta(ge=-1)]
    log_level: str | None  # None: the logging configuration file decides
    collects_parts: bool = False  # the seconds of the engine's parts, of each request

    @classmethod
    def of(cls, plan: EnginePlan) -> Self:
        return cls(
            scheduler=SchedulerCaps.of(plan),
            max_n=plan.serving.limits.max_n,
            max_logprobs=plan.model.max_logprobs,
            log_level=plan.serving.logs.level if plan.serving.logs.config_file is None else None,
            collects_parts=plan.serving.has_detailed_traces,
        )


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """Makes a client known: it gets boot events and heartbeats from now on. Any other message does the same."""


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True, tag="generate", omit_defaults=True):
    """A prompt that the engine continues; if its model pools, the answer is a vector, and nothing is sampled.

    second_segment: the first token whose type is 1, of a model whose tokens have types.
    """

    request_id: str  # unique among the open requests of one client
    prompt_token_ids: list[int]
    sampling: SamplingParams
    constraint: Constraint | None = None
    eos_token_ids: tuple[int, ...] = ()
    priority: int = 0  # lower is sooner; only under the priority policy
    cache_salt: str | None = None
    arrival_time: float = 0.0  # seconds of the client's wall clock
    second_segment: int | None = None
    is_streamed: bool = True  # the client reads tokens as they come, so that steps are kept short
    adapter: str | None = None  # the name of a served adapter; None: the model alone
    adapter_scale: float | None = None  # in place of the adapter's own; 0 is the model alone
    stacked: tuple[tuple[str, float | None], ...] = ()  # further adapters that add to the first, and scales as its own
    prompt_embeds: PromptEmbeds | None = None  # of the first tokens, whose ids are 0 and of no account


class AbortRequest(msgspec.Struct, frozen=True, tag="abort", omit_defaults=True):
    """Ends requests, or only sequence `index` of each. Requests that are unknown or have ended are ignored."""

    request_ids: list[str]
    index: int | None = None


UtilityMethod = Literal[
    "boot_report", "stats", "reset_prefix_cache", "drain", "shutdown", "start_profile", "stop_profile", "sleep",
    "wake_up", "call_extension", "pause", "resume",
]  # fmt: skip


class UtilityRequest(msgspec.Struct, frozen=True, kw_only=True, tag="utility"):
    """A call that is answered once.

    boot_report: a BootReport. stats: EngineStats. reset_prefix_cache: true, or false while any block is used;
    with `preempts`, what runs gives its blocks back first. drain: true once every open request has ended; new ones are
    refused meanwhile, and those that a pause holds back fail. shutdown: true, then the engine ends.
    start_profile: true; traced: with a trace of each step. stop_profile: an EngineProfile, or null when none ran.
    sleep: a SleepStats; open requests are aborted; level 1 keeps the weights on the host, 2 nothing. wake_up: a
    SleepStats; tags: what comes back, all without any. call_extension: a list of
    ExtensionAnswer, of each rank, to `call`. pause: true once no request runs: they end as `mode` says, and new ones
    wait until `resume`, which is answered by true. clears_cache: prefixes are forgotten once no request is open.
    """

    call_id: str
    method: UtilityMethod
    level: SleepLevel = 1
    tags: tuple[SleepTag, ...] = ()
    traced: bool = False
    call: ExtensionCall | None = None
    preempts: bool = False
    mode: PauseMode = "abort"
    clears_cache: bool = False


EngineMessage = Hello | Vocabulary | LiveSettings | GenerateRequest | Change | AbortRequest | UtilityRequest


class FinishReason(enum.StrEnum):
    STOP = "stop"  # end of sequence, a stop token (see stop_token_id), or a constraint that is complete
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class ErrorKind(enum.StrEnum):
    """The kind of a sequence's error, by which a front end chooses the status code."""

    INVALID = "invalid"  # the request is wrong: 400
    NOT_FOUND = "not_found"  # it names an adapter that is not served: 404
    OVERLOADED = "overloaded"  # too many wait: 429
    UNAVAILABLE = "unavailable"  # draining or dead: 503
    INTERNAL = "internal"  # a fault of ours: 500


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities at one position: the chosen token first, then the k most likely in order."""

    token_ids: list[int]
    logprobs: list[float]
    rank: int  # of the chosen token, from 1


class DraftCounts(msgspec.Struct, frozen=True, array_like=True):
    """What became of the drafts of one sequence. histogram[i]: the drafts of which i tokens were accepted."""

    draft_tokens: int = 0
    accepted_tokens: int = 0
    histogram: tuple[int, ...] = ()

    @property
    def drafts(self) -> int:
        return sum(self.histogram)

    def with_draft(self, num_tokens: int, num_accepted: int) -> "DraftCounts":
        """Returns the counts with one more draft."""
        histogram = [*self.histogram, *[0] * (num_accepted + 1 - len(self.histogram))]
        histogram[num_accepted] += 1
        return DraftCounts(self.draft_tokens + num_tokens, self.accepted_tokens + num_accepted, tuple(histogram))

    def __add__(self, other: "DraftCounts") -> "DraftCounts":
        pairs = zip_longest(self.histogram, other.histogram, fillvalue=0)
        return DraftCounts(
            self.draft_tokens + other.draft_tokens,
            self.accepted_tokens + other.accepted_tokens,
            tuple(one + another for one, another in pairs),
        )


class SequenceOutput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The tokens and results of one sequence (`index` < n) of a request since its last output."""

    request_id: str
    index: int = 0
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None  # once, with the first output of index 0
    num_cached_tokens: int = 0  # prompt tokens served from the prefix cache when the sequence was admitted
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    vector: bytes | None = None  # f32, little-endian: of the sequence, or one of each token behind the other
    error: str | None = None
    error_kind: ErrorKind | None = None
    error_field: str | None = None  # the field of the request to blame, if any
    times: RequestTimes | None = None  # with the output that ends the request
    drafts: DraftCounts | None = None  # so far: with outputs that changed them, and the last


STEP_TOKEN_BOUNDS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot after a step. Counters are since the start."""

    time: float
    num_running: int
    num_waiting: int
    num_blocks_used: int
    num_blocks_total: int
    blocks_used_by_group: tuple[int, ...] = ()  # by group of caches with one reach
    num_snapshots_kept: int = 0  # of recurrent states
    num_blocks_touched: int = 0  # blocks with resident memory; the rest of the cache costs no memory yet
    num_steps: int
    prompt_tokens: int
    generation_tokens: int
    prefix_queries: int  # tokens
    prefix_hits: int  # tokens
    num_preemptions: int
    num_policy_faults: int = 0  # steps for which a scheduling policy of the operator's own gave no order
    step_tokens: int = 0  # tokens that steps computed
    step_sizes: tuple[int, ...] = ()  # steps by size: one count for each of STEP_TOKEN_BOUNDS, and one above
    prompt_tokens_per_s: float = 0.0  # prefill speed beside the current decodes; 0 before any was measured
    speculation: SpeculationStats | None = None  # None: the plan has none
    swap: SwapStats | None = None  # None: preempted sequences are computed again
    adapters: AdapterStats | None = None  # None: there are no places for any
    graphs: GraphStats | None = None  # None: none are planned
    sleep: SleepStats | None = None  # None: it cannot sleep
    weights: WeightStats | None = None  # None: they cannot be replaced
    pause: PauseMode | None = None  # None: there is none
    experts: ExpertStats | None = None  # None: they stay where they are


class OutputBatch(msgspec.Struct, frozen=True, tag="outputs"):
    outputs: list[SequenceOutput]
    stats: EngineStats | None = None


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    """A heartbeat is sent during steps too, to tell busy from hung: a hung engine's step_seconds keeps growing."""

    time: float
    step: int
    step_seconds: float = 0.0  # for how long the current step has run; 0 between steps
    is_paused: bool = False


class BootPhase(msgspec.Struct, frozen=True, kw_only=True, tag="boot"):
    """A phase of the start began, made progress or ended."""

    name: str
    seconds: float  # in this phase so far
    done: int = 0
    total: int = 0  # 0 when unknown
    ended: bool = False


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The engine takes requests. `report` is the BootReport. Sent to each client once, and again on each Hello."""

    report: msgspec.Raw


class Fatal(msgspec.Struct, frozen=True, tag="fatal"):
    """The engine is about to exit; every open request has been failed. is_lasting: started again, it would fail in the
    same way, until somebody mends what `error` names."""

    error: str
    is_lasting: bool = False


class UtilityResult(msgspec.Struct, frozen=True, kw_only=True, tag="result"):
    call_id: str
    value: msgspec.Raw = msgspec.Raw(b"\xc0")  # msgpack null
    error: str | None = None


class BadMessage(msgspec.Struct, frozen=True, tag="bad_message"):
    """A message could not be read; nothing was done."""

    error: str


EngineEvent = OutputBatch | Heartbeat | BootPhase | Ready | Fatal | AdaptersServed | UtilityResult | BadMessage
