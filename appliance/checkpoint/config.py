"""The typed view of a Hugging Face config of any version.

Transformers 5 writes `rope_parameters` and `layer_types`; older configs have `rope_theta`, `rope_scaling` and one of
several switches for sliding windows; GGUF metadata is translated into the older form. Planning and models read this
view, so only this module knows the versions. Defaults are those of the transformers configuration classes.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from appliance.checkpoint.dialect import MAX_COUNT, MAX_LAYERS, OTHER
from appliance.checkpoint.dialects import DIALECTS, SAME_AS
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import AttentionGroup, Geometry
from appliance.checkpoint.rope import RopeFacts, layer_ropes, mapping_of, number_of, positive_of


class LayerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One layer. kind: transformers' layer type, such as "full_attention"."""

    kind: str
    window: int | None  # tokens a query sees, itself included; None is full attention
    chunk: int | None = None  # a query sees only its own chunk of so many tokens
    rope: RopeFacts | None  # None if positions are learned

    @property
    def attends(self) -> bool:
        """Says whether the layer has attention, beside which it may have another mixer."""
        return self.kind in ATTENTION_KINDS


class ConfigFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder's config with every default filled in. None means "the model has none"."""

    model_type: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    moe_intermediate_size: int  # of one expert
    num_heads: int  # of attention; zero in a model that has none, as are the next two
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
    attention_scale: float  # a factor of the attention scores
    attn_soft_cap: float | None
    final_soft_cap: float | None
    num_experts: int
    num_experts_per_token: int
    layers: tuple[LayerFacts, ...]


