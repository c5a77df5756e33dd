"""The typed view of a Hugging Face config of any version.

Transformers 5 writes `rope_parameters` and `layer_types`; older configs have `rope_theta`, `rope_scaling` and one of
several switches for sliding windows; GGUF metadata is translated into the older form. Planning and models read this
view, so only this module knows the versions. Defaults are those of the transformers configuration classes.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import AttentionGroup, Geometry
from appliance.checkpoint.rope import RopeFacts, layer_ropes, mapping_of, number_of, positive_of


class LayerFacts(msgspec.Struct, frozen=True, kw_only=True):
    window: int | None  # tokens a query sees, itself included; None is full attention
    rope: RopeFacts | None  # None if positions are learned


class ConfigFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder's config with every default filled in. None means "the model has none"."""

    model_type: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    moe_intermediate_size: int  # of one expert
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int  # scaled by the rotary scaling if that extends the context
    norm_eps: float
    activation: str  # as transformers names it: "silu", "gelu_pytorch_tanh", "gelu_new"
    tie_embeddings: bool
    attention_bias: bool  # for the query, key and value projections
    attention_out_bias: bool
    mlp_bias: bool
    query_pre_attn_scalar: float  # attention scores are multiplied by this to the power -1/2
    attn_soft_cap: float | None
    final_soft_cap: float | None
    num_experts: int
    num_experts_per_token: int
    layers: tuple[LayerFacts, ...]


# Only values that configs on the hub leave out because they are the defaults of the transformers class.
_DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "gemma2": {
        "head_dim": 256,
        "sliding_window": 4096,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "query_pre_attn_scalar": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
    },
    "gemma3_text": {
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 4096,
        "query_pre_attn_scalar": 256,
        "max_position_embeddings": 131_072,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
    },
    "dots1": {"sliding_window": 4096, "max_window_layers": 62, "max_position_embeddings": 2048},
    "ernie4_5_moe": {"rms_norm_eps": 1e-5, "rope_theta": 500_000.0, "tie_word_embeddings": True},
    "glm4_moe": {"rms_norm_eps": 1e-5, "partial_rotary_factor": 0.5},
    "gpt2": {
        "activation_function": "gelu_new",
        "n_positions": 1024,
        "tie_word_embeddings": True,
        "attention_bias": True,
        "attention_out_bias": True,
        "mlp_bias": True,
    },
    "llama": {"max_position_embeddings": 2048},
    "mistral": {"sliding_window": 4096, "num_key_value_heads": 8, "max_position_embeddings": 131_072},
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2, "num_key_value_heads": 8, "rms_norm_eps": 1e-5},
    "phi3": {"rms_norm_eps": 1e-5},
    "qwen2": {"attention_bias": True, "max_window_layers": 28},
    "qwen2_moe": {"qkv_bias": True, "max_window_layers": 28},
    "qwen3": {"head_dim": 128, "max_window_layers": 28},
}
_ALIASES: Final[dict[str, tuple[str, ...]]] = {
    "num_hidden_layers": ("n_layer",),
    "hidden_size": ("n_embd",),
    "num_attention_heads": ("n_head",),
    "max_position_embeddings": ("n_positions", "n_ctx"),
    "intermediate_size": ("n_inner",),
    "rms_norm_eps": ("layer_norm_epsilon", "layer_norm_eps", "norm_epsilon"),
    "hidden_act": ("hidden_activation", "activation_function"),
    "num_local_experts": ("num_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": ("moe_k",),
    "attention_bias": ("qkv_bias",),
}
# Sliding layers alternate with full ones: every n-th layer is full, counted from 1.
_WINDOW_PATTERNS: Final = {"gemma2": 2, "gemma3_text": 6, "cohere2": 4}
_GATED_WINDOWS: Final = ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "dots1")
_LAYER_TYPES: Final = ("full_attention", "sliding_attention")
MAX_COUNT: Final = 1 << 31
MAX_LAYERS: Final = 4096
_EXTENDED_BY_ROPE: Final = ("linear", "dynamic", "yarn")


