"""The GGUF architectures that are read, and the Hugging Face class of each."""

from typing import Any, Final

from appliance.checkpoint.facts import StoredConventions

ARCHITECTURES: Final = {
    "afmoe": ("AfmoeForCausalLM", "afmoe"),
    "baichuan": ("BaichuanForCausalLM", "baichuan"),
    "bloom": ("BloomForCausalLM", "bloom"),
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
    "qwen2moe": ("Qwen2MoeForCausalLM", "qwen2_moe"),
    "qwen3moe": ("Qwen3MoeForCausalLM", "qwen3_moe"),
    "deepseek2": ("DeepseekV3ForCausalLM", "deepseek_v3"),
    "dots1": ("Dots1ForCausalLM", "dots1"),
    "falcon": ("FalconForCausalLM", "falcon"),
    "glm4moe": ("Glm4MoeForCausalLM", "glm4_moe"),
    "ernie4_5-moe": ("Ernie4_5_MoeForCausalLM", "ernie4_5_moe"),
    "arcee": ("ArceeForCausalLM", "arcee"),
    "cohere2": ("Cohere2ForCausalLM", "cohere2"),
    "command-r": ("CohereForCausalLM", "cohere"),
    "ernie4_5": ("Ernie4_5ForCausalLM", "ernie4_5"),
    "exaone4": ("Exaone4ForCausalLM", "exaone4"),
    "gemma": ("GemmaForCausalLM", "gemma"),
    "gemma2": ("Gemma2ForCausalLM", "gemma2"),
    "gemma3": ("Gemma3ForCausalLM", "gemma3_text"),
    "gemma3n": ("Gemma3nForCausalLM", "gemma3n_text"),
    "gemma4": ("Gemma4ForCausalLM", "gemma4_text"),
    "glm4": ("Glm4ForCausalLM", "glm4"),
    "granite": ("GraniteForCausalLM", "granite"),
    "granitemoe": ("GraniteMoeForCausalLM", "granitemoe"),
    "hunyuan-dense": ("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense"),
    "hunyuan-moe": ("HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe"),
    "lfm2": ("Lfm2ForCausalLM", "lfm2"),
    "lfm2moe": ("Lfm2MoeForCausalLM", "lfm2_moe"),
    "llama4": ("Llama4ForCausalLM", "llama4_text"),
    "mamba": ("MambaForCausalLM", "mamba"),
    "minicpm": ("MiniCPMForCausalLM", "minicpm"),
    "minicpm3": ("MiniCPM3ForCausalLM", "minicpm3"),
    "mpt": ("MptForCausalLM", "mpt"),
    "nemotron": ("NemotronForCausalLM", "nemotron"),
    "olmo2": ("Olmo2ForCausalLM", "olmo2"),
    "olmoe": ("OlmoeForCausalLM", "olmoe"),
    "minimax-m2": ("MiniMaxM2ForCausalLM", "minimax_m2"),
    "gptneox": ("GPTNeoXForCausalLM", "gpt_neox"),
    "gpt-oss": ("GptOssForCausalLM", "gpt_oss"),
    "phi2": ("PhiForCausalLM", "phi"),
    "phi3": ("Phi3ForCausalLM", "phi3"),
    "gpt2": ("GPT2LMHeadModel", "gpt2"),
    "seed_oss": ("SeedOssForCausalLM", "seed_oss"),
    "smollm3": ("SmolLM3ForCausalLM", "smollm3"),
    "stablelm": ("StableLmForCausalLM", "stablelm"),
    "starcoder2": ("Starcoder2ForCausalLM", "starcoder2"),
}
MIXTRAL: Final = ("MixtralForCausalLM", "mixtral")  # llama with experts
DEEPSEEK_V2: Final = ("DeepseekV2ForCausalLM", "deepseek_v2")  # deepseek2 that scores experts by softmax
FALCON_MAMBA: Final = ("FalconMambaForCausalLM", "falcon_mamba")  # mamba that norms its selections
GRANITE_SHARED: Final = ("GraniteMoeHybridForCausalLM", "granitemoehybrid")  # granitemoe with a shared block
# What a file of an architecture may be besides its usual class.
OTHERWISE: Final = (
    ("deepseek2", DEEPSEEK_V2),
    ("granitemoe", GRANITE_SHARED),
    ("llama", MIXTRAL),
    ("mamba", FALCON_MAMBA),
)
MIXTURES: Final = (
    "llama", "qwen2moe", "qwen3moe", "dots1", "glm4moe", "ernie4_5-moe", "lfm2moe", "olmoe", "minimax-m2", "gpt-oss",
    "afmoe", "deepseek2", "granitemoe", "hunyuan-moe", "llama4", "gemma4",
)  # fmt: skip
# A layer of these without KV heads has another mixer.
HYBRIDS: Final = ("lfm2", "lfm2moe")
CONVENTIONS: Final = {
    "arcee": StoredConventions(interleaved_heads=True),
    "baichuan": StoredConventions(interleaved_heads=True),
    "gemma": StoredConventions(norm_includes_one=True),
    "granite": StoredConventions(interleaved_heads=True),
    "granitemoe": StoredConventions(interleaved_heads=True),
    "llama": StoredConventions(interleaved_heads=True),
    "mamba": StoredConventions(negated_rates=True),
    "minicpm": StoredConventions(interleaved_heads=True),
    "nemotron": StoredConventions(norm_includes_one=True),
    "smollm3": StoredConventions(interleaved_heads=True),
    "gemma2": StoredConventions(norm_includes_one=True),
    "gemma3": StoredConventions(norm_includes_one=True),
}


def named(entry: tuple[str, str]) -> dict[str, Any]:
    """Returns a class and its model type as a config states them."""
    class_name, model_type = entry
    return {"architectures": [class_name], "model_type": model_type}
