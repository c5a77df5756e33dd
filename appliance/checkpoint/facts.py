"""ModelFacts: the description of a checkpoint, read only from its headers, without tensor data."""

from typing import Any, Literal

import msgspec

from appliance.catalog.architectures import ARCHITECTURES, Architecture
from appliance.catalog.pooling import PoolingKind
from appliance.checkpoint.loader_choice import NO_LOADER, LoaderChoice

CheckpointFormat = Literal[
    "safetensors", "gguf", "pt", "mistral", "tensorizer",
    "custom",  # read by a loader of the operator's own
    "sharded_state",  # written by rank, as kernel sets take them
    "dummy",  # no weight files, random weights
]  # fmt: skip

# The storage of one tensor: plain types; the GGUF block types under ggml's names; then codes with scales in separate
# tensors: one scale for each row (channel) or group of columns, with zero points (_zp) or symmetric; and codes whose
# groups have columns from anywhere (order), or go down the rows (spread).
Storage = Literal[
    "f64", "f32", "f16", "bf16", "f8_e4m3", "f8_e5m2", "i8", "i16", "i32", "i64", "u8", "bool",
    "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k",
    "iq4_nl", "iq4_xs", "tq1_0", "tq2_0", "q1_0", "q2_0",
    "iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s",
    "int8_channel", "int8_g16", "int8_g32", "int8_g64", "int8_g128", "int8_g256",
    "int8_channel_zp", "int8_g16_zp", "int8_g32_zp", "int8_g64_zp", "int8_g128_zp", "int8_g256_zp",
    "int4_channel", "int4_g16", "int4_g32", "int4_g64", "int4_g128", "int4_g256",
    "int4_channel_zp", "int4_g16_zp", "int4_g32_zp", "int4_g64_zp", "int4_g128_zp", "int4_g256_zp",
    "int3_channel", "int3_g16", "int3_g32", "int3_g64", "int3_g128", "int3_g256",
    "int3_channel_zp", "int3_g16_zp", "int3_g32_zp", "int3_g64_zp", "int3_g128_zp", "int3_g256_zp",
    "int2_channel", "int2_g16", "int2_g32", "int2_g64", "int2_g128", "int2_g256",
    "int2_channel_zp", "int2_g16_zp", "int2_g32_zp", "int2_g64_zp", "int2_g128_zp", "int2_g256_zp",
    "int8_order", "int4_order", "int3_order", "int2_order", "aqlm_f16", "aqlm_bf16",
    "int8_spread", "int4_spread", "int3_spread", "int2_spread",
    "f8_channel", "f8_g32", "f8_g64", "f8_g128",
    "mxfp4", "nvfp4", "nf4_g64", "nf4_g128", "nf4_g256", "fp4_g64", "fp4_g128", "fp4_g256",
]  # fmt: skip

# How the codes of a tensor lie in its file: in rows of the matrix, or as the named method packs them.
Packing = Literal[
    "rows", "gptq", "gptq_v2", "awq", "e4m3", "mxfp4", "nvfp4", "nvfp4_inverse", "bitsandbytes_4", "bitsandbytes_8",
    "hqq", "aqlm",
]  # fmt: skip


class TensorFacts(msgspec.Struct, frozen=True, kw_only=True):
    name: str  # the Hugging Face name, also for GGUF (translated)
    stored_name: str  # the name in the file
    shape: tuple[int, ...]  # row-major, outermost first: a linear weight is (out_features, in_features)
    storage: Storage
    file: str  # relative to the checkpoint root
    offset_bytes: int  # from the start of the file
    size_bytes: int  # without its other parts
    packing: Packing = "rows"
    scale: "TensorFacts | None" = None
    zero_point: "TensorFacts | None" = None
    order: "TensorFacts | None" = None  # the group of each column
    more: "tuple[TensorFacts, ...]" = ()  # what else the values need, in an order of the packing
    bitmask: "TensorFacts | None" = None  # a bit for each element, whether it is stored; the others are zero
    block_rows: int | None = None  # rows that share a scale, if they do
    is_transposed: bool = False  # the shape is that of the module's parameter; the file has it transposed
    sealed_at: int | None = None  # of an encrypted tensor: the place of its header, which has what opens it

    @property
    def parts(self) -> "tuple[TensorFacts, ...]":
        """This tensor, and those that its values need besides it."""
        others = (self.scale, self.zero_point, self.order, self.bitmask, *self.more)
        return (self, *(tensor for tensor in others if tensor is not None))

    @property
    def is_packed(self) -> bool:
        """The tensor has codes in int32 words."""
        return self.stored_name.endswith(".weight_packed")

    @property
    def stored_bytes(self) -> int:
        """The stored bytes of all parts."""
        return sum(part.size_bytes for part in self.parts)


class AttentionGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Layers whose KV caches have the same shape and window. `window` is in tokens; None is full attention."""

    layers: tuple[int, ...]
    num_kv_heads: int
    head_dim: int
    window: int | None


class Geometry(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes that planning needs, for every family."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int  # the longest context, according to the checkpoint
    num_experts: int  # 0 for a dense model
    num_experts_per_token: int
    tie_embeddings: bool
    groups: tuple[AttentionGroup, ...]


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """An impossible value in a checkpoint, which is ignored."""

    file: str
    field: str
    value: str  # as Python writes it
    allowed: str

    def __str__(self) -> str:
        return f"{self.file}: {self.field} is {self.value}, which is left out; {self.allowed} is expected"


class TokenizerFacts(msgspec.Struct, frozen=True, kw_only=True):
    kind: Literal["tokenizer.json", "gguf", "tekken", "sentencepiece", "none"]
    chat_template: str | None
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    add_bos: bool
    left_out: tuple[LeftOut, ...] = ()


class StoredConventions(msgspec.Struct, frozen=True, kw_only=True):
    """The ways in which a file's weights differ from those of the Hugging Face module."""

    interleaved_heads: bool = False  # rows of q and k are permuted for interleaved rotation (GGUF "llama", Mistral)
    norm_includes_one: bool = False  # Gemma norm weights already hold 1 + w (GGUF)
    linear_is_transposed: bool = False  # GPT-2 linear weights are (in_features, out_features) (Hugging Face Conv1D)
    tiled_value_heads: bool = False  # value heads of the delta rule lie with the n-th of every key head first (GGUF)
    negated_rates: bool = False  # decay rates are stored as -exp(A_log) (GGUF)


class DenseFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A dense module of sentence-transformers: its tensors are `<name>.linear.weight` and `.bias`."""

    name: str  # its folder
    out_features: int
    bias: bool
    activation: Literal["tanh", "relu", "gelu"] | None


class SentenceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a sentence-transformers folder says beside its model: modules, prompts and length."""

    kind: PoolingKind | None  # None: it has no pooling module
    normalize: bool
    dense: tuple[DenseFacts, ...]
    prompts: dict[str, str]  # texts before the input, by name
    default_prompt: str | None  # the name of the one that is used where none is asked for
    max_length: int | None  # tokens
    similarity: str  # "cosine", "dot", ...
    label_token_ids: tuple[int, ...] = ()  # of a LogitScore module: the scores are the logits of these tokens
    activation: str | None = None  # of a CrossEncoder: the dotted name of a class of torch


class ShardFacts(msgspec.Struct, frozen=True, kw_only=True):
    """For which ranks the weights of a checkpoint were written, under the names of `parallelism`, and in which forms.

    forms: by the stored type and the role of weights. written_by: the version of appliance.
    """

    tensor: int
    pipeline: int
    layers: tuple[int, ...] = ()  # of each stage, if there are several
    expert_placement_strategy: str = "linear"
    forms: dict[str, str]
    written_by: str

    def __str__(self) -> str:
        return f"tensor: {self.tensor}, pipeline: {self.pipeline}"


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    root: str  # folder, or the .gguf file
    format: CheckpointFormat
    architecture: str  # Hugging Face class name, such as "Qwen2ForCausalLM" (GGUF architectures are translated)
    config: dict[str, Any]  # the Hugging Face config; made from the metadata for GGUF
    generation_config: dict[str, Any]
    geometry: Geometry
    tokenizer: TokenizerFacts
    tensors: tuple[TensorFacts, ...]
    stored: StoredConventions
    sentence: SentenceFacts | None = None
    label_token_ids: tuple[int, ...] = ()  # tokens whose logits are scores, yes last; said by the checkpoint
    added_keys: tuple[str, ...] = ()  # keys of `model.hf_overrides` that the config does not have
    quantization: str | None  # the checkpoint's own method, such as "gguf", "gptq"; None when plain
    header_sha256: str  # over every header byte from which the above was read
    family: Architecture | None = None  # of another package; None: the catalogue's, or none
    loader: LoaderChoice = NO_LOADER  # what reads the tensors, beside their format
    shards: ShardFacts | None = None  # of one that was written by rank: its files have other tensors than these

    @property
    def known(self) -> Architecture | None:
        """The architecture, with the family that runs it, if any does."""
        return self.family or ARCHITECTURES.get(self.architecture)

    @property
    def is_encrypted(self) -> bool:
        """Some tensor can be read only with a key."""
        return any(part.sealed_at is not None for tensor in self.tensors for part in tensor.parts)

    @property
    def size_bytes(self) -> int:
        return sum(tensor.stored_bytes for tensor in self.tensors)
