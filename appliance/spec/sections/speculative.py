"""`speculative`: tokens proposed ahead and checked by the model."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le

from appliance.spec.fields import Section, field
from appliance.spec.scalars import (
    Auto,
    Count,
    DottedPath,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Size,
    Text,
    Words,
)

Method = Literal["ngram", "suffix", "custom_class", "draft_model", "eagle", "eagle3", "medusa", "mlp_speculator", "mtp"]
Probability = Annotated[float, Ge(0), Le(1), Words("a number from 0 to 1")]


class SpeculativeSection(Section):
    """Proposals checked by the model."""

    doc: ClassVar[str] = (
        "Tokens proposed ahead and checked by the model in one step. Answers are those without it, to the token."
    )

    enabled: bool = field(True, "Propose tokens. `false` turns it off without a restart.", apply="live")
    method: Auto[Method | list[Method]] = field(
        "auto",
        "Who proposes; of several, the better one a step.",
        auto="suffix; draft_model where a model is named",
    )
    drafter: DottedPath | None = field(
        None,
        "Of the method custom_class: a function of a list of token ids and of how many may be proposed, which returns"
        " token ids; needs decoding.trust_plugins.",
    )
    num_tokens: Auto[PositiveInt] = field(
        "auto",
        "Tokens proposed a step, at most; how many are, is decided each step (see adaptive).",
        auto="16, within max_num_draft_tokens",
        apply="live",
        vllm="num_speculative_tokens",
    )
    max_num_draft_tokens: Auto[PositiveInt] = field(
        "auto", "Tokens proposed in one step, over all requests. Each has a row of logits in memory.", auto="32"
    )
    num_draft_states: Auto[PositiveInt] = field(
        "auto",
        "Slots for the states before each draft, of models with recurrent states; a step needs two for each draft.",
        auto="16, within an eighth of the memory that is left",
    )
    adaptive: bool = field(
        True,
        "Check as many proposals as pay, by measured times and acceptance, perhaps none. `false`: check all.",
        apply="live",
        vllm="enable_adaptive_verification",
    )
    disable_by_batch_size: PositiveInt | None = field(
        None, "Off while more sequences than this are generated.", apply="live"
    )
    prompt_lookup_max: PositiveInt | None = field(
        None, "ngram: longest n-gram that is looked up. Default: 5, or prompt_lookup_min if that is more."
    )
    prompt_lookup_min: PositiveInt | None = field(
        None, "ngram: shortest n-gram that is looked up. Default: 3, or prompt_lookup_max if that is less."
    )
    suffix_decoding_max_tree_depth: PositiveInt = field(24, "suffix: tokens of the longest match.")
    suffix_decoding_max_cached_requests: NonNegativeInt = field(
        10000, "suffix: finished answers that are looked up, too; the oldest leave first."
    )
    suffix_decoding_cache_size: Size = field(64 << 20, "suffix: memory of finished answers.")
    suffix_decoding_max_spec_factor: PositiveFloat = field(
        1.0, "suffix: at most this many times as many tokens are proposed as match."
    )
    suffix_decoding_min_token_prob: Probability = field(
        0.1, "suffix: proposals end where their probability, by what followed before, falls below this."
    )
    model: Text | None = field(
        None,
        "draft_model: the smaller model, as model.source. eagle, eagle3, medusa, mlp_speculator: the head.",
        vllm="speculative_model",
    )
    revision: Text | None = field(None, "The branch, tag or commit of `model`.")
    quantization: Text | None = field(
        None, "draft_model: its quantization, as model.quantization. Default: what it says itself."
    )
    draft_kv_cache: Auto[Size] = field(
        "auto",
        "draft_model: memory of its cache; sequences that find no room in it are answered without its drafts.",
        auto="every sequence at full length, within an eighth of the memory that is left",
    )
    draft_tensor_parallel_size: PositiveInt | None = field(
        None, "draft_model: its ranks. It runs whole beside the first rank of the model, so there is one."
    )
    max_model_len: Count | None = field(
        None, "draft_model: its context; longer sequences are answered without its drafts. Default: the model's."
    )

    @property
    def methods(self) -> tuple[Method, ...]:
        """The methods that are asked for; what `auto` stands for is decided here."""
        if self.method == "auto":
            return ("suffix",) if self.model is None else ("draft_model",)
        return tuple(self.method) if isinstance(self.method, list) else (self.method,)
