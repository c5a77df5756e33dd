"""GLM 4.5 and 4.6: partial rotation, optional head norms, and the experts of DeepSeek V3."""

from msgspec.structs import replace

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec
from appliance.models.deepseek_routing import deepseek_mixture
from appliance.models.family import Model
from appliance.models.llama import llama_decoder


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    """Layers after the last one draft tokens for speculation, and are left out."""
    model = Model.of(facts, max_model_len)
    mixture = deepseek_mixture(model, renormalize=True, first_dense=1)
    decoder = llama_decoder(model, head_norms=model.flag("use_qk_norm", default=False), mixture=mixture)
    first = model.config.num_layers
    drafting = [f"*layers.{first + index}.*" for index in range(model.count("num_nextn_predict_layers", 1))]
    return replace(decoder, ignored_tensors=(*decoder.ignored_tensors, *drafting))
