"""OLMo Hybrid: gated delta layers whose eigenvalues may be negative, with norms before them, among layers of OLMo 2."""

from msgspec.structs import replace

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.norm_spec import NormSpec
from appliance.layers.spec import DecoderSpec, ResidualSpec
from appliance.models.dense import Dense, Recurrent, dense_decoder
from appliance.models.family import Model
from appliance.models.gated_delta import gated_delta_spec, separate_parts

_BEFORE = "feedforward_layer_norm"
_MODULES = {
    **{name: f"{name}_proj" for name in "qkv"},
    "z": "g_proj",
    "beta": "b_proj",
    "decay": "a_proj",
    "norm": "o_norm",
    "o": "o_proj",
}


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    """The norm of the gated delta rule's output has an epsilon of its own. Transformers saves the norm after attention
    under the name of the one before a feed-forward."""
    model = Model.of(facts, max_model_len)
    spec = replace(
        gated_delta_spec(model),
        norm=NormSpec("rms", 1e-5),
        beta_scale=2.0 if model.flag("linear_allow_neg_eigval", default=True) else 1.0,
    )
    recurrent = Recurrent(spec, separate_parts(model, _MODULES, "linear_attn"), residual=ResidualSpec("pre"))
    after = "post_attention_layernorm" if model.has_tensor(".post_attention_layernorm.weight") else _BEFORE
    modules = {"attention_norm": "attention_layer_norm", "feed_forward_norm": _BEFORE, "post_attention_norm": after}
    dense = Dense(modules=modules, residual=ResidualSpec("output"), query_key_norm=model.query_key_norm("whole"))
    return dense_decoder(model, dense, recurrent=recurrent)
