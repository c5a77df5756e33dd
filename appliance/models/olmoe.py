"""OLMoE and FlexOlmo: OLMo's norms of all query heads and all key heads, and experts chosen by softmax."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec, ResidualSpec
from appliance.models.dense import Dense, dense_decoder
from appliance.models.experts import Mixture
from appliance.models.family import Model
from appliance.models.olmo import CLIPPED
from appliance.models.qwen2_moe import qwen_routing


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    """FlexOlmo norms the output of its blocks, as OLMo 2 does."""
    model = Model.of(facts, max_model_len, CLIPPED)
    dense = Dense(
        residual=ResidualSpec("output" if model.config.model_type == "flex_olmo" else "pre"),
        query_key_norm=model.query_key_norm("whole"),
    )
    return dense_decoder(model, dense, Mixture.of(model, model.experts(qwen_routing(model))))
