"""ModernBERT: norms before the blocks, rotary positions, gated feed-forwards, and windows in most layers.

The first layer's attention reads the embeddings, which are normed already.
"""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.norm_spec import NormSpec
from appliance.layers.spec import DecoderSpec
from appliance.models.dense import Dense, Encoder, dense_decoder
from appliance.models.family import Model

_MODULES = {
    "embed": "embeddings.tok_embeddings", "embed_norm": "embeddings.norm", "norm": "final_norm",
    "attention_norm": "attn_norm", "qkv": "attn.Wqkv", "o": "attn.Wo", "feed_forward_norm": "mlp_norm",
    "gate_up": "mlp.Wi", "down": "mlp.Wo",
}  # fmt: skip


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len)
    dense = Dense(
        modules=_MODULES,
        norm=NormSpec("layer", model.config.norm_eps, bias=model.flag("norm_bias", default=False)),
        qkv="joined",
        gate_up=True,
        encoder=Encoder(final_norm=True, bare_first=True),
    )
    return dense_decoder(model, dense)
