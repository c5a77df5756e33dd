"""`lora`: adapters."""

from typing import ClassVar, Literal

from appliance.spec.fields import REQUIRED, Section, field
from appliance.spec.scalars import ModelName, PositiveFloat, PositiveInt, Sha256, Text


class AdapterSection(Section):
    """One adapter."""

    doc: ClassVar[str] = "One adapter; its name is a model id for clients."

    name: ModelName = field(REQUIRED, "What clients send as `model`.", apply="adapters")
    source: Text = field(
        REQUIRED,
        "A folder that peft saved, a GGUF file, or the hub's hf://owner/name.",
        apply="adapters",
        vllm="path",
    )
    sha256: Sha256 | None = field(
        None, "Digest of the adapter, as `appliance plan` shows it: other files are refused.", apply="adapters"
    )
    revision: Text | None = field(None, "Branch, tag or commit.", apply="adapters")
    base_model_name: ModelName | None = field(
        None, "Reported as the adapter's parent. Default: the first served name.", apply="adapters"
    )
    rank: PositiveInt | None = field(
        None, "Rank, when it is to be checked before the files are there.", apply="adapters"
    )
    scale: PositiveFloat = field(1.0, "Factor of what the adapter adds, beside its own alpha.", apply="adapters")
    pinned: bool = field(False, "Keep it in a slot, so that its requests never wait for one.", apply="adapters")


class LoraSection(Section):
    """Low-rank adapters."""

    doc: ClassVar[str] = "Low-rank adapters, served beside the base model."

    max_loras: PositiveInt = field(1, "Adapters of one step; each has a slot, whose memory is planned.")
    max_rank: PositiveInt = field(16, "Highest rank of an adapter.", vllm="max_lora_rank")
    max_cpu_loras: PositiveInt | None = field(
        None,
        "Adapters kept in host memory, beside the slots; at least max_loras. Default: all that are listed, and at "
        "least max_loras where requests may load others.",
        apply="adapters",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = field(
        "auto",
        "Type of adapter weights in memory, to which those of other types are converted.",
        auto="float32 where all matrices are, else bfloat16",
        vllm="lora_dtype",
    )
    target_modules: list[Text] | None = field(
        None,
        "Modules that adapters may change, by the end of their names: q_proj. Default: all linear maps of the layers, "
        "and head, embedding, routers and experts if a listed adapter changes them.",
        vllm="lora_target_modules",
    )
    adapters: list[AdapterSection] = field([], "The adapters that are served.", apply="adapters", vllm="lora_modules")
    default_mm_loras: dict[str, Text] = field(
        {}, "Adapter used whenever a modality is in the prompt.", apply="adapters", built=False
    )
    allow_runtime_updating: bool = field(
        False, "Endpoints that load and unload adapters.", apply="live", vllm="allow_runtime_lora_updating"
    )
    runtime_paths: list[Text] = field(
        [],
        "Folders below which requests may load adapters from. Default: any folder that the server can read.",
        apply="live",
    )
    resolver_dir: Text | None = field(
        None,
        "Folder with adapters' folders: the first request for an unknown model loads the one of that name.",
        apply="live",
    )
    resolver: Text | None = field(
        None,
        "Dotted path of `async def f(model, name)` that returns the folder of an adapter, or None; asked for unknown "
        "models. Needs decoding.trust_plugins.",
        apply="live",
    )
    allow_request_scale: bool = field(
        False,
        "Requests may say `lora: [{name, scale}]`: one adapter or several, with scales.",
        apply="live",
    )
