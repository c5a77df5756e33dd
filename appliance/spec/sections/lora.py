"""`lora`: adapters."""

from typing import ClassVar, Literal

from appliance.spec.fields import REQUIRED, Section, field
from appliance.spec.scalars import ModelName, NonNegativeInt, PositiveInt, Sha256, Text


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
