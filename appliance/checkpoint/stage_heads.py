"""Reads the configs of drafting heads without layers, which state few of the sizes that a model's config has.

Medusa's own checkpoints state the numbers of heads and of blocks; vLLM's form of them, and MLP speculators, also sizes.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from appliance.checkpoint.dialect import MAX_COUNT, size_of
from appliance.checkpoint.facts import Geometry, TensorFacts

MEDUSA: Final = "MedusaModel"
SPECULATOR: Final = "MLPSpeculatorPreTrainedModel"
STAGE_METHODS: Final = {MEDUSA: "medusa", SPECULATOR: "mlp_speculator"}  # by architecture
_BY_TYPE: Final = {method: architecture for architecture, method in STAGE_METHODS.items()}


def stage_architecture(config: Mapping[str, Any]) -> str | None:
    """Returns the architecture of heads without layers; None if the config is that of a model."""
    if "medusa_num_heads" in config and "num_hidden_layers" not in config:
        return MEDUSA
    stated = config.get("model_type")
    return _BY_TYPE.get(stated) if isinstance(stated, str) else None


def stage_geometry(config: Mapping[str, Any], tensors: Sequence[TensorFacts]) -> Geometry:
    """Returns the sizes that are known of the heads; those of layers are zero."""
    widest = max((tensor.shape for tensor in tensors if len(tensor.shape) == 2), default=(0, 0))
    return Geometry(
        num_layers=0,
        hidden_size=size_of(config.get("hidden_size", config.get("emb_dim"))) or widest[1],
        intermediate_size=size_of(config.get("inner_dim")),
        num_heads=0,
        num_kv_heads=0,
        head_dim=0,
        vocab_size=size_of(config.get("vocab_size")) or widest[0],
        max_position=MAX_COUNT,
        num_experts=0,
        num_experts_per_token=0,
        tie_embeddings=False,
        groups=(),
    )
