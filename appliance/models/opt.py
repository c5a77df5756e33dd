"""OPT: learned positions from the third row on, layer norms, biases, and a ReLU without a gate."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.norm_spec import NormSpec
from appliance.layers.spec import DecoderSpec
from appliance.models.dense import Dense, dense_decoder
from appliance.models.errors import ModelError, Problem
from appliance.models.family import Model

_MODULES = {
    "embed": "decoder.embed_tokens", "positions": "decoder.embed_positions", "norm": "decoder.final_layer_norm",
    "attention_norm": "self_attn_layer_norm", "feed_forward_norm": "final_layer_norm", "o": "self_attn.out_proj",
    "up": "fc1", "down": "fc2",
}  # fmt: skip


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    """Raises ModelError for the 350M model, which alone has its norms on the sum and a narrower embedding."""
    model = Model.of(facts, max_model_len, {"_remove_final_layer_norm": "the last norm is always there"})
    if not model.flag("do_layer_norm_before", default=True):
        raise ModelError(Problem("do_layer_norm_before: false in the checkpoint's config is not in this version"))
    if model.count("word_embed_proj_dim", model.config.hidden_size) != model.config.hidden_size:
        raise ModelError(Problem("an embedding narrower than the layers (word_embed_proj_dim) is not in this version"))
    has_weight = model.flag("layer_norm_elementwise_affine", default=True)
    dense = Dense(
        modules=_MODULES,
        layers="decoder.layers.",
        norm=NormSpec("layer", model.config.norm_eps, weight=has_weight, bias=has_weight),
        gated=False,
        learned_positions=True,
        position_offset=2,
    )
    return dense_decoder(model, dense)
