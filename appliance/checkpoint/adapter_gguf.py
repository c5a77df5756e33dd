"""Reads the modules of a GGUF adapter, as llama.cpp's convert_lora_to_gguf writes one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from appliance.checkpoint.adapter_modules import AdapterModule
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import TensorFacts
from appliance.checkpoint.gguf import GgufFile, GgufTensor, open_gguf, plain
from appliance.checkpoint.gguf_names import NAMES, hugging_face_name

_DOWN: Final = ".lora_a"
_UP: Final = ".lora_b"
_TABLE: Final = "token_embd.weight"
# The architectures whose matrices lie in an order of their own in GGUF files, or are multiplied with factors.
_REORDERED: Final = ("bloom", "falcon", "falcon-h1", "gptneox", "mpt", "qwen35", "qwen35moe")
_HINT: Final = "convert it again with convert_lora_to_gguf of llama.cpp"


def read_gguf_modules(path: Path) -> tuple[str, str | None, tuple[AdapterModule, ...]]:
    """Returns the architecture of the base model, its name if there is one, and the modules with transformers' names.

    Raises CheckpointError that names the tensor or the entry that cannot be used.
    """
    with open_gguf(path) as file:
        values = {key: plain(value) for key, value in file.metadata.items() if key.startswith(("general.", "adapter."))}
        architecture = _architecture(path.name, values)
        alpha = values.get("adapter.lora.alpha", 0.0)
        if not isinstance(alpha, int | float):
            raise CheckpointError(path.name, f"adapter.lora.alpha is {alpha!r}, and not a number", _HINT)
        modules = _modules(file, architecture, float(alpha))
    base = values.get("general.base_model.0.repo_url", values.get("general.base_model.0.name"))
    return architecture, base if isinstance(base, str) else None, modules


def _architecture(file: str, values: Mapping[str, Any]) -> str:
    """Returns general.architecture of a file that is a LoRA adapter."""
    kind, form = values.get("general.type"), values.get("adapter.type")
    if kind != "adapter" or form != "lora":
        message = f"general.type is {kind!r} and adapter.type {form!r}; an adapter has 'adapter' and 'lora'"
        raise CheckpointError(file, message, _HINT)
    tokens = values.get("adapter.alora.invocation_tokens")
    if tokens:
        hint = "an activated LoRA changes only the tokens after its invocation; train a plain one"
        raise CheckpointError(file, "adapter.alora.invocation_tokens is set, which is not in this version", hint)
    architecture = values.get("general.architecture")
    if architecture not in NAMES:
        raise CheckpointError(file, f"general.architecture is {architecture!r}, which is not in this version")
    if architecture in _REORDERED:
        message = f"adapters of {architecture} in GGUF files are not in this version"
        raise CheckpointError(file, message, "serve the folder that peft saved")
    return str(architecture)


def _modules(file: GgufFile, architecture: str, alpha: float) -> tuple[AdapterModule, ...]:
    found: dict[str, dict[str, GgufTensor]] = {}
    for tensor in file.tensors:
        weight, end = tensor.name[:-7], tensor.name[-7:]
        if end not in (_DOWN, _UP):
            raise CheckpointError(file.path.name, f"tensor {tensor.name!r} is no lora_a or lora_b", _HINT)
        found.setdefault(weight, {})[end] = tensor
    if not found:
        raise CheckpointError(file.path.name, "there is no tensor of an adapter", _HINT)
    return tuple(sorted((_module(file, architecture, alpha, *pair) for pair in found.items()), key=lambda m: m.name))


def _module(
    file: GgufFile, architecture: str, alpha: float, weight: str, pair: Mapping[str, GgufTensor]
) -> AdapterModule:
    name = hugging_face_name(architecture, weight)
    if name is None or not name.endswith(".weight"):
        raise CheckpointError(file.path.name, f"{weight!r} is no matrix that {architecture} has in this version")
    if pair.keys() != {_DOWN, _UP}:
        raise CheckpointError(file.path.name, f"{weight} has {' and '.join(pair)} alone; a pair is two", _HINT)
    down, up = (_facts(file, pair[end]) for end in (_DOWN, _UP))
    if len(down.shape) != len(up.shape) or len(down.shape) not in (2, 3):
        raise CheckpointError(file.path.name, f"{weight}: {list(up.shape)} @ {list(down.shape)} is no product")
    is_table = weight == _TABLE
    rank = down.shape[-1 if is_table else -2]  # of an embedding, lora_a has a row for each token
    if up.shape[-1] != rank or down.shape[:-2] != up.shape[:-2] or 0 in (*down.shape, *up.shape):
        raise CheckpointError(file.path.name, f"{weight}: {list(up.shape)} @ {list(down.shape)} is no product")
    scale = alpha / rank if alpha else 1.0  # as llama.cpp: without an alpha the product is as it is
    experts = down.shape[0] if len(down.shape) == 3 else 0
    module = name.removesuffix(".weight")
    return AdapterModule(
        name=module, scale=scale, down=down, up=up, is_table=is_table, is_turned=is_table, num_experts=experts
    )


def _facts(file: GgufFile, tensor: GgufTensor) -> TensorFacts:
    return TensorFacts(
        name=tensor.name,
        stored_name=tensor.name,
        shape=tensor.shape,
        storage=tensor.storage,
        file=file.path.name,
        offset_bytes=tensor.offset_bytes,
        size_bytes=tensor.size_bytes,
    )