_ALIASES: Final[dict[str, tuple[str, ...]]] = {
    "num_hidden_layers": ("n_layer",),
    "hidden_size": ("n_embd",),
    "num_attention_heads": ("n_head",),
    "max_position_embeddings": ("n_positions", "n_ctx", "model_max_length"),
    "intermediate_size": ("n_inner",),
    "rms_norm_eps": ("layer_norm_epsilon", "layer_norm_eps", "norm_epsilon"),
    "hidden_act": ("hidden_activation", "activation_function"),
    "num_local_experts": ("num_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": ("moe_k",),
    "attention_bias": ("qkv_bias",),
}
_NULL_IS_NONE: Final = ("sliding_window", "attn_logit_softcapping", "final_logit_softcapping")
_LAYER_TYPES: Final = ("full_attention", "sliding_attention", "chunked_attention")
ATTENTION_KINDS: Final = (*_LAYER_TYPES, "hybrid")  # hybrid: attention beside a recurrent mixer
_OLDER_KINDS: Final = {"attention": "full_attention", "mamba": "linear_attention"}
_EXTENDED_BY_ROPE: Final = ("linear", "dynamic", "yarn")


class ConfigFields:
    """Typed lookups in a config: its own names, then values that follow from others, then defaults. A wrong type is an
    error that names the key."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Raises CheckpointError for a model_type that is no text."""
        self._stated: dict[str, Any] = {"model_type": config.get("model_type")}
        self._filled: Mapping[str, Any] = {}
        self.dialect = OTHER
        self.model_type = self.text("model_type", "")
        self.dialect = DIALECTS.get(SAME_AS.get(self.model_type, self.model_type), OTHER)
        self._stated = {key: value for key, value in config.items() if value is not None}
        # An explicit null is an answer where null means "none" and not "the default".
        nulls = {key for key in _NULL_IS_NONE if key in config and config[key] is None}
        filled = {**self.dialect.defaults, **self.dialect.derived({**self.dialect.defaults, **self._stated})}
        self._filled = {key: value for key, value in filled.items() if key not in nulls and value is not None}

    @property
    def values(self) -> Mapping[str, Any]:
        """All values by their names in the config, and under ours where the model type has another."""
        renamed = {key: self._stated[name] for key, name in self.dialect.names.items() if name in self._stated}
        return {**self._filled, **renamed, **self._stated}

    def get(self, key: str) -> Any:
        names = (*self._own_names(key), key, *_ALIASES.get(key, ()))
        found = (source[name] for source in (self._stated, self._filled) for name in names if name in source)
        return next(found, None)

    def _own_names(self, key: str) -> tuple[str, ...]:
        name = self.dialect.names.get(key)
        return () if name is None else (name,)

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
    fields = ConfigFields(text_config(config))
    num_layers = fields.count("num_hidden_layers")
    if num_layers > MAX_LAYERS:
        raise CheckpointError("config.json", f"num_hidden_layers is {num_layers}; at most {MAX_LAYERS} are read")
    rotates, hidden_size = _rotated_layers(fields, num_layers), fields.count("hidden_size")
    kinds = _layer_kinds(fields, rotates)
    attends = not set(ATTENTION_KINDS).isdisjoint(kinds)
    num_heads, num_kv_heads, head_dim = _heads(fields, hidden_size) if attends else (0, 0, 0)
    ropes = {} if fields.dialect.rotates == "none" else layer_ropes(fields.values, fields.model_type)
    return ConfigFacts(
        model_type=fields.model_type,
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=_intermediate_size(fields),
        moe_intermediate_size=fields.count("moe_intermediate_size", _intermediate_size(fields)),
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
        attention_scale=_attention_scale(fields, head_dim),
        attn_soft_cap=fields.positive("attn_logit_softcapping"),
        final_soft_cap=fields.positive("final_logit_softcapping"),
        num_experts=fields.count("num_local_experts", 0, least=0),
        num_experts_per_token=fields.count("num_experts_per_tok", 0, least=0),
        layers=tuple(_layers(fields, kinds, rotates, ropes)),
    )


def _heads(fields: ConfigFields, hidden_size: int) -> tuple[int, int, int]:
    """Returns the numbers of query and of KV heads, and the size of a head."""
    num_heads = fields.count("num_attention_heads")
    if hidden_size < num_heads:
        raise CheckpointError(
            "config.json", f"hidden_size is {hidden_size}, less than num_attention_heads, {num_heads}"
        )
    num_kv_heads = fields.count("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        problem = f"num_attention_heads is {num_heads}, which is no multiple of num_key_value_heads, {num_kv_heads}"
        raise CheckpointError("config.json", problem)
    return num_heads, num_kv_heads, fields.count("head_dim", hidden_size // num_heads)


def _layers(
    fields: ConfigFields, kinds: list[str], rotates_by_layer: list[bool], ropes: Mapping[str, RopeFacts]
) -> Iterator[LayerFacts]:
    window = fields.count("sliding_window", 0, least=0) or None
    for kind, rotates in zip(kinds, rotates_by_layer, strict=True):
        is_windowed = kind == "sliding_attention"
        has_rope = rotates and (is_windowed or fields.dialect.rotates != "windows" or window is None)
        yield LayerFacts(
            kind=kind,
            window=window if is_windowed else None,
            chunk=fields.count("attention_chunk_size") if kind == "chunked_attention" else None,
            rope=ropes.get(kind, ropes.get("full_attention")) if has_rope else None,
        )


def _rotated_layers(fields: ConfigFields, num_layers: int) -> list[bool]:
    """SmolLM 3's list has a one for each layer that rotates; without the list, or if it is empty, all but every n-th
    do."""
    stated = fields.get("no_rope_layers")
    if stated is None or stated == []:
        every = fields.count("no_rope_layer_interval", 0)
        return [not every or (index + 1) % every != 0 for index in range(num_layers)]
    if not isinstance(stated, list) or len(stated) != num_layers or any(flag not in (0, 1) for flag in stated):
        raise CheckpointError("config.json", f"no_rope_layers must list 0 or 1 for each of {num_layers} layers")
    return [bool(flag) for flag in stated]


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the language model's part of a config."""
    inner = config.get("text_config")
    if inner is None:
        return config
    return {"tie_word_embeddings": config.get("tie_word_embeddings"), **mapping_of("text_config", inner)}


def derive_geometry(config: ConfigFacts) -> Geometry:
    """Returns the sizes that planning needs. Layers with equal windows form a group, ordered by their first layer. A
    chunk is a window that long."""
    reaches = {index: layer.window or layer.chunk for index, layer in enumerate(config.layers) if layer.attends}
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
                layers=tuple(index for index, reach in reaches.items() if reach == window),
                num_kv_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                window=window,
            )
            for window in dict.fromkeys(reaches.values())
        ),
    )


