"""GPT-J: both blocks of a layer read one layer norm, heads rotate in pairs, and the output head has a bias."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.norm_spec import NormSpec
from appliance.layers.spec import DecoderSpec, ResidualSpec
from appliance.models.dense import Dense, dense_decoder
from appliance.models.family import Model

_MODULES = {
    "embed": "wte", "norm": "ln_f", "attention_norm": "ln_1", "q": "attn.q_proj", "k": "attn.k_proj",
    "v": "attn.v_proj", "o": "attn.out_proj", "up": "mlp.fc_in", "down": "mlp.fc_out",
}  # fmt: skip
_BUFFERS = ("*.attn.bias", "*.attn.masked_bias", "*.attn.embed_positions")


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len)
    dense = Dense(
        modules=_MODULES,
        root="transformer.",
        layers="h.",
        norm=NormSpec("layer", model.config.norm_eps, bias=True),
        residual=ResidualSpec(parallel=True, one_norm=True),
        gated=False,
        interleaved=True,
        head_bias=True,
        ignored=_BUFFERS,
    )
    return dense_decoder(model, dense)
