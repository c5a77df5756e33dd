"""A substitute for a decoder that this version cannot build, so that its plan still has all parts."""

from appliance.checkpoint.config import normalize_config, text_config
from appliance.checkpoint.dialect import size_of
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import ModelFacts
from appliance.checkpoint.rope import RopeFacts
from appliance.layers.decoder import compile_decoder
from appliance.layers.norm_spec import NormSpec
from appliance.layers.rope import RopeSpec
from appliance.layers.spec import AttentionSpec, DecoderSpec, FeedForwardSpec, LayerSpec
from appliance.models.describe import Described
from appliance.program.caches import KvShape

_COMPUTED = ("*rotary_emb.inv_freq",)  # tensors that are stored, and not read


def outline(facts: ModelFacts) -> Described:
    """Returns a gated decoder with the checkpoint's sizes and windows. It names no tensors, and serves estimates, and
    modelling code that is not ours: its caches are those that such code fills, so latent attention has keys and values
    of every head."""
    sizes = facts.geometry
    windows = {layer: group.window for group in sizes.groups for layer in group.layers}
    ropes, heads = _ropes(facts), _heads(facts)
    layers = tuple(
        LayerSpec(
            AttentionSpec(
                num_heads=sizes.num_heads,
                num_kv_heads=heads.num_kv_heads,
                head_dim=heads.key_dim,
                scale=heads.key_dim**-0.5,
                rope=ropes[layer],
                window=windows[layer],
                value_dim=None if heads.value_dim == heads.key_dim else heads.value_dim,
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


def _heads(facts: ModelFacts) -> KvShape:
    """Returns the heads of a layer's cache: the geometry's, if the widths of latent attention are not stated."""
    sizes, config = facts.geometry, text_config(facts.config)
    widths = [size_of(config.get(name)) for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")]
    if config.get("kv_lora_rank") is None or not all(widths):
        return KvShape(sizes.num_kv_heads, sizes.head_dim, sizes.head_dim)
    return KvShape(sizes.num_heads, widths[0] + widths[1], widths[2])


def _ropes(facts: ModelFacts) -> list[RopeSpec | None]:
    """Returns each layer's rotation without its scaling; None if the config has another form."""
    try:
        config = normalize_config(facts.config)
    except CheckpointError:
        return [None] * facts.geometry.num_layers
    return [_rope(layer.rope, config.head_dim) for layer in config.layers]


def _rope(facts: RopeFacts | None, head_dim: int) -> RopeSpec | None:
    return None if facts is None else RopeSpec(int(head_dim * facts.partial_factor), facts.theta)
