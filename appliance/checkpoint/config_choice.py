"""Which config describes a checkpoint: its own file or one elsewhere, with values in place of some of the file's."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.rope import older_rotary

_PLAIN: Final = ("quantization_config", "generation_config")  # values that only look like a config of a part


class ConfigChoice(msgspec.Struct, frozen=True, kw_only=True):
    """path: a folder that holds the config, or the file; None: the checkpoint's own. overrides: see `merged`."""

    path: str | None = None
    overrides: dict[str, Any] = {}

    def file(self, root: Path, name: str) -> Path:
        """Returns the file of the config. root: the checkpoint's folder. name: of the file in a folder."""
        place = root if self.path is None else Path(self.path)
        return place if place.is_file() else place / name


OWN: Final = ConfigChoice()


def merged(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the config with other values, merged as vLLM merges its `hf_overrides`.

    The config of a part (`text_config`) is merged key by key. Any other value is replaced as a whole, also a mapping
    such as `rope_scaling`. `rope_scaling` and `rope_theta` take the place of those that newer configs have under
    `rope_parameters`. Raises CheckpointError for a key that the config has only under `text_config`.
    """
    _refuse_misplaced(config, overrides)
    values = {key: _value(key, config.get(key), value) for key, value in overrides.items()}
    if config.get("rope_parameters") and "rope_parameters" not in overrides:
        scaling = (overrides.get("rope_scaling") or {}) if "rope_scaling" in overrides else None
        if scaling is not None or "rope_theta" in overrides:
            values = older_rotary(config, scaling, overrides.get("rope_theta")) | values
    return {**config, **values}


def new_keys(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> Iterator[str]:
    """Yields the keys of overrides that a config does not have, with those of parts behind a dot."""
    for key, value in overrides.items():
        inner = config.get(key)
        if key not in config:
            yield key
        elif _is_part(key, inner, value):
            yield from (f"{key}.{each}" for each in new_keys(inner or {}, value))


def _value(key: str, old: Any, new: Any) -> Any:
    return merged(old, new) if _is_part(key, old, new) else new


def _is_part(key: str, old: Any, new: Any) -> bool:
    both = isinstance(old, Mapping) and isinstance(new, Mapping)
    return both and key.endswith("_config") and key not in _PLAIN


def _refuse_misplaced(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> None:
    inner = config.get("text_config")
    if not isinstance(inner, Mapping):
        return
    for key in overrides:
        if key not in config and key in inner:
            hint = f"write it under text_config: {{text_config: {{{key}: ...}}}}"
            raise CheckpointError("config.json", f"{key} is a key of text_config in this model", hint)
