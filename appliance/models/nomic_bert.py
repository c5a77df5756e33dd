"""Nomic BERT and GTE: BERT with rotary positions and gated feed-forwards; under the hub's names, or transformers'."""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.norm_spec import NormSpec
from appliance.layers.spec import DecoderSpec, ResidualSpec
from appliance.models.dense import Dense, Encoder, dense_decoder
from appliance.models.errors import ModelError, Problem
from appliance.models.family import Model

_EMBEDDINGS: Final = {"embed": "embeddings.word_embeddings"}
_TRANSFORMERS: Final = {
    **_EMBEDDINGS, "post_attention_norm": "post_attention_layernorm", "post_feed_forward_norm": "post_mlp_layernorm",
}  # fmt: skip
_NOMIC: Final = {
    **_EMBEDDINGS, "embed_norm": "emb_ln", "qkv": "attn.Wqkv", "o": "attn.out_proj", "post_attention_norm": "norm1",
    "up": "mlp.fc11", "gate": "mlp.fc12", "down": "mlp.fc2", "post_feed_forward_norm": "norm2",
}  # fmt: skip
_GTE: Final = {
    **_EMBEDDINGS, "qkv": "attention.qkv_proj", "o": "attention.o_proj", "post_attention_norm": "attn_ln",
    "gate_up": "mlp.up_gate_proj", "down": "mlp.down_proj", "post_feed_forward_norm": "mlp_ln",
}  # fmt: skip
_REFUSED: Final[Mapping[str, str]] = {
    "prenorm": "norms follow the sums",
    "use_rms_norm": "norms are layer norms",
    "logn_attention_scale": "scores do not grow with the length",
    "qkv_proj_bias": "its projections have none",
}


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    """Raises ModelError for a variant with experts, among others."""
    model = Model.of(facts, max_model_len, _REFUSED)
    if model.count("moe_every_n_layers", 0):
        raise ModelError(Problem("encoders with experts (moe_every_n_layers) are not in this version"))
    is_gte, is_joined = model.config.model_type != "nomic_bert", _is_joined(model)
    names, layers = _TRANSFORMERS, "layers."
    if is_joined:
        names, layers = (_GTE, "encoder.layer.") if is_gte else (_NOMIC, "encoder.layers.")
    root = {"nomic_bert": "nomic_bert.", "gte": "gte.", "new": "new."}[model.config.model_type]
    dense = Dense(
        modules=names,
        root=root,
        layers=layers,
        norm=NormSpec("layer", model.config.norm_eps, bias=True),
        residual=ResidualSpec("post"),
        qkv="joined" if is_joined else "apart",
        gate_up=is_joined and is_gte,
        encoder=Encoder(token_types=model.has_tensor("token_type_embeddings.weight")),
        up_first=is_joined and is_gte,
    )
    feed_forward = replace(model.feed_forward(), down_bias=True if is_gte else None)
    return dense_decoder(model, dense, feed_forward=feed_forward)


def _is_joined(model: Model) -> bool:
    """Returns whether the checkpoint has one matrix for queries, keys and values, as those of the hub."""
    return model.has_tensor(".Wqkv.weight") or model.has_tensor(".qkv_proj.weight")
