"""StableLM: Llama with layer norms, part of a head rotated, and blocks that may run side by side on one norm."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.norm_spec import NormSpec
from appliance.layers.spec import DecoderSpec, ResidualSpec
from appliance.models.dense import Dense, dense_decoder
from appliance.models.family import Model

_REFUSED = {"qk_layernorm": "its norms have a tensor for each head"}


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len, _REFUSED)
    is_parallel = model.flag("use_parallel_residual", default=False)
    dense = Dense(
        norm=NormSpec("layer", model.config.norm_eps, bias=True),
        residual=ResidualSpec(parallel=is_parallel, one_norm=is_parallel),
    )
    return dense_decoder(model, dense)
