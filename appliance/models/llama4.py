"""Llama 4 (text): layers that see their own chunk beside layers without positions, and experts chosen by sigmoids."""

from msgspec.structs import replace

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.norm_spec import NormSpec
from appliance.layers.spec import AttentionSpec, DecoderSpec, ExpertsSpec, QueryKeyNorm, RoutingSpec, Temperature
from appliance.models.dense import Dense, dense_decoder
from appliance.models.experts import ExpertModules, Mixture
from appliance.models.family import Model

_MODULES = ExpertModules(
    experts="feed_forward.experts",
    router="feed_forward.router",
    gate="gate_up_proj",
    up="gate_up_proj",
    shared="feed_forward.shared_expert",
    suffix="",
    transform="transpose",
)
_APART = ExpertModules(  # as GGUF files have them, and quantized checkpoints, with a tensor for each expert
    experts="feed_forward.experts", router="feed_forward.router", shared="feed_forward.shared_expert"
)
_DENSE = {name: f"feed_forward.{name}_proj" for name in ("gate", "up", "down")}
_OTHER_MEDIA = ("vision_model.*", "multi_modal_projector.*")


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    """Images are no part of this version: the weights that read them are left out."""
    model = Model.of(facts, max_model_len)
    is_part = any(tensor.name.startswith("language_model.") for tensor in facts.tensors)
    dense = Dense(
        interleaved=True,
        root="language_model.model." if is_part else "model.",
        modules=_DENSE | ({"head": "language_model.lm_head"} if is_part else {}),
        mixer=lambda _, attention: _attention(model, attention),
        ignored=_OTHER_MEDIA,
    )
    width = model.count("intermediate_size_mlp", model.config.intermediate_size)
    return dense_decoder(
        model, dense, _mixture(model), feed_forward=replace(model.feed_forward(), intermediate_size=width)
    )


def _attention(model: Model, attention: AttentionSpec) -> AttentionSpec:
    """Layers with positions norm what they rotated; the others are warmer at later positions."""
    if attention.rope is not None:
        norm = QueryKeyNorm(NormSpec("rms", model.config.norm_eps, weight=False), after_rotation=True)
        return replace(attention, query_key_norm=norm if model.flag("use_qk_norm", default=True) else None)
    if model.fields.get("attn_temperature_tuning") in (False, 0):
        return attention
    tuning = Temperature(model.number("attn_scale", 0.1), model.count("floor_scale", 8192), offset=1)
    return replace(attention, temperature=tuning)


def _mixture(model: Model) -> Mixture:
    num_layers, step = model.config.num_layers, model.count("interleave_moe_layer_step", 1)
    sparse = set(model.counts("moe_layers") or (range(step - 1, num_layers, step) if step else ()))
    modules = _APART if model.facts.format == "gguf" or model.has_tensor(".experts.0.down_proj.weight") else _MODULES
    return Mixture.of(model, _experts(model), modules, tuple(index in sparse for index in range(num_layers)))


def _experts(model: Model) -> ExpertsSpec:
    return replace(model.experts(RoutingSpec("sigmoid"), model.shared_experts(1)), weigh_input=True)
