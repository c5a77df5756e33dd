"""The model architectures by Hugging Face class name, with the family module that runs each."""

import msgspec

_LABELS = ("classify", "score", "embed")
_REWARD = ("classify", "embed")
DECODES = ("generate", "embed", "classify", "score")  # what a decoder can do
_HEADS = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel", "Model")  # what ends the names of decoders


class Architecture(msgspec.Struct, frozen=True):
    """One architecture. `family`: the dotted path of its module in appliance.models; None: it cannot run yet.

    tasks: what it can do, and first what it is for. is_causal: its tokens see those before them alone. base: the
    architecture of the same layers by whose name it is listed. package, version: of a family that is not ours.
    """

    name: str
    family: str | None
    tasks: tuple[str, ...] = ("generate",)
    is_causal: bool = True
    base: str | None = None
    package: str | None = None
    version: str | None = None


def _built(name: str, family: str) -> Architecture:
    return Architecture(name, f"appliance.models.{family}", DECODES)


def _encoder(stem: str, family: str, *others: str) -> tuple[Architecture, ...]:
    """An encoder under the names of its heads: the model alone, masked language model, classifiers, and `others`."""
    dotted = f"appliance.models.{family}"
    embeds = (f"{stem}Model", f"{stem}ForMaskedLM", *others)
    classifies = (f"{stem}ForSequenceClassification", f"{stem}ForTokenClassification")
    return (
        *(Architecture(name, dotted, ("embed",), is_causal=False, base=f"{stem}Model") for name in embeds),
        *(Architecture(name, dotted, _LABELS, is_causal=False, base=f"{stem}Model") for name in classifies),
    )


def _pooled(entry: Architecture) -> tuple[Architecture, ...]:
    """The other names of a decoder: its layers alone, and with a classifier."""
    stem = entry.name
    for head in _HEADS:
        stem = stem.removesuffix(head)
    names = (
        (f"{stem}Model", ("embed",)),
        *((f"{stem}For{kind}Classification", _LABELS) for kind in ("Sequence", "Token")),
    )
    return tuple(Architecture(name, entry.family, tasks, base=entry.name) for name, tasks in names)


def _known(name: str, *tasks: str) -> Architecture:
    return Architecture(name, None, tasks or ("generate",))


