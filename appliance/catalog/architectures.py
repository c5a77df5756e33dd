"""The model architectures by Hugging Face class name, with the family module that runs each."""

import msgspec


class Architecture(msgspec.Struct, frozen=True):
    """One architecture. `family`: the dotted path of its module in appliance.models; None: it cannot run yet."""

    name: str
    family: str | None
    tasks: tuple[str, ...] = ("generate",)


def _built(name: str, family: str) -> Architecture:
    return Architecture(name, f"appliance.models.{family}")


def _known(name: str, *tasks: str) -> Architecture:
    return Architecture(name, None, tasks or ("generate",))


_BUILT = (
    _built("LlamaForCausalLM", "llama"),
    _built("MistralForCausalLM", "llama"),
    _built("MixtralForCausalLM", "mixtral"),
    _built("Qwen2ForCausalLM", "llama"),
    _built("Qwen3ForCausalLM", "qwen3"),
    _built("Qwen2MoeForCausalLM", "qwen2_moe"),
    _built("Qwen3MoeForCausalLM", "qwen3_moe"),
    _built("Dots1ForCausalLM", "dots1"),
    _built("Glm4MoeForCausalLM", "glm4_moe"),
    _built("Ernie4_5_MoeForCausalLM", "ernie4_5_moe"),
    _built("Gemma2ForCausalLM", "gemma2"),
    _built("Gemma3ForCausalLM", "gemma3"),
    _built("Phi3ForCausalLM", "phi3"),
    _built("GPT2LMHeadModel", "gpt2"),
)

# These are listed so that the refusal says "not in this version" instead of "unknown".
_KNOWN = (
    _known("BertModel", "embed"),
    _known("BloomForCausalLM"),
    _known("CohereForCausalLM"),
    _known("DeepseekV2ForCausalLM"),
    _known("DeepseekV3ForCausalLM"),
    _known("FalconForCausalLM"),
    _known("GPTBigCodeForCausalLM"),
    _known("GPTJForCausalLM"),
    _known("GPTNeoXForCausalLM"),
    _known("GemmaForCausalLM"),
    _known("Gemma3ForConditionalGeneration"),
    _known("GptOssForCausalLM"),
    _known("GraniteForCausalLM"),
    _known("Llama4ForConditionalGeneration"),
    _known("MPTForCausalLM"),
    _known("MambaForCausalLM"),
    _known("OPTForCausalLM"),
    _known("OlmoForCausalLM"),
    _known("PhiForCausalLM"),
    _known("Qwen2VLForConditionalGeneration"),
    _known("Qwen2_5_VLForConditionalGeneration"),
    _known("StableLmForCausalLM"),
    _known("Starcoder2ForCausalLM"),
    _known("WhisperForConditionalGeneration", "transcribe"),
    _known("XLMRobertaForSequenceClassification", "classify", "score"),
)

ARCHITECTURES: dict[str, Architecture] = {entry.name: entry for entry in (*_KNOWN, *_BUILT)}
