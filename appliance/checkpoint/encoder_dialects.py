"""How the configs of encoders differ from the usual one."""

from collections.abc import Mapping
from typing import Final

from appliance.checkpoint.dialect import MAX_LAYERS, Dialect, Json, size_of


def _modernbert(values: Json) -> Json:
    """Every third layer, from the first on, sees all, with a rotary base of its own."""
    every, count = size_of(values.get("global_attn_every_n_layers", 3)), size_of(values.get("num_hidden_layers"))
    kinds = ("sliding_attention", "full_attention")
    bases = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}
    defaults = {"full_attention": 160_000.0, "sliding_attention": 10_000.0}
    return {
        "sliding_window": values.get("local_attention", 128),
        "layer_types": [kinds[not every or index % every == 0] for index in range(min(count, MAX_LAYERS))],
        "rope_parameters": {kind: {"rope_theta": values.get(key, defaults[kind])} for kind, key in bases.items()},
    }


_BERT: Final[Json] = {
    "attention_bias": True,
    "attention_out_bias": True,
    "mlp_bias": True,
    "hidden_act": "gelu",
    "rms_norm_eps": 1e-12,
    "tie_word_embeddings": True,
}
_GTE: Final = Dialect(
    defaults={
        "rope_theta": 160_000.0,
        "rms_norm_eps": 1e-12,
        "hidden_act": "gelu",
        "attention_bias": True,
        "tie_word_embeddings": True,
    }
)
_ROBERTA: Final = Dialect(defaults={**_BERT, "rms_norm_eps": 1e-5}, rotates="none", first_position=2)

ENCODERS: Final[Mapping[str, Dialect]] = {
    "bert": Dialect(defaults=_BERT, rotates="none"),
    "distilbert": Dialect(
        names={
            "hidden_size": "dim",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "intermediate_size": "hidden_dim",
            "hidden_act": "activation",
        },
        defaults=_BERT,
        rotates="none",
    ),
    "gte": _GTE,
    "modernbert": Dialect(
        names={"rms_norm_eps": "norm_eps"},
        defaults={"rms_norm_eps": 1e-5, "hidden_act": "gelu", "tie_word_embeddings": True},
        derived=_modernbert,
    ),
    "mpnet": Dialect(defaults=_BERT, rotates="none", first_position=2),
    "new": _GTE,
    "nomic_bert": Dialect(
        names={"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_emb_fraction"},
        defaults={"rope_theta": 1000.0, "rms_norm_eps": 1e-12, "hidden_act": "silu", "tie_word_embeddings": True},
    ),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
}
