"""Reads what a LoRA adapter is, from its config and the header of its weights, as peft writes them."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from math import sqrt
from pathlib import Path
from typing import Any, Final

import msgspec

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import TensorFacts
from appliance.checkpoint.safetensors import WeightFileHeader, read_header
from appliance.checkpoint.torch_file import read_torch_file

CONFIG_NAME: Final = "adapter_config.json"
_READERS: Final = {"adapter_model.safetensors": read_header, "adapter_model.bin": read_torch_file}
_PREFIX: Final = "base_model.model."  # what peft puts before the names of the model's modules
_DOWN: Final = ".lora_A.weight"
_UP: Final = ".lora_B.weight"
_MAX_CONFIG_BYTES: Final = 1_000_000

# The settings that change what an adapter adds, and that this version does not have, with the values that set nothing.
_REFUSED: Final[Mapping[str, tuple[Any, ...]]] = {
    "use_dora": (False, None),
    "bias": ("none", None),
    "lora_bias": (False, None),
    "modules_to_save": ([], None),
    "layer_replication": ([], None),
    "trainable_token_indices": ([], {}, None),
    "target_parameters": ([], None),
    "use_qalora": (False, None),
    "megatron_config": (None, {}),
}
# The ways to begin training that leave another base model than the one that the adapter names.
_CHANGES_BASE: Final = ("pissa", "olora", "loftq", "corda")


class AdapterModule(msgspec.Struct, frozen=True):
    """The low-rank map of one module: scale * up @ down. down: [rank, in_features]; up: [out_features, rank]."""

    name: str  # of the module in the model, such as "model.layers.0.self_attn.q_proj"
    down: TensorFacts
    up: TensorFacts
    scale: float

    @property
    def rank(self) -> int:
        return self.down.shape[0]


class AdapterFacts(msgspec.Struct, frozen=True):
    """An adapter's modules, sorted by name. sha256: over its config and all bytes of its weights."""

    root: str
    base_model: str | None  # what its config names
    modules: tuple[AdapterModule, ...]
    sha256: str

    @property
    def max_rank(self) -> int:
        return max(module.rank for module in self.modules)

    def tensors(self) -> Iterator[TensorFacts]:
        for module in self.modules:
            yield from (module.down, module.up)


def read_adapter(root: Path) -> AdapterFacts:
    """Reads the facts of an adapter's folder. Raises CheckpointError that names what cannot be used."""
    config = _config(root)
    name = next((each for each in _READERS if (root / each).is_file()), None)
    if name is None:
        raise CheckpointError(root.name, f"there is no {' and no '.join(_READERS)}", "pull the adapter again")
    header = _READERS[name](root, name)
    digest = hashlib.sha256((root / CONFIG_NAME).read_bytes())
    with (root / name).open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return AdapterFacts(
        root=str(root),
        base_model=_value(config, "base_model_name_or_path", str, None),
        modules=_modules(name, header, _Scales.of(config)),
        sha256=digest.hexdigest(),
    )


class _Scales(msgspec.Struct, frozen=True):
    """alpha by pattern of module names, and how it becomes a factor."""

    alpha: float
    patterns: Mapping[str, float]
    by_root: bool  # rsLoRA (arXiv:2312.03732): alpha / sqrt(rank) in place of alpha / rank

    @classmethod
    def of(cls, config: dict[str, Any]) -> "_Scales":
        patterns = _value(config, "alpha_pattern", dict, {})
        if not all(isinstance(value, int | float) for value in patterns.values()):
            raise CheckpointError(CONFIG_NAME, "alpha_pattern is no map from names to numbers")
        return cls(_value(config, "lora_alpha", (int, float), 8), patterns, _value(config, "use_rslora", bool, False))

    def scale(self, module: str, rank: int) -> float:
        """Returns the factor of a module; the first pattern that its name ends with counts, as in peft."""
        ends = (key for key in self.patterns if re.fullmatch(rf"(.*\.)?({key})", module))
        alpha = next((self.patterns[key] for key in ends), self.alpha)
        return alpha / (sqrt(rank) if self.by_root else rank)


def _config(root: Path) -> dict[str, Any]:
    path = root / CONFIG_NAME
    if not path.is_file():
        raise CheckpointError(root.name, f"there is no {CONFIG_NAME}", "an adapter's folder is one that peft saved")
    if path.stat().st_size > _MAX_CONFIG_BYTES:
        raise CheckpointError(CONFIG_NAME, "it is larger than 1 MB")
    try:
        config = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CheckpointError(CONFIG_NAME, f"it is not valid JSON: {error}") from error
    if not isinstance(config, dict):
        raise CheckpointError(CONFIG_NAME, "it is not a JSON object")
    kind = config.get("peft_type")
    if kind != "LORA":
        raise CheckpointError(CONFIG_NAME, f"peft_type is {kind!r}; this version serves LORA")
    for key, unset in _REFUSED.items():
        if key in config and config[key] not in unset:
            raise CheckpointError(CONFIG_NAME, f"{key} is {config[key]!r}, which is not in this version")
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.startswith(_CHANGES_BASE):
        message = f"init_lora_weights is {start!r}, so the adapter belongs to a base model that was changed"
        raise CheckpointError(CONFIG_NAME, message, "save it with peft's path_initial_model_for_weight_conversion")
    return config


def _value(config: dict[str, Any], key: str, kind: type | tuple[type, ...], default: Any) -> Any:
    """Returns a value of the config, or the default where it has none. Raises CheckpointError for another type."""
    value = config.get(key)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise CheckpointError(CONFIG_NAME, f"{key} is {value!r}, which has another type than peft writes")
    return value


def _modules(file: str, header: WeightFileHeader, scales: _Scales) -> tuple[AdapterModule, ...]:
    tensors = {tensor.name: tensor for tensor in header.tensors}
    modules = []
    for name in sorted(tensors):
        if name.endswith(_DOWN):
            modules.append(_module(file, name.removesuffix(_DOWN), tensors, scales))
        elif not name.endswith(_UP) or f"{name.removesuffix(_UP)}{_DOWN}" not in tensors:
            raise CheckpointError(file, f"tensor {name!r} is no lora_A or lora_B of a pair")
    if not modules:
        raise CheckpointError(file, "there is no tensor of an adapter")
    return tuple(modules)


def _module(file: str, stem: str, tensors: Mapping[str, TensorFacts], scales: _Scales) -> AdapterModule:
    down, up = tensors[f"{stem}{_DOWN}"], tensors.get(f"{stem}{_UP}")
    if up is None:
        raise CheckpointError(file, f"{stem} has lora_A and no lora_B")
    shapes = f"lora_B {list(up.shape)} @ lora_A {list(down.shape)}"
    if len(down.shape) != 2 or len(up.shape) != 2 or down.shape[0] != up.shape[1] or 0 in (*down.shape, *up.shape):
        raise CheckpointError(file, f"{stem}: {shapes} is no product of matrices")
    name = stem.removeprefix(_PREFIX)
    return AdapterModule(name, down, up, scales.scale(name, down.shape[0]))
