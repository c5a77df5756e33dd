"""The dialects of Gemma 3n and 4, whose layers differ in more than their windows."""

from collections.abc import Mapping
from typing import Final

from appliance.checkpoint.dialect import Dialect

_COMMON: Final = {
    "head_dim": 256,
    "sliding_window": 512,
    "attention_multiplier": 1.0,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
}
_GEMMA4_ROPES: Final = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
}

GEMMAS: Final[Mapping[str, Dialect]] = {
    "gemma3n_text": Dialect(
        defaults={
            **_COMMON,
            "vocab_size": 262_400,
            "hidden_size": 2048,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "final_logit_softcapping": 30.0,
            "max_position_embeddings": 32_768,
        },
        window_every=5,
    ),
    "gemma4_text": Dialect(
        names={"num_experts_per_tok": "top_k_experts"},
        defaults={
            **_COMMON,
            "vocab_size": 262_144,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "max_position_embeddings": 131_072,
            "rope_parameters": _GEMMA4_ROPES,
        },
        window_every=6,
    ),
}
