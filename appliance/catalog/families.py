"""What the built families can express of a config: refused while planning, before anything is loaded."""

from collections.abc import Mapping

# Under the names of transformers; models.family says what each computes.
ACTIVATIONS = ("silu", "swish", "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "relu", "relu2")

# By kind of rotary scaling: the numbers that its parameters must have. models.rotary says what each computes.
ROTARY_NUMBERS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
    "longrope": (),
}

# Keys of a config that, when they are true, ask for what no family has.
_BIDIRECTIONAL = {"use_bidirectional_attention": "attention here is causal"}
REFUSED_KEYS: Mapping[str, Mapping[str, str]] = {
    "Gemma2ForCausalLM": _BIDIRECTIONAL,
    "Gemma3ForCausalLM": _BIDIRECTIONAL,
    "GPT2LMHeadModel": {"add_cross_attention": "there is no encoder to attend to"},
}
