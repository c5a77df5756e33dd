"""GPT-NeoX and Pythia: layer norms, a fused projection stored by head, and blocks that may run side by side."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.norm_spec import NormSpec
from appliance.layers.spec import DecoderSpec, ResidualSpec
from appliance.models.dense import Dense, dense_decoder
from appliance.models.family import Model

_MODULES = {
    "embed": "embed_in", "norm": "final_layer_norm", "head": "embed_out", "qkv": "attention.query_key_value",
    "o": "attention.dense", "up": "mlp.dense_h_to_4h", "down": "mlp.dense_4h_to_h",
}  # fmt: skip
_BUFFERS = ("*.attention.bias", "*.attention.masked_bias")


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len)
    dense = Dense(
        modules=_MODULES,
        root="gpt_neox.",
        norm=NormSpec("layer", model.config.norm_eps, bias=True),
        residual=ResidualSpec(parallel=model.flag("use_parallel_residual", default=True)),
        qkv="joined" if facts.format == "gguf" else "by_head",
        gated=False,
        ignored=_BUFFERS,
    )
    return dense_decoder(model, dense)
