"""The record of a tiny checkpoint, and sizes that many share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import transformers

VOCAB_SIZE = 256
HIDDEN_SIZE = 64

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": HIDDEN_SIZE,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GRANITE: dict[str, Any] = {
    "embedding_multiplier": 6.0, "attention_multiplier": 0.3, "residual_multiplier": 0.4, "logits_scaling": 0.5,
}  # fmt: skip
MOE: dict[str, Any] = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}


@dataclass(frozen=True)
class Tiny:
    """A configuration class and what its variant sets."""

    config_class: str
    values: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, Any] = field(default_factory=lambda: SIZES)

    def config(self) -> transformers.PretrainedConfig:
        values = {key: dict(value) if isinstance(value, dict) else value for key, value in self.values.items()}
        return getattr(transformers, self.config_class)(**{**self.sizes, **values})
