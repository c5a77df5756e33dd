"""A substitute for a decoder that this version cannot build, so that its plan still has all parts."""

from appliance.checkpoint.config import normalize_config
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import ModelFacts
from appliance.checkpoint.rope import RopeFacts
from appliance.layers.decoder import compile_decoder
from appliance.layers.rope import RopeSpec
from appliance.layers.spec import AttentionSpec, DecoderSpec, FeedForwardSpec, LayerSpec, NormSpec
from appliance.models.describe import Described

_COMPUTED = ("*rotary_emb.inv_freq",)  # tensors that are stored, and not read


def outline(facts: ModelFacts) -> Described:
    """Returns a gated decoder with the checkpoint's sizes and windows. It names no tensors, and serves estimates."""
    sizes = facts.geometry
    windows = {layer: group.window for group in sizes.groups for layer in group.layers}
    ropes = _ropes(facts)
    layers = tuple(
        LayerSpec(
            AttentionSpec(
                num_heads=sizes.num_heads,
                num_kv_heads=sizes.num_kv_heads,
                head_dim=sizes.head_dim,
                scale=sizes.head_dim**-0.5,
                rope=ropes[layer],
                window=windows[layer],
            )
            if layer in windows
            else None,
            FeedForwardSpec(sizes.intermediate_size, "silu"),
        )
        for layer in range(sizes.num_layers)
    )
    spec = DecoderSpec(
        vocab_size=sizes.vocab_size,
        hidden_size=sizes.hidden_size,
        layers=layers,
        norm=NormSpec("rms", 1e-6),
        weights={},
        tie_embeddings=sizes.tie_embeddings,
        ignored_tensors=_COMPUTED + (("lm_head.weight",) if sizes.tie_embeddings else ()),
    )
    return Described(spec, compile_decoder(spec, {}))


def _ropes(facts: ModelFacts) -> list[RopeSpec | None]:
    """Returns each layer's rotation without its scaling; None if the config has another form."""
    try:
        config = normalize_config(facts.config)
    except CheckpointError:
        return [None] * facts.geometry.num_layers
    return [_rope(layer.rope, config.head_dim) for layer in config.layers]


def _rope(facts: RopeFacts | None, head_dim: int) -> RopeSpec | None:
    return None if facts is None else RopeSpec(int(head_dim * facts.partial_factor), facts.theta)