def _has_out_bias(fields: ConfigFields) -> bool:
    """Returns whether the output projection has a bias: some families have biases of query, key and value only."""
    if fields.get("attention_out_bias") is not None:
        return fields.flag("attention_out_bias")
    return fields.flag("attention_bias")


def _attention_scale(fields: ConfigFields, head_dim: int) -> float:
    """Granite states the factor itself, Gemma the number whose power -1/2 it is; for others that is the head's size."""
    return (
        fields.positive("attention_multiplier") or (fields.positive("query_pre_attn_scalar") or head_dim or 1) ** -0.5
    )


def _norm_eps(fields: ConfigFields) -> float:
    found = fields.positive("rms_norm_eps") or 1e-6
    if found >= 1:
        raise CheckpointError("config.json", f"rms_norm_eps is {found:g}; a number below 1 is expected")
    return found


def _intermediate_size(fields: ConfigFields) -> int:
    if fields.get("intermediate_size") is None and fields.get("moe_intermediate_size") is not None:
        return fields.count("moe_intermediate_size")  # every layer has experts
    if isinstance(stated := fields.get("intermediate_size"), list):  # one for each layer
        return max((ConfigFields({"intermediate_size": each}).count("intermediate_size") for each in stated), default=1)
    return fields.count("intermediate_size")


def _max_position(fields: ConfigFields, ropes: Mapping[str, RopeFacts]) -> int:
    """Returns the context length: scaled if the config gives the length before scaling (vLLM's rule)."""
    claimed = fields.count("max_position_embeddings") - fields.dialect.first_position
    if claimed < 1:
        raise CheckpointError("config.json", "max_position_embeddings leaves no position for a token")
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


def _layer_kinds(fields: ConfigFields, rotates: list[bool]) -> list[str]:
    """rotates: by layer, whether it has rotary positions."""
    stated, num_layers = fields.get("layer_types"), len(rotates)
    if stated is not None:
        return _stated_kinds(fields, stated, num_layers)
    if fields.dialect.kinds[0] not in _LAYER_TYPES:
        return [fields.dialect.kinds[0]] * num_layers
    if fields.dialect.has_chunks:
        return ["chunked_attention" if has_rope else "full_attention" for has_rope in rotates]
    if not fields.count("sliding_window", 0, least=0):
        return ["full_attention"] * num_layers
    if fields.dialect.window_switch:
        return _gated_kinds(fields, num_layers)
    usual = fields.count("_sliding_window_pattern", fields.dialect.window_every)
    pattern = fields.count("sliding_window_pattern", usual)
    if not pattern:
        return ["sliding_attention"] * num_layers
    return [_LAYER_TYPES[(index + 1) % pattern != 0] for index in range(num_layers)]


def _gated_kinds(fields: ConfigFields, num_layers: int) -> list[str]:
    """Returns the layer types of families whose windows begin at a layer, or have a switch (Dialect.window_switch)."""
    first = fields.count("max_window_layers", num_layers, least=0)
    if fields.model_type != "dots1" and not fields.flag("use_sliding_window"):
        first = num_layers
    elif fields.model_type == "qwen3_moe":
        first = 0
    elif fields.model_type == "qwen2_moe":
        return [_LAYER_TYPES[index % 2 == 0 and index < first] for index in range(num_layers)]
    return [_LAYER_TYPES[index >= first] for index in range(num_layers)]


def _stated_kinds(fields: ConfigFields, stated: Any, num_layers: int) -> list[str]:
    if not isinstance(stated, list) or len(stated) != num_layers:
        raise CheckpointError("config.json", f"layer_types must list {num_layers} layers")
    kinds, known = [_OLDER_KINDS.get(str(kind), str(kind)) for kind in stated], fields.dialect.kinds
    for kind in kinds:
        if kind not in known:
            raise CheckpointError("config.json", f"layer type {kind!r} is not in this version", f"known: {known}")
    return kinds
