"""`lora` and `speculative`: adapters, and speculative decoding."""

from typing import ClassVar, Literal

from appliance.spec.fields import REQUIRED, Section, field
from appliance.spec.scalars import (
    Auto,
    Count,
    Fraction,
    ModelName,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Sha256,
    Text,
)


class AdapterSection(Section):
    """One adapter."""

    doc: ClassVar[str] = "One adapter; its name is a model id for clients."

    name: ModelName = field(REQUIRED, "What clients send as `model`.", apply="adapters")
    source: Text = field(REQUIRED, "A folder, or hf://owner/name.", apply="adapters", vllm="path")
    sha256: Sha256 | None = field(None, "Digest of the adapter's weights.", apply="adapters")
    revision: Text | None = field(None, "Branch, tag or commit.", apply="adapters")
    base_model_name: ModelName | None = field(None, "Reported as the adapter's parent.", apply="adapters")
    rank: PositiveInt | None = field(
        None, "Rank, when it is to be checked before the files are there.", apply="adapters"
    )


class LoraSection(Section):
    """Low-rank adapters."""

    doc: ClassVar[str] = "Low-rank adapters, served beside the base model."

    max_loras: PositiveInt = field(1, "Adapters of one batch; each has a preallocated slot.")
    max_rank: PositiveInt = field(16, "Rank of the slots.", vllm="max_lora_rank")
    max_cpu_loras: PositiveInt | None = field(
        None, "Adapters kept in host memory; at least max_loras. Default: max_loras."
    )
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = field(
        "auto", "Type of adapter weights.", auto="the base model's", vllm="lora_dtype"
    )
    bias: bool = field(False, "Use the adapters' biases.", vllm="enable_lora_bias")
    extra_vocab_size: NonNegativeInt = field(256, "Tokens an adapter may add.", vllm="lora_extra_vocab_size")
    fully_sharded: bool = field(False, "Shard all of the adapter maths over ranks.", vllm="fully_sharded_loras")
    adapters: list[AdapterSection] = field([], "The adapters that are served.", apply="adapters", vllm="lora_modules")
    default_mm_loras: dict[str, Text] = field(
        {}, "Adapter used whenever a modality is in the prompt.", apply="adapters"
    )
    allow_runtime_updating: bool = field(
        False, "Endpoints that load and unload adapters.", apply="live", vllm="allow_runtime_lora_updating"
    )


class SpeculativeSection(Section):
    """Proposals checked by the model."""

    doc: ClassVar[str] = "Tokens proposed ahead and checked by the model in one step."

    method: Auto[Literal["ngram", "draft_model", "eagle", "eagle3", "medusa", "mlp_speculator", "mtp", "suffix"]] = (
        field("auto", "Who proposes.", auto="from the draft model")
    )
    model: Text | None = field(None, "The draft model, as model.source.", vllm="speculative_model")
    revision: Text | None = field(None, "Branch, tag or commit of the draft model.")
    quantization: Text | None = field(None, "Quantization of the draft model. Default: what it says itself.")
    num_tokens: PositiveInt | None = field(
        None, "Tokens proposed a step; MLP speculators bring their own.", vllm="num_speculative_tokens"
    )
    draft_tensor_parallel_size: PositiveInt | None = field(None, "Ranks of the draft model.")
    max_model_len: Count | None = field(None, "Longer sequences are not speculated on.")
    disable_by_batch_size: PositiveInt | None = field(
        None, "Off for new requests when more than this are queued.", apply="live"
    )
    disable_mqa_scorer: bool = field(False, "Score by batch expansion.")
    disable_logprobs: bool = field(
        True, "No log-probabilities while speculating.", vllm="disable_logprobs_during_spec_decoding"
    )
    prompt_lookup_max: PositiveInt | None = field(
        None, "Longest n-gram that is looked up. Default: 5.", vllm="ngram_prompt_lookup_max"
    )
    prompt_lookup_min: PositiveInt | None = field(
        None, "Shortest n-gram that is looked up. Default: prompt_lookup_max.", vllm="ngram_prompt_lookup_min"
    )
    acceptance_method: Literal["rejection_sampler", "typical_acceptance_sampler"] = field(
        "rejection_sampler",
        "Rejection keeps the model's distribution exactly; typical acceptance does not.",
        vllm="spec_decoding_acceptance_method",
    )
    posterior_threshold: Fraction = field(
        0.09,
        "Typical acceptance: lower bound of the posterior probability.",
        vllm="typical_acceptance_sampler_posterior_threshold",
    )
    posterior_alpha: PositiveFloat = field(
        0.3,
        "Typical acceptance: scale of the entropy threshold.",
        vllm="typical_acceptance_sampler_posterior_alpha",
    )
