"""Runs a program of vLLM's on this engine, as it is: `import vllm` finds the names of this package.

python -m appliance.offline.as_vllm program.py ARGUMENTS
python -m appliance.offline.as_vllm -m module ARGUMENTS
"""

import importlib
import importlib.metadata
import runpy
import sys
from collections.abc import Iterable, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import appliance

VERSION: Final = "0.32.0"
"""The vLLM whose names these are, for programs that ask which one is installed."""

_OF_HELPERS: Final = "appliance.offline.vllm_helpers"
_OUTPUTS: Final = tuple(name for name in appliance.__all__ if name.endswith("Output"))
_PARSER: Final = {"FlexibleArgumentParser": _OF_HELPERS}
_LLM: Final = f"{_OF_HELPERS}:TorchLLM"
_TEMPLATE: Final = "resolve_chat_template"
_NAMES: Final[dict[str, dict[str, str]]] = {
    "vllm": {**dict.fromkeys(appliance.__all__, "appliance"), "LLM": _LLM},
    "vllm.beam_search": dict.fromkeys(("BeamSearchOutput", "BeamSearchSequence"), "appliance"),
    "vllm.distributed": {"cleanup_dist_env_and_memory": _OF_HELPERS},
    "vllm.distributed.parallel_state": {"cleanup_dist_env_and_memory": _OF_HELPERS},
    "vllm.engine.arg_utils": dict.fromkeys(("AsyncEngineArgs", "EngineArgs"), "appliance"),
    "vllm.engine.async_llm_engine": {"AsyncLLMEngine": "appliance"},
    "vllm.engine.llm_engine": {"LLMEngine": "appliance"},
    "vllm.entrypoints.chat_utils": {"resolve_hf_chat_template": f"{_OF_HELPERS}:{_TEMPLATE}"},
    "vllm.entrypoints.llm": {"LLM": _LLM},
    "vllm.inputs": dict.fromkeys(("PromptType", "TextPrompt", "TokensPrompt"), "appliance"),
    "vllm.logger": {"init_logger": _OF_HELPERS},
    "vllm.logprobs": {"Logprob": "appliance"},
    "vllm.lora.request": {"LoRARequest": "appliance"},
    "vllm.outputs": dict.fromkeys(_OUTPUTS, "appliance"),
    "vllm.pooling_params": {"PoolingParams": "appliance"},
    "vllm.renderers.hf": {_TEMPLATE: _OF_HELPERS},
    "vllm.sampling_params": dict.fromkeys(
        ("BeamSearchParams", "GuidedDecodingParams", "RequestOutputKind", "SamplingParams", "StructuredOutputsParams"),
        "appliance",
    ),
    "vllm.sequence": {"Logprob": "appliance"},
    "vllm.tokenizers": {"get_tokenizer": _OF_HELPERS},
    "vllm.transformers_utils.tokenizer": {"get_tokenizer": _OF_HELPERS},
    "vllm.utils": {**_PARSER, "random_uuid": _OF_HELPERS},
    "vllm.utils.argparse_utils": _PARSER,
    "vllm.utils.print_utils": {"print_embeddings": _OF_HELPERS},
    "vllm.v1.engine.async_llm": {"AsyncLLM": "appliance"},
    "vllm.v1.engine.llm_engine": {"LLMEngine": "appliance"},
    "vllm.v1.metrics.reader": {
        **dict.fromkeys(("Counter", "Gauge", "Histogram", "Vector"), "appliance.offline.metrics"),
        "Metric": "appliance.offline.metrics:EngineFigure",
    },
}  # module -> name -> where it is: a module, which has it under the same name, or module:name


class VllmFinder(importlib.metadata.DistributionFinder):
    """Finds `vllm` and the modules of it that have names of this package. Others are not found, as if vLLM's version
    did not have them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        is_known = any(f"{module}.".startswith(f"{fullname}.") for module in _NAMES)
        return ModuleSpec(fullname, _NamesLoader(), is_package=True) if is_known else None

    def find_distributions(
        self, context: importlib.metadata.DistributionFinder.Context | None = None
    ) -> Iterable[importlib.metadata.Distribution]:
        return [_VllmDistribution()] if context is not None and context.name == "vllm" else []


class _NamesLoader(Loader):
    """Makes a module whose names are looked up when they are asked for."""

    def create_module(self, spec: ModuleSpec) -> None:
        """Leaves the making of a module to Python."""

    def exec_module(self, module: ModuleType) -> None:
        places = _NAMES.get(module.__name__, {})

        def found(name: str) -> Any:
            if name not in places:
                raise AttributeError(f"appliance has no {module.__name__}.{name}")
            where, _, renamed = places[name].partition(":")
            return getattr(importlib.import_module(where), renamed or name)

        module.__dict__.update(__getattr__=found, __all__=list(places))
        if module.__name__ == "vllm":
            module.__dict__["__version__"] = VERSION


class _VllmDistribution(importlib.metadata.Distribution):
    def read_text(self, filename: str) -> str | None:
        return f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}\n" if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Path:
        return Path(path)


def install() -> None:
    """Has `import vllm` find this package, also where vLLM is installed, until the process ends. Raises RuntimeError if
    vLLM was imported already."""
    if any(isinstance(each, VllmFinder) for each in sys.meta_path):
        return
    if "vllm" in sys.modules:
        raise RuntimeError("vLLM itself was imported already")
    sys.meta_path.insert(0, VllmFinder())


def main(arguments: Sequence[str]) -> None:
    """Runs a program, or a module after `-m`, with the arguments that follow."""
    match list(arguments):
        case ["-m", module, *rest]:
            install()
            sys.argv = [module, *rest]
            sys.path.insert(0, "")
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case [program, *rest] if not program.startswith("-"):
            install()
            sys.argv = [program, *rest]
            sys.path.insert(0, str(Path(program).resolve().parent))
            runpy.run_path(program, run_name="__main__")
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
