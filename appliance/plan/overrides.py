"""Applying a plan's config overrides to ModelFacts. Apart from what computes them, for the engine needs only this."""

from collections.abc import Mapping
from typing import Any

import msgspec

from appliance.checkpoint.config import derive_geometry, normalize_config
from appliance.checkpoint.facts import ModelFacts


def with_config_overrides(model: ModelFacts, overrides: dict[str, Any]) -> ModelFacts:
    """The facts as planned. Raises CheckpointError."""
    if not overrides:
        return model
    config = {**model.config, **overrides}
    if isinstance(inner := config.get("text_config"), Mapping):  # which is read in place of the outer config
        config["text_config"] = {**inner, **overrides}
    return msgspec.structs.replace(model, config=config, geometry=derive_geometry(normalize_config(config)))