class _Fields:
    """Typed lookups in a config: aliases, then defaults; a wrong type is an error that names the key."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.values: dict[str, Any] = {"model_type": config.get("model_type")}
        self.model_type = self.text("model_type", "")
        self.values = _DEFAULTS.get(self.model_type, {}) | {k: v for k, v in config.items() if v is not None}
        # For these keys an explicit null means "none", not "the default".
        for key in ("sliding_window", "attn_logit_softcapping", "final_logit_softcapping"):
            if key in config and config[key] is None:
                self.values.pop(key, None)

    def get(self, key: str) -> Any:
        for name in (key, *_ALIASES.get(key, ())):
            if name in self.values:
                return self.values[name]
        return None

    def count(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """Returns a whole number of at least `least`; the default may be less. Raises CheckpointError."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < MAX_COUNT:
            what = "is missing" if value is None else f"is {value!r}"
            kind = "positive whole number" if least else "whole number"
            raise CheckpointError("config.json", f"{key} {what}; a {kind} is expected")
        return value

    def positive(self, key: str) -> float | None:
        """Returns a number above zero; None if there is none. Raises CheckpointError."""
        value = self.get(key)
        return None if value is None else positive_of({key: value}, key, 1.0)

    def text(self, key: str, default: str) -> str:
        value = self.get(key)
        if value is not None and not isinstance(value, str):
            raise CheckpointError("config.json", f"{key} is {value!r}; a text is expected")
        return value or default

    def flag(self, key: str) -> bool:
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            raise CheckpointError("config.json", f"{key} is {value!r}; true or false is expected")
        return bool(value)


