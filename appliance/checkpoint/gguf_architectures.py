"""The GGUF architectures that are read, and the Hugging Face class of each."""

from typing import Any, Final

from appliance.checkpoint.facts import StoredConventions

ARCHITECTURES: Final = {
    "afmoe": ("AfmoeForCausalLM", "afmoe"),
    "baichuan": ("BaichuanForCausalLM", "baichuan"),
    "chatglm": ("GlmForCausalLM", "glm"),
    "internlm2": ("LlamaForCausalLM", "llama"),
    "jais2": ("Jais2ForCausalLM", "jais2"),
    "kimi-linear": ("KimiLinearForCausalLM", "kimi_linear"),
    "mimo2": ("MiMoV2FlashForCausalLM", "mimo_v2_flash"),
    "mistral3": ("Ministral3ForCausalLM", "ministral3"),
    "olmo": ("OlmoForCausalLM", "olmo"),
    "phimoe": ("PhimoeForCausalLM", "phimoe"),
    "starcoder": ("GPTBigCodeForCausalLM", "gpt_bigcode"),
    "bert": ("BertModel", "bert"),
    "bloom": ("BloomForCausalLM", "bloom"),
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
    "qwen3next": ("Qwen3NextForCausalLM", "qwen3_next"),
    "qwen35": ("Qwen3_5ForCausalLM", "qwen3_5_text"),
    "qwen35moe": ("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text"),
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
    "falcon-h1": ("FalconH1ForCausalLM", "falcon_h1"),
    "gemma": ("GemmaForCausalLM", "gemma"),
    "gemma2": ("Gemma2ForCausalLM", "gemma2"),
    "gemma3": ("Gemma3ForCausalLM", "gemma3_text"),
    "gemma3n": ("Gemma3nForCausalLM", "gemma3n_text"),
    "gemma4": ("Gemma4ForCausalLM", "gemma4_text"),
    "gemma-embedding": ("Gemma3TextModel", "gemma3_text"),
    "glm4": ("Glm4ForCausalLM", "glm4"),
    "granite": ("GraniteForCausalLM", "granite"),
    "granitemoe": ("GraniteMoeForCausalLM", "granitemoe"),
    "granitehybrid": ("GraniteMoeHybridForCausalLM", "granitemoehybrid"),
    "hunyuan-dense": ("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense"),
    "hunyuan-moe": ("HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe"),
    "jamba": ("JambaForCausalLM", "jamba"),
    "lfm2": ("Lfm2ForCausalLM", "lfm2"),
    "lfm2moe": ("Lfm2MoeForCausalLM", "lfm2_moe"),
    "llama4": ("Llama4ForCausalLM", "llama4_text"),
    "mamba": ("MambaForCausalLM", "mamba"),
    "mamba2": ("Mamba2ForCausalLM", "mamba2"),
    "minicpm": ("MiniCPMForCausalLM", "minicpm"),
    "minicpm3": ("MiniCPM3ForCausalLM", "minicpm3"),
    "modern-bert": ("ModernBertModel", "modernbert"),
    "mpt": ("MptForCausalLM", "mpt"),
    "nomic-bert": ("NomicBertModel", "nomic_bert"),
    "nemotron_h": ("NemotronHForCausalLM", "nemotron_h"),
    "nemotron_h_moe": ("NemotronHForCausalLM", "nemotron_h"),
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
BAMBA: Final = ("BambaForCausalLM", "bamba")  # granitehybrid without Granite's multipliers
OLMO3: Final = ("Olmo3ForCausalLM", "olmo3")  # olmo2 with windows
GRANITE_SHARED: Final = ("GraniteMoeHybridForCausalLM", "granitemoehybrid")  # granitemoe with a shared block
# What a file of an architecture may be besides its usual class.
OTHERWISE: Final = (
    ("deepseek2", DEEPSEEK_V2),
    ("granitehybrid", BAMBA),
    ("granitemoe", GRANITE_SHARED),
    ("llama", MIXTRAL),
    ("mamba", FALCON_MAMBA),
    ("olmo2", OLMO3),
)
MIXTURES: Final = (
    "llama", "qwen2moe", "qwen3moe", "dots1", "glm4moe", "ernie4_5-moe", "lfm2moe", "olmoe", "minimax-m2", "gpt-oss",
    "afmoe", "deepseek2", "granitemoe", "hunyuan-moe", "llama4", "granitehybrid", "jamba", "nemotron_h_moe",
    "qwen3next", "gemma4", "qwen35moe", "kimi-linear", "mimo2",
    "phimoe",
)  # fmt: skip
# What may be zero in some layers of these, which then have no attention, or no feed-forward.
HYBRIDS: Final = ("granitehybrid", "kimi-linear", "jamba", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe")
# Lists whose entries differ between layers; they are in the metadata's values under the key and ".layers".
LISTED: Final = {"gemma4": ("feed_forward_length", "attention.head_count_kv"), "mimo2": ("attention.head_count_kv",)}
CONVENTIONS: Final = {
    "arcee": StoredConventions(interleaved_heads=True),
    "baichuan": StoredConventions(interleaved_heads=True),
    "gemma": StoredConventions(norm_includes_one=True),
    "granite": StoredConventions(interleaved_heads=True),
    "granitemoe": StoredConventions(interleaved_heads=True),
    "llama": StoredConventions(interleaved_heads=True),
    "internlm2": StoredConventions(interleaved_heads=True),
    "mistral3": StoredConventions(interleaved_heads=True),
    "olmo": StoredConventions(interleaved_heads=True),
    "kimi-linear": StoredConventions(negated_rates=True),
    "mamba": StoredConventions(negated_rates=True),
    "mamba2": StoredConventions(negated_rates=True),
    "falcon-h1": StoredConventions(negated_rates=True),
    "granitehybrid": StoredConventions(interleaved_heads=True, negated_rates=True),
    "jamba": StoredConventions(negated_rates=True),
    "nemotron_h": StoredConventions(negated_rates=True),
    "nemotron_h_moe": StoredConventions(negated_rates=True),
    "qwen3next": StoredConventions(norm_includes_one=True, negated_rates=True),
    "qwen35": StoredConventions(norm_includes_one=True, negated_rates=True, tiled_value_heads=True),
    "qwen35moe": StoredConventions(norm_includes_one=True, negated_rates=True, tiled_value_heads=True),
    "minicpm": StoredConventions(interleaved_heads=True),
    "nemotron": StoredConventions(norm_includes_one=True),
    "smollm3": StoredConventions(interleaved_heads=True),
    "gemma2": StoredConventions(norm_includes_one=True),
    "gemma3": StoredConventions(norm_includes_one=True),
    "gemma-embedding": StoredConventions(norm_includes_one=True),
}


def named(entry: tuple[str, str]) -> dict[str, Any]:
    """Returns a class and its model type as a config states them."""
    class_name, model_type = entry
    return {"architectures": [class_name], "model_type": model_type}
