"""Phi 1, 1.5 and 2: both blocks of a layer read one layer norm, part of a head rotates, the output head has a bias."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.norm_spec import NormSpec
from appliance.layers.spec import DecoderSpec, QueryKeyNorm, ResidualSpec
from appliance.models.dense import Dense, dense_decoder
from appliance.models.family import Model

_MODULES = {
    "norm": "final_layernorm", "o": "self_attn.dense", "q_norm": "self_attn.q_layernorm",
    "k_norm": "self_attn.k_layernorm", "up": "mlp.fc1", "down": "mlp.fc2",
}  # fmt: skip


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len)
    norm = NormSpec("layer", model.config.norm_eps, bias=True)
    dense = Dense(
        modules=_MODULES,
        norm=norm,
        residual=ResidualSpec(parallel=True, one_norm=True),
        query_key_norm=QueryKeyNorm(norm) if model.flag("qk_layernorm", default=False) else None,
        gated=False,
        head_bias=True,
    )
    return dense_decoder(model, dense)