_BUILT = (
    _built("AfmoeForCausalLM", "afmoe"),
    _built("BaichuanForCausalLM", "baichuan"),
    _built("BaiChuanForCausalLM", "baichuan"),
    _built("BloomForCausalLM", "bloom"),
    _built("HunYuanMoEV1ForCausalLM", "hunyuan"),
    _built("InternLM2ForCausalLM", "internlm2"),
    _built("MiMoV2FlashForCausalLM", "mimo_v2"),
    _built("MiniCPMForCausalLM", "minicpm"),
    _built("Ministral3ForCausalLM", "ministral3"),
    _built("MptForCausalLM", "mpt"),
    _built("MPTForCausalLM", "mpt"),
    _built("ApertusForCausalLM", "apertus"),
    _built("ArceeForCausalLM", "llama"),
    _built("ChatGLMModel", "chatglm"),
    _built("ChatGLMForConditionalGeneration", "chatglm"),
    _built("CohereForCausalLM", "cohere"),
    _built("Cohere2ForCausalLM", "cohere"),
    _built("CwmForCausalLM", "llama"),
    _built("Ernie4_5ForCausalLM", "llama"),
    _built("Exaone4ForCausalLM", "exaone4"),
    _built("FalconForCausalLM", "falcon"),
    _built("GPT2LMHeadModel", "gpt2"),
    _built("GPTBigCodeForCausalLM", "gpt2"),
    _built("GPTJForCausalLM", "gptj"),
    _built("GPTNeoXForCausalLM", "gpt_neox"),
    _built("GptOssForCausalLM", "gpt_oss"),
    _built("GemmaForCausalLM", "gemma"),
    _built("Gemma2ForCausalLM", "gemma"),
    _built("Gemma3ForCausalLM", "gemma"),
    _built("Gemma3ForConditionalGeneration", "gemma"),
    _built("Gemma3nForCausalLM", "gemma3n"),
    _built("Gemma3nForConditionalGeneration", "gemma3n"),
    _built("Gemma4ForCausalLM", "gemma4"),
    _built("Gemma4ForConditionalGeneration", "gemma4"),
    _built("GlmForCausalLM", "glm"),
    _built("Glm4ForCausalLM", "glm"),
    _built("GraniteForCausalLM", "granite"),
    _built("HeliumForCausalLM", "llama"),
    _built("HunYuanDenseV1ForCausalLM", "hunyuan"),
    _built("Jais2ForCausalLM", "nemotron"),
    _built("LlamaForCausalLM", "llama"),
    _built("Llama4ForCausalLM", "llama4"),
    _built("Llama4ForConditionalGeneration", "llama4"),
    _built("MistralForCausalLM", "llama"),
    _built("MixtralForCausalLM", "mixtral"),
    _built("NemotronForCausalLM", "nemotron"),
    _built("OPTForCausalLM", "opt"),
    _built("OlmoForCausalLM", "olmo"),
    _built("Olmo2ForCausalLM", "olmo"),
    _built("Olmo3ForCausalLM", "olmo"),
    _built("PersimmonForCausalLM", "persimmon"),
    _built("PhiForCausalLM", "phi"),
    _built("Phi3ForCausalLM", "phi3"),
    _built("PhimoeForCausalLM", "phimoe"),
    _built("PhiMoEForCausalLM", "phimoe"),
    _built("Qwen2ForCausalLM", "llama"),
    _built("Qwen3ForCausalLM", "qwen3"),
    _built("Qwen2MoeForCausalLM", "qwen2_moe"),
    _built("Qwen3MoeForCausalLM", "qwen3_moe"),
    _built("DeepseekV2ForCausalLM", "deepseek"),
    _built("DeepseekV3ForCausalLM", "deepseek"),
    _built("Glm4MoeLiteForCausalLM", "deepseek"),
    _built("MiniCPM3ForCausalLM", "minicpm3"),
    _built("Dots1ForCausalLM", "dots1"),
    _built("Glm4MoeForCausalLM", "glm4_moe"),
    _built("Ernie4_5_MoeForCausalLM", "ernie4_5_moe"),
    _built("OlmoeForCausalLM", "olmoe"),
    _built("FlexOlmoForCausalLM", "olmoe"),
    _built("GraniteMoeForCausalLM", "granitemoe"),
    _built("MiniMaxM2ForCausalLM", "minimax_m2"),
    _built("BambaForCausalLM", "bamba"),
    _built("FalconH1ForCausalLM", "falcon_h1"),
    _built("FalconMambaForCausalLM", "mamba"),
    _built("GraniteMoeHybridForCausalLM", "granitemoehybrid"),
    _built("JambaForCausalLM", "jamba"),
    _built("KimiLinearForCausalLM", "kimi_linear"),
    _built("Lfm2ForCausalLM", "lfm2"),
    _built("Lfm2MoeForCausalLM", "lfm2"),
    _built("MambaForCausalLM", "mamba"),
    _built("Mamba2ForCausalLM", "mamba2"),
    _built("NemotronHForCausalLM", "nemotron_h"),
    _built("OlmoHybridForCausalLM", "olmo_hybrid"),
    _built("Qwen3NextForCausalLM", "qwen3_next"),
    _built("Qwen3_5ForCausalLM", "qwen3_5"),
    _built("Qwen3_5ForConditionalGeneration", "qwen3_5"),
    _built("Qwen3_5MoeForCausalLM", "qwen3_5"),
    _built("Qwen3_5MoeForConditionalGeneration", "qwen3_5"),
    _built("RecurrentGemmaForCausalLM", "recurrent_gemma"),
    _built("SeedOssForCausalLM", "llama"),
    _built("SmolLM3ForCausalLM", "llama"),
    _built("StableLmForCausalLM", "stablelm"),
    _built("Starcoder2ForCausalLM", "starcoder2"),
    _built("Zamba2ForCausalLM", "zamba2"),
)

# These are listed so that the refusal says "not in this version" instead of "unknown".
_KNOWN = (
    _known("Qwen2VLForConditionalGeneration"),
    _known("Qwen2_5_VLForConditionalGeneration"),
    _known("WhisperForConditionalGeneration", "transcribe"),
)

_ENCODERS = (
    *_encoder("Bert", "bert"),
    *_encoder("Roberta", "bert"),
    *_encoder("XLMRoberta", "bert"),
    *_encoder("DistilBert", "distilbert"),
    *_encoder("Gte", "nomic_bert"),
    *_encoder("MPNet", "mpnet"),
    *_encoder("ModernBert", "modernbert"),
    *_encoder("New", "nomic_bert"),
    *_encoder("NomicBert", "nomic_bert"),
)
# Reward models under names of their own: each token has its reward, or each step the chance that it is right.
_REWARDS = (
    Architecture("Qwen2ForRewardModel", "appliance.models.llama", _REWARD, base="Qwen2ForCausalLM"),
    Architecture("Qwen2ForProcessRewardModel", "appliance.models.llama", _REWARD, base="Qwen2ForCausalLM"),
    Architecture("InternLM2ForRewardModel", "appliance.models.internlm2", _REWARD, base="InternLM2ForCausalLM"),
)
_EMBEDDERS = (Architecture("Gemma3TextModel", "appliance.models.gemma", ("embed",), base="Gemma3ForCausalLM"),)
_POOLED = tuple(other for entry in _BUILT for other in _pooled(entry))

ARCHITECTURES: dict[str, Architecture] = {
    entry.name: entry for entry in (*_KNOWN, *_POOLED, *_EMBEDDERS, *_REWARDS, *_ENCODERS, *_BUILT)
}