def normalize_config(config: Mapping[str, Any]) -> ConfigFacts:
    """Returns the typed view of a config. A multimodal config is read through its `text_config`.

    Raises CheckpointError naming a key that is missing, or has a wrong type or an unknown value.
    """
    fields = _Fields(text_config(config))
    num_heads, hidden_size = fields.count("num_attention_heads"), fields.count("hidden_size")
    num_layers = fields.count("num_hidden_layers")
    if num_layers > MAX_LAYERS:
        raise CheckpointError("config.json", f"num_hidden_layers is {num_layers}; at most {MAX_LAYERS} are read")
    if hidden_size < num_heads:
        raise CheckpointError(
            "config.json", f"hidden_size is {hidden_size}, less than num_attention_heads, {num_heads}"
        )
    head_dim = fields.count("head_dim", hidden_size // num_heads)
    num_kv_heads = fields.count("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        problem = f"num_attention_heads is {num_heads}, which is no multiple of num_key_value_heads, {num_kv_heads}"
        raise CheckpointError("config.json", problem)
    ropes = layer_ropes(fields.values, fields.model_type)
    kinds = _layer_kinds(fields, num_layers)
    window = fields.count("sliding_window", 0, least=0) or None
    return ConfigFacts(
        model_type=fields.model_type,
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=_intermediate_size(fields, hidden_size),
        moe_intermediate_size=fields.count("moe_intermediate_size", _intermediate_size(fields, hidden_size)),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=fields.count("vocab_size"),
        max_position=_max_position(fields, ropes),
        norm_eps=_norm_eps(fields),
        activation=fields.text("hidden_activation", "") or fields.text("hidden_act", "silu"),
        tie_embeddings=fields.flag("tie_word_embeddings"),
        attention_bias=fields.flag("attention_bias"),
        attention_out_bias=_has_out_bias(fields),
        mlp_bias=fields.flag("mlp_bias"),
        query_pre_attn_scalar=fields.positive("query_pre_attn_scalar") or float(head_dim),
        attn_soft_cap=fields.positive("attn_logit_softcapping"),
        final_soft_cap=fields.positive("final_logit_softcapping"),
        num_experts=fields.count("num_local_experts", 0),
        num_experts_per_token=fields.count("num_experts_per_tok", 0),
        layers=tuple(
            LayerFacts(window=window if kind == "sliding_attention" else None, rope=ropes.get(kind)) for kind in kinds
        ),
    )


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the language model's part of a config."""
    inner = config.get("text_config")
    if inner is None:
        return config
    return {"tie_word_embeddings": config.get("tie_word_embeddings"), **mapping_of("text_config", inner)}


def derive_geometry(config: ConfigFacts) -> Geometry:
    """Returns the sizes that planning needs. Layers with equal windows form a group, ordered by their first layer."""
    windows = dict.fromkeys(layer.window for layer in config.layers)
    return Geometry(
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        intermediate_size=config.moe_intermediate_size if config.num_experts else config.intermediate_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        vocab_size=config.vocab_size,
        max_position=config.max_position,
        num_experts=config.num_experts,
        num_experts_per_token=config.num_experts_per_token,
        tie_embeddings=config.tie_embeddings,
        groups=tuple(
            AttentionGroup(
                layers=tuple(index for index, layer in enumerate(config.layers) if layer.window == window),
                num_kv_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                window=window,
            )
            for window in windows
        ),
    )


def _has_out_bias(fields: _Fields) -> bool:
    """Returns whether the output projection has a bias: `attention_bias` covers it too, except for Qwen 2."""
    if fields.get("attention_out_bias") is not None:
        return fields.flag("attention_out_bias")
    return fields.flag("attention_bias") and not fields.model_type.startswith(("qwen2", "glm4_moe"))


def _norm_eps(fields: _Fields) -> float:
    found = fields.positive("rms_norm_eps") or (1e-5 if fields.model_type == "gpt2" else 1e-6)
    if found >= 1:
        raise CheckpointError("config.json", f"rms_norm_eps is {found:g}; a number below 1 is expected")
    return found


def _intermediate_size(fields: _Fields, hidden_size: int) -> int:
    if fields.model_type == "gpt2":
        return fields.count("intermediate_size", 4 * hidden_size)
    if fields.get("intermediate_size") is None and fields.get("moe_intermediate_size") is not None:
        return fields.count("moe_intermediate_size")  # every layer has experts
    return fields.count("intermediate_size")


def _max_position(fields: _Fields, ropes: Mapping[str, RopeFacts]) -> int:
    """Returns the context length: scaled if the config gives the length before scaling (vLLM's rule)."""
    claimed = fields.count("max_position_embeddings")
    rope = ropes.get("full_attention")
    if rope is None or rope.kind not in _EXTENDED_BY_ROPE or fields.model_type.startswith("gemma3"):
        return claimed
    if rope.kind == "yarn":
        claimed = int(number_of(rope.parameters, "original_max_position_embeddings", claimed))
    factor = number_of(rope.parameters, "factor", 1.0)
    if factor <= 0:
        return claimed  # the model's family refuses such a factor
    scaled = int(claimed * factor)
    if not 0 < scaled < MAX_COUNT:
        raise CheckpointError("config.json", f"the rotary scaling makes a context of {scaled} tokens")
    return scaled


def _layer_kinds(fields: _Fields, num_layers: int) -> list[str]:
    stated = fields.get("layer_types")
    if stated is not None:
        return _stated_kinds(stated, num_layers)
    if not fields.count("sliding_window", 0, least=0):
        return ["full_attention"] * num_layers
    if fields.model_type in _GATED_WINDOWS:
        return _gated_kinds(fields, num_layers)
    usual = fields.count("_sliding_window_pattern", _WINDOW_PATTERNS.get(fields.model_type, 0))
    pattern = fields.count("sliding_window_pattern", usual)
    if not pattern:
        return ["sliding_attention"] * num_layers
    return [_LAYER_TYPES[(index + 1) % pattern != 0] for index in range(num_layers)]


def _gated_kinds(fields: _Fields, num_layers: int) -> list[str]:
    """Returns the layer types of families whose windows begin at a layer, or have a switch (_GATED_WINDOWS)."""
    first = fields.count("max_window_layers", num_layers, least=0)
    if fields.model_type != "dots1" and not fields.flag("use_sliding_window"):
        first = num_layers
    elif fields.model_type == "qwen3_moe":
        first = 0
    elif fields.model_type == "qwen2_moe":
        return [_LAYER_TYPES[index % 2 == 0 and index < first] for index in range(num_layers)]
    return [_LAYER_TYPES[index >= first] for index in range(num_layers)]


def _stated_kinds(stated: Any, num_layers: int) -> list[str]:
    if not isinstance(stated, list) or len(stated) != num_layers:
        raise CheckpointError("config.json", f"layer_types must list {num_layers} layers")
    for kind in stated:
        if kind not in _LAYER_TYPES:
            raise CheckpointError(
                "config.json", f"layer type {kind!r} is not in this version", f"known: {_LAYER_TYPES}"
            )
    return stated
