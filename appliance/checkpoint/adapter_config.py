"""Reads what an adapter's config says: which kind it is, and the scale of each module."""

import json
import re
from collections.abc import Iterable, Mapping
from math import sqrt
from pathlib import Path
from typing import Any, Final

import msgspec

from appliance.checkpoint.errors import CheckpointError

CONFIG_NAME: Final = "adapter_config.json"
_MAX_CONFIG_BYTES: Final = 1_000_000

# The settings that say what was trained and how, and change nothing of what the tensors mean.
_OF_TRAINING: Final = frozenset({
    "auto_mapping", "base_model_name_or_path", "bias", "corda_config", "ensure_weight_tying", "eva_config",
    "exclude_modules", "fan_in_fan_out", "inference_mode", "init_lora_weights", "layers_pattern",
    "layers_to_transform", "loftq_config", "lora_bias", "lora_dropout", "lora_ga_config", "megatron_core",
    "modules_to_save", "peft_type", "peft_version", "qalora_group_size", "revision", "runtime_config",
    "target_modules", "target_parameters", "task_type", "use_dora", "use_rslora",
})  # fmt: skip
_OF_SCALES: Final = frozenset({"r", "lora_alpha", "rank_pattern", "alpha_pattern"})
_UNSET: Final[tuple[Any, ...]] = (None, False, [], {}, "")
_HINTS: Final = {
    "alora_invocation_tokens": "an activated LoRA changes only the tokens after its invocation; train a plain one",
    "trainable_token_indices": "train modules_to_save: [embed_tokens, lm_head] in its place",
    "layer_replication": "the model that it makes has other layers than the base model",
    "use_qalora": "merge it into its base model: merge_and_unload of peft",
}
_MERGE: Final = "merge it into its base model: merge_and_unload of peft"
# The ways to begin training that leave another base model than the one that the adapter names.
_CHANGES_BASE: Final = ("pissa", "olora", "loftq", "corda", "lora_ga")
_TASKS: Final = (None, "CAUSAL_LM", "FEATURE_EXTRACTION")


class AdapterConfig(msgspec.Struct, frozen=True):
    """alpha and rank by pattern of module names, and how they become a factor."""

    base_model: str | None
    alpha: float
    rank: int | None  # None: the config does not say
    alpha_pattern: Mapping[str, float]
    rank_pattern: Mapping[str, int]
    by_root: bool  # rsLoRA (arXiv:2312.03732): alpha / sqrt(rank) in place of alpha / rank
    uses_dora: bool
    adds_bias: bool
    parameters: tuple[str, ...]  # that were trained as such, not as modules: those of experts

    def rank_of(self, module: str) -> int | None:
        """Returns the rank that the config states for a module; the first pattern that its name ends with counts."""
        key = _key(module, self.rank_pattern)
        return self.rank if key is None else self.rank_pattern[key]

    def scale(self, module: str, rank: int) -> float:
        """Returns the factor of a module of a rank."""
        key = _key(module, self.alpha_pattern)
        return (self.alpha if key is None else self.alpha_pattern[key]) / (sqrt(rank) if self.by_root else rank)


def read_config(root: Path) -> AdapterConfig:
    """Reads an adapter's config. Raises CheckpointError that names the setting that cannot be served."""
    config = _json(root)
    kind = config.get("peft_type")
    if kind != "LORA":
        raise CheckpointError(CONFIG_NAME, f"peft_type is {kind!r}; this version serves LORA", _MERGE)
    _refuse(config)
    if config.get("use_dora") and config.get("lora_bias"):
        raise CheckpointError(CONFIG_NAME, "lora_bias with use_dora is not in this version", "train one of them")
    patterns = {key: _pattern(config, key) for key in ("alpha_pattern", "rank_pattern")}
    rank = value_of(config, "r", int, None)
    if rank is not None and rank <= 0:
        raise CheckpointError(CONFIG_NAME, f"r is {rank}, and a rank is at least 1")
    return AdapterConfig(
        base_model=value_of(config, "base_model_name_or_path", str, None),
        alpha=value_of(config, "lora_alpha", (int, float), 8),
        rank=rank,
        alpha_pattern=patterns["alpha_pattern"],
        rank_pattern=patterns["rank_pattern"],
        by_root=value_of(config, "use_rslora", bool, False),
        uses_dora=value_of(config, "use_dora", bool, False),
        adds_bias=value_of(config, "lora_bias", bool, False),
        parameters=tuple(value_of(config, "target_parameters", list, ())),
    )


def value_of(config: dict[str, Any], key: str, kind: type | tuple[type, ...], default: Any) -> Any:
    """Returns a value of the config, or the default where it has none. Raises CheckpointError for another type."""
    value = config.get(key)
    if value is None:
        return default
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise CheckpointError(CONFIG_NAME, f"{key} is {value!r}, which has another type than peft writes")
    return value


def _json(root: Path) -> dict[str, Any]:
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
    return config


def _refuse(config: dict[str, Any]) -> None:
    for key, value in config.items():
        if key not in _OF_TRAINING and key not in _OF_SCALES and not _is_unset(value):
            raise CheckpointError(CONFIG_NAME, f"{key} is {value!r}, which is not in this version", _hint(key))
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGES_BASE):
        message = f"init_lora_weights is {start!r}, so the adapter belongs to a base model that was changed"
        raise CheckpointError(CONFIG_NAME, message, "save it with peft's path_initial_model_for_weight_conversion")
    task = config.get("task_type")
    if task not in _TASKS:
        message = f"task_type is {task!r}: adapters are served with models that generate"
        raise CheckpointError(CONFIG_NAME, message, "its head belongs to the task; merge it into its base model")


def _hint(key: str) -> str:
    return _HINTS.get(key, _MERGE)


def _is_unset(value: Any) -> bool:
    return any(value is each or (value == each and type(value) is type(each)) for each in _UNSET)


def _pattern(config: dict[str, Any], key: str) -> Mapping[str, Any]:
    pattern: dict[str, Any] = value_of(config, key, dict, {})
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in pattern.values()):
        raise CheckpointError(CONFIG_NAME, f"{key} is no map from names to numbers")
    for name in pattern:
        try:
            re.compile(name)
        except re.error as error:
            raise CheckpointError(CONFIG_NAME, f"{key} has {name!r}, which is no regular expression") from error
    return pattern


def _key(module: str, pattern: Iterable[str]) -> str | None:
    """Returns the first key of a pattern with which the name of a module ends."""
    return next((key for key in pattern if re.match(rf"(.*\.)?({key})$", module)), None)
