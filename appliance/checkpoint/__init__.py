"""Checkpoints: their facts, their sources, and their bytes. No torch, no transformers.

Reading headers needs no numpy, so that planning starts quickly; `reader` needs it and is imported where it is used.
"""

from appliance.checkpoint.config import ConfigFacts, LayerFacts, derive_geometry, normalize_config
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import (
    AttentionGroup,
    Geometry,
    ModelFacts,
    StoredConventions,
    TensorFacts,
    TokenizerFacts,
)
from appliance.checkpoint.read import read_model_facts
from appliance.checkpoint.rope import RopeFacts
from appliance.checkpoint.sources.options import FetchOptions, Progress
from appliance.checkpoint.sources.resolve import resolve_source

__all__ = [
    "AttentionGroup",
    "CheckpointError",
    "ConfigFacts",
    "FetchOptions",
    "Geometry",
    "LayerFacts",
    "ModelFacts",
    "Progress",
    "RopeFacts",
    "StoredConventions",
    "TensorFacts",
    "TokenizerFacts",
    "derive_geometry",
    "normalize_config",
    "read_model_facts",
    "resolve_source",
]
