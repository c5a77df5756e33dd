"""MiMo V2 Flash: values narrower than keys, windowed layers with sinks and more KV heads, and DeepSeek V3's experts."""

from msgspec.structs import replace

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import AttentionSpec, DecoderSpec
from appliance.models.deepseek_routing import deepseek_mixture
from appliance.models.dense import Dense, dense_decoder
from appliance.models.experts import Mixture
from appliance.models.family import Model, Part

_DRAFTING = ("*mtp.*",)  # layers that draft tokens for speculation
_SINKS = ("self_attn.sinks", "self_attn.attention_sink_bias")  # transformers' name, and that of the first checkpoints


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len, {"add_full_attention_sink_bias": "only windowed layers have sinks"})
    sinks = Part("sinks", next((name for name in _SINKS if model.has_tensor(f".{name}")), _SINKS[0]), suffix="")
    dense = Dense(
        mixer=lambda _, attention: _attention(model, attention),
        parts=lambda layer: () if model.config.layers[layer].window is None else (sinks,),
        ignored=_DRAFTING,
    )
    return dense_decoder(model, dense, _mixture(model))


def _attention(model: Model, attention: AttentionSpec) -> AttentionSpec:
    scale = model.number("attention_value_scale", 1.0)
    changed = replace(attention, value_dim=model.count("v_head_dim", 128), value_scale=scale)
    if attention.window is None:
        return changed
    return replace(changed, sinks=True, num_kv_heads=model.count("swa_num_key_value_heads", 2 * attention.num_kv_heads))


def _mixture(model: Model) -> Mixture:
    """The config has the kind of each layer's feed-forward, or a one for each layer with experts."""
    mixture = deepseek_mixture(model, renormalize=True, first_dense=1)
    if (kinds := model.fields.get("mlp_layer_types")) is not None:
        return replace(mixture, is_sparse=tuple(kind == "sparse" for kind in kinds))
    frequencies = model.counts("moe_layer_freq")
    return replace(mixture, is_sparse=tuple(map(bool, frequencies))) if frequencies else mixture
