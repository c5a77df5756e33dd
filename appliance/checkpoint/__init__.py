"""What a checkpoint is, where it comes from, and its bytes. No torch, no transformers."""

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
from appliance.checkpoint.reader import TensorReader, open_tensors
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
    "TensorReader",
    "TokenizerFacts",
    "derive_geometry",
    "normalize_config",
    "open_tensors",
    "read_model_facts",
    "resolve_source",
]
