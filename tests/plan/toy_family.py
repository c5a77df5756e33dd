"""A family that nobody has: layers of different widths, the first plain and with full attention, the second gated and
in a window. It is here to see that the planner needs nothing but what a family describes."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.norm_spec import NormSpec
from appliance.layers.spec import AttentionSpec, DecoderSpec, FeedForwardSpec, LayerSpec, WeightSource

HIDDEN, VOCABULARY = 48, 500
FIRST = LayerSpec(AttentionSpec(2, 2, 24, 1.0, None), FeedForwardSpec(40, "relu2", gated=False))
SECOND = LayerSpec(AttentionSpec(4, 1, 8, 1.0, None, window=16), FeedForwardSpec(200, "silu"))
LAYER_WEIGHTS = ("attention_norm", "q", "k", "v", "o", "feed_forward_norm", "up", "down")


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    names = [f"layers.{layer}.{name}" for layer in (0, 1) for name in LAYER_WEIGHTS]
    names += ["layers.1.gate", "embed", "positions", "norm", "head"]
    return DecoderSpec(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        layers=(FIRST, SECOND),
        norm=NormSpec("rms", 1e-6),
        weights={name: WeightSource(f"odd.{name}") for name in names},
        learned_positions=True,
        logit_soft_cap=20.0,
    )
