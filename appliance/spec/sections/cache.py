"""`cache` and `scheduler`: the KV cache and the order of requests."""

from typing import ClassVar, Literal

from appliance.spec.fields import Section, field
from appliance.spec.scalars import (
    Auto,
    Count,
    DottedPath,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    Size,
)


class CacheSection(Section):
    """The KV cache."""

    doc: ClassVar[str] = "The KV cache: its type, its blocks, and what is kept between requests."

    dtype: Literal["auto", "float32", "float16", "bfloat16", "int8", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"] = field(
        "auto",
        "Data type of keys and values. fp8 is fp8_e4m3. Types of 8 bits have a scale for each token and KV head, which "
        "is found as they are written.",
        auto="the activations' type",
        built_values=("auto", "float32", "float16", "bfloat16", "int8", "fp8", "fp8_e4m3", "fp8_e5m2"),
        vllm="kv_cache_dtype",
    )
    block_size: Auto[Literal[1, 8, 16, 32, 64, 128]] = field(
        "auto", "Tokens of a block.", auto="from the kernels of the profile", allowed="auto, 1, 8, 16, 32, 64 or 128"
    )
    num_blocks: Auto[PositiveInt] = field(
        "auto",
        "Blocks, whatever the memory plan would give; for tests of preemption.",
        auto="as many as the planned memory holds",
        vllm="num_gpu_blocks_override",
    )
    prefix_caching: bool = field(
        True, "Keep finished blocks for prompts that begin alike.", vllm="enable_prefix_caching"
    )
    hash_algorithm: Literal["sha256", "sha256_cbor", "builtin", "sha256_cbor_64bit", "xxhash", "xxhash_cbor"] = field(
        "sha256",
        "Hash of block contents: sha256 cannot be made to collide; sha256_cbor neither, and its hashes are those of "
        "vLLM under PYTHONHASHSEED=0; builtin is faster. Whoever chooses prompts can make xxhash and 64 bits collide, "
        "and would be served from another's blocks, so they are refused.",
        built_values=("sha256", "sha256_cbor", "builtin"),
        vllm="prefix_caching_hash_algo",
    )
    state_snapshots: Auto[NonNegativeInt] = field(
        "auto",
        "Recurrent states kept at block boundaries, for prompts that begin alike, where the model has such states. A "
        "prompt leaves one where it parts from prompts before it, and one before its end.",
        auto="two for each sequence that may run, within an eighth of the memory that weights leave; 0 without "
        "prefix_caching",
    )
    prefault: Auto[Size] = field(
        "auto",
        "Bytes of the cache that the engine makes resident ahead of their use, while it has nothing else to do; 0B is "
        "none. The first touch of memory takes 0.3 ms a MiB, up to 2 on a virtual machine, and a step that meets it "
        "waits.",
        auto="256 MiB, or the whole cache where that is less; 0 on a GPU, whose cache is resident from the start",
    )
    mamba_cache_dtype: Literal["auto", "float32"] = field(
        "auto",
        "Type of recurrent states: of convolutions, state spaces and linear attention.",
        auto="float32 in every kernel set",
    )
    mamba_ssm_cache_dtype: Literal["auto", "float32"] = field(
        "auto", "Type of the states of state spaces alone.", auto="mamba_cache_dtype"
    )
    disable_hybrid_kv_cache_manager: bool = field(
        False,
        "Layers with a sliding window keep all tokens, as layers without one do, in one group of block tables. Tokens "
        "are the same, and a long sequence takes more memory. It changes nothing in a model without windows.",
    )


class SchedulerSection(Section):
    """The size and the order of steps."""

    doc: ClassVar[str] = "How much a step runs, and in what order."

    policy: Literal["fcfs", "priority"] = field(
        "fcfs",
        "First come first served, or lowest priority number first with ties by arrival.",
        vllm="scheduling_policy",
    )
    max_num_seqs: Auto[PositiveInt] = field(
        "auto", "Sequences of a step.", auto="from the profile, and from what the KV cache holds"
    )
    max_num_batched_tokens: Auto[Count] = field(
        "auto", "Tokens of a step. More is throughput, less is steady output.", auto="from the profile"
    )
    chunked_prefill: Auto[bool] = field(
        "auto",
        "Cut long prompts to the token budget left by decodes.",
        auto="true",
        vllm="enable_chunked_prefill",
    )
    max_num_partial_prefills: PositiveInt = field(1, "Prompts in part at the same time.", apply="live")
    max_long_partial_prefills: PositiveInt = field(
        1, "Of these, long ones; fewer lets short prompts overtake.", apply="live"
    )
    long_prefill_token_threshold: NonNegativeInt = field(0, "A prompt is long above this; 0 is none.", apply="live")
    max_waiting: PositiveInt | None = field(
        None, "Requests that may wait; more are answered 429. null is no limit.", apply="live"
    )
    preemption_mode: Literal["auto", "recompute", "swap"] = field(
        "auto",
        "What happens to a sequence that makes room for others: its tokens are computed again, or its blocks move to "
        "hardware.memory.swap_space and back. Tokens are the same.",
        auto="swap where hardware.memory.swap_space gives memory for it, else recompute",
    )
    scheduler_delay_factor: NonNegativeFloat = field(
        0.0,
        "While sequences run, prompts wait for this times what the last step with a prompt took, so that several start "
        "together. 0 waits for nothing.",
    )
    async_scheduling: bool = field(
        True,
        "Begin the next step while results of the last are handled, where the kernel set can: not with recurrent "
        "states, nor on a CPU for more than a few sequences. false is for comparison: tokens are the same.",
    )
    disable_chunked_mm_input: bool = field(False, "Never split the tokens of one image.", built=False)
    scheduler_cls: DottedPath | None = field(
        None,
        "A scheduling policy of your own: in which order sequences start, and are preempted. Where it fails, `policy`"
        " decides. Needs decoding.trust_plugins; see docs/guides/plugins.md.",
    )
