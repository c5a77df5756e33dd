"""ChatGLM 2 and 3, and GLM-4-9B under the names of its own code: GLM with fused tensors."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec
from appliance.models.dense import Dense, dense_decoder
from appliance.models.errors import ModelError, Problem
from appliance.models.family import Model

_MODULES = {
    "embed": "embedding.word_embeddings", "norm": "encoder.final_layernorm", "head": "transformer.output_layer",
    "qkv": "self_attention.query_key_value", "o": "self_attention.dense",
    "gate_up": "mlp.dense_h_to_4h", "down": "mlp.dense_4h_to_h",
}  # fmt: skip
_REFUSED = {
    "apply_residual_connection_post_layernorm": "blocks would add to the norms in place of the stream",
    "pre_seq_len": "learned prefixes would stand before each prompt",
}
_SET = ("rmsnorm", "post_layer_norm")


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len, _REFUSED)
    for key in _SET:
        if not model.flag(key, default=True):
            raise ModelError(Problem(f"{key} is false in the checkpoint's config, which is not in this version"))
    dense = Dense(
        modules=_MODULES,
        root="transformer.",
        layers="encoder.layers.",
        qkv="joined" if model.flag("multi_query_attention", default=False) else "by_head",
        gate_up=True,
        interleaved=model.flag("original_rope", default=True),
        ignored=("*rotary_pos_emb.inv_freq",),
    )
    return dense_decoder(model, dense)
