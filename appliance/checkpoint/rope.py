"""Reads the rotary parameters of a config, in both forms that transformers has written."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from appliance.checkpoint.errors import CheckpointError

ROPE_KINDS: Final = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "mrope", "proportional")
_OTHER_NAMES: Final = {"su": "longrope"}


class RopeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The rotary parameters of one kind of layer, by transformers' names."""

    theta: float
    kind: str  # one of ROPE_KINDS
    partial_factor: float  # the share of head_dim that is rotated
    parameters: dict[str, Any]  # factor, low_freq_factor, original_max_position_embeddings, long_factor, ...


def layer_ropes(config: Mapping[str, Any], model_type: str) -> dict[str, RopeFacts]:
    """Returns rotary parameters by layer type ("full_attention", "sliding_attention").

    config: values that are not None, with defaults filled in. Raises CheckpointError for an unknown kind.
    """
    if (new := config.get("rope_parameters")) is not None:
        new = mapping_of("rope_parameters", new)
        by_type = {kind: new.get(kind) for kind in ("full_attention", "sliding_attention")}
        if isinstance(by_type["full_attention"], Mapping):
            return {kind: _rope(config, model_type, mapping_of(kind, values or {})) for kind, values in by_type.items()}
        rope = _rope(config, model_type, new)
        return {"full_attention": rope, "sliding_attention": rope}
    return _older_ropes(config, model_type)


def _older_ropes(config: Mapping[str, Any], model_type: str) -> dict[str, RopeFacts]:
    scaling = mapping_of("rope_scaling", config.get("rope_scaling", {}))
    if model_type in ("gemma3_text", "gemma3n_text"):
        local = {"rope_theta": config.get("rope_local_base_freq", 10_000.0)}
        wide = {"rope_theta": config.get("rope_theta", 1_000_000.0), **scaling}
        return {
            "full_attention": _rope(config, model_type, wide),
            "sliding_attention": _rope(config, model_type, local),
        }
    rope = _rope(config, model_type, scaling)
    windowed = _rope(config, model_type, {}) if model_type == "olmo3" else rope  # its windowed layers are not scaled
    return {"full_attention": rope, "sliding_attention": windowed}


def older_rotary(config: Mapping[str, Any], scaling: Mapping[str, Any] | None, theta: float | None) -> dict[str, Any]:
    """Returns what states other rotary parameters in the older form, over a config in either form. None keeps what the
    config has, and no scaling is an empty one."""
    new = config.get("rope_parameters") or {}
    full = new.get("full_attention", new)
    changed: dict[str, Any] = {"rope_parameters": None}
    if (base := theta or config.get("rope_theta") or full.get("rope_theta")) is not None:
        changed["rope_theta"] = base
    if (local := (new.get("sliding_attention") or {}).get("rope_theta")) is not None:
        changed["rope_local_base_freq"] = local
    if (share := full.get("partial_rotary_factor")) is not None:
        changed["partial_rotary_factor"] = share
    kept = {key: value for key, value in full.items() if key != "rope_theta"}
    if found := kept if scaling is None else dict(scaling):
        changed["rope_scaling"] = found
    return changed


def mapping_of(key: str, value: Any) -> Mapping[str, Any]:
    """Returns the mapping under `key`. Raises CheckpointError for anything else."""
    if not isinstance(value, Mapping):
        raise CheckpointError("config.json", f"{key} is {value!r}; a mapping is expected")
    return value


def _rope(config: Mapping[str, Any], model_type: str, values: Mapping[str, Any]) -> RopeFacts:
    kind = str(values.get("rope_type", values.get("type", "default")))
    kind = _OTHER_NAMES.get(kind, kind)
    if model_type == "phi3" and kind == "yarn":  # an early spelling of Phi-3's own scaling
        kind = "longrope"
    if kind not in ROPE_KINDS:
        raise CheckpointError("config.json", f"rotary scaling {kind!r} is not known", f"known: {', '.join(ROPE_KINDS)}")
    parameters = {key: value for key, value in values.items() if value is not None}
    if kind == "longrope" and "original_max_position_embeddings" in config:
        parameters.setdefault("original_max_position_embeddings", config["original_max_position_embeddings"])
    for key in ("rope_type", "type", "rope_theta", "partial_rotary_factor"):
        parameters.pop(key, None)
    both = {**config, **values}
    return RopeFacts(
        theta=positive_of(both, "rope_theta", 10_000.0),
        kind=kind,
        partial_factor=positive_of(both, "partial_rotary_factor", 1.0),
        parameters=parameters,
    )


def number_of(values: Mapping[str, Any], key: str, default: float) -> float:
    """Returns the number under `key`. Raises CheckpointError for anything else, and for 1e30 or more."""
    value = values.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e30:
        raise CheckpointError("config.json", f"{key} is {value!r}; a number is expected")
    return float(value)


def positive_of(values: Mapping[str, Any], key: str, default: float) -> float:
    """Returns the number above zero under `key`. Raises CheckpointError for anything else."""
    if (number := number_of(values, key, default)) <= 0:
        raise CheckpointError("config.json", f"{key} is {values[key]!r}; a number above 0 is expected")
    return number
