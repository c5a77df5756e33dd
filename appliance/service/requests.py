"""What a front end asks of the service, and what it gets back."""

from dataclasses import dataclass, field

from appliance.engine.messages import Constraint, DraftCounts, SamplingParams, TokenLogprobs
from appliance.engine.prompt_embeds import PromptEmbeds


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions:
    """Options that say how tokens become text, and which text ends a sequence.

    kept_special_tokens: shown although special tokens are skipped, for parsers that read the text.
    """

    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    kept_special_tokens: frozenset[str] = frozenset()
    spaces_between_special_tokens: bool = True
    detokenize: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRequest:
    """A tokenized prompt and everything that decides its answer."""

    request_id: str
    prompt_token_ids: list[int]
    prompt_embeds: PromptEmbeds | None = None  # of its first tokens, whose ids are 0 and of no account
    sampling: SamplingParams
    constraint: Constraint | None = None
    text: TextOptions = field(default_factory=TextOptions)
    priority: int = 0
    cache_salt: str | None = None
    adapter: str | None = None  # the name of a served adapter; None: the model alone
    adapter_scale: float | None = None  # in place of the adapter's own
    stacked: tuple[tuple[str, float | None], ...] = ()  # further adapters that add to the first
    second_segment: int | None = None  # where tokens of type 1 begin, in a model whose tokens have types

    @property
    def known_token_ids(self) -> list[int]:
        """The tokens of the prompt after those that are embeddings."""
        return self.prompt_token_ids if self.prompt_embeds is None else self.prompt_token_ids[len(self.prompt_embeds) :]


@dataclass(slots=True, kw_only=True)
class TextOutput:
    """One sequence has gained text and tokens. `text` holds no half character and no part of a stop string.

    stop_reason: the stop string, or the stop token's id when it is not the end of sequence; else None.
    """

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None  # once, with the first output of index 0
    num_cached_tokens: int = 0
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    vector: bytes | None = None  # f32, little-endian, of a model that pools
    drafts: DraftCounts | None = None  # so far; None where there is no news of them
