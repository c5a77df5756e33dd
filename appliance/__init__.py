"""appliance: one YAML spec becomes an engine plan, and the plan becomes a server, a batch run, a benchmark or a Python
object."""

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from appliance.offline.arguments import AsyncEngineArgs, EngineArgs
    from appliance.offline.async_llm import AsyncLLM
    from appliance.offline.async_llm import AsyncLLM as AsyncLLMEngine
    from appliance.offline.llm import LLM
    from appliance.offline.llm_engine import LLMEngine
    from appliance.offline.outputs import (
        BeamSearchOutput,
        BeamSearchSequence,
        ClassificationOutput,
        ClassificationRequestOutput,
        CompletionOutput,
        EmbeddingOutput,
        EmbeddingRequestOutput,
        Logprob,
        PoolingOutput,
        PoolingRequestOutput,
        RequestOutput,
        ScoringOutput,
        ScoringRequestOutput,
    )
    from appliance.offline.params import (
        BeamSearchParams,
        GuidedDecodingParams,
        LoRARequest,
        PoolingParams,
        RequestOutputKind,
        SamplingParams,
        StructuredOutputsParams,
    )
    from appliance.offline.prompts import EmbedsPrompt, TextPrompt, TokensPrompt
    from appliance.offline.prompts import Prompt as PromptType

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "ClassificationOutput",
    "ClassificationRequestOutput",
    "CompletionOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "EmbedsPrompt",
    "EngineArgs",
    "GuidedDecodingParams",
    "LLMEngine",
    "LoRARequest",
    "Logprob",
    "PoolingOutput",
    "PoolingParams",
    "PoolingRequestOutput",
    "PromptType",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "ScoringOutput",
    "ScoringRequestOutput",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
]

_MODULES: Final = {
    "arguments": ("AsyncEngineArgs", "EngineArgs"),
    "async_llm": ("AsyncLLM", "AsyncLLMEngine"),
    "llm": ("LLM",),
    "llm_engine": ("LLMEngine",),
    "outputs": (
        "BeamSearchOutput", "BeamSearchSequence", "ClassificationOutput", "ClassificationRequestOutput",
        "CompletionOutput", "EmbeddingOutput", "EmbeddingRequestOutput", "Logprob", "PoolingOutput",
        "PoolingRequestOutput", "RequestOutput", "ScoringOutput", "ScoringRequestOutput",
    ),
    "params": (
        "BeamSearchParams", "GuidedDecodingParams", "LoRARequest", "PoolingParams", "RequestOutputKind",
        "SamplingParams", "StructuredOutputsParams",
    ),
    "prompts": ("EmbedsPrompt", "PromptType", "TextPrompt", "TokensPrompt"),
}  # fmt: skip
_MODULE_OF: Final = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Imports what is asked for: an `import appliance` alone costs next to nothing."""
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'appliance' has no attribute {name!r}")
    return getattr(importlib.import_module(f"appliance.offline.{module}"), name)
