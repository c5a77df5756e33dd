"""What a deployment's answers depend on, digested."""

import importlib.metadata
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import msgspec

from appliance import __version__
from appliance.base.hashing import sha256_file, sha256_hex, sha256_json
from appliance.base.native import library_path
from appliance.deploy.pins.lockfile import Lock
from appliance.plan.types import EnginePlan

# Files of a checkpoint's folder that decide what it says. Others (a licence, a picture) do not.
ANSWERING_SUFFIXES: Final = frozenset(
    {".safetensors", ".gguf", ".bin", ".pt", ".tensors", ".json", ".jinja", ".model", ".txt", ".tiktoken"}
)
# Packages between a request and its tokens.
ANSWERING_PACKAGES: Final = ("jinja2", "llguidance", "numpy", "tokenizers")
_CPU_SET: Final = "cpu-"


def collect_lock(plan: EnginePlan) -> Lock:
    """Reads every file of the checkpoint: a second or so a gigabyte. Raises OSError when one cannot be read."""
    return Lock(
        name=plan.name,
        files=_digests(dict(_files(plan))),
        planned=_planned(plan),
        kernels={"kernel_set": plan.kernels.kernel_set, **_library(plan)},
        packages={"appliance": __version__, **{name: _version(name) for name in ANSWERING_PACKAGES}},
    )


def _files(plan: EnginePlan) -> Iterator[tuple[str, Path]]:
    yield from _named("model", Path(plan.model.path))
    if plan.model.tokenizer_path != plan.model.path:
        yield from _named("tokenizer", Path(plan.model.tokenizer_path))
    if plan.model.config.path is not None:
        name = "params.json" if plan.model.format == "mistral" else "config.json"
        yield from _named("config", plan.model.config.file(Path(plan.model.path), name))


def _named(label: str, root: Path) -> Iterator[tuple[str, Path]]:
    """Names that are the same wherever the checkpoint lies."""
    if not root.is_dir():
        yield f"{label}/{root.name}", root
        return
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.suffix in ANSWERING_SUFFIXES and not path.name.startswith("."):
            yield f"{label}/{path.relative_to(root).as_posix()}", path


def _digests(files: dict[str, Path]) -> dict[str, str]:
    with ThreadPoolExecutor() as pool:  # a digest lets go of the interpreter
        return dict(zip(files, pool.map(sha256_file, files.values()), strict=True))


def _planned(plan: EnginePlan) -> dict[str, str]:
    """Digests of planned values that change answers and come from several places."""
    values: dict[str, Any] = {
        "default_sampling": plan.model.default_sampling,
        "config_overrides": {**plan.model.config_overrides, **_stated(plan.model.config.overrides)},
        "precision": msgspec.to_builtins(plan.precision),
        "structured_output": msgspec.to_builtins(plan.serving.structured),
        "parsers": msgspec.to_builtins(plan.serving.parsers),
        "max_model_len": plan.model.max_model_len,
        "seed": plan.model.seed,
    }
    digests = {name: sha256_json(value) for name, value in values.items()}
    if plan.model.chat_template is not None:
        digests["chat_template"] = sha256_hex(plan.model.chat_template.encode())
    for adapter in plan.adapters.served if plan.adapters is not None else ():
        digests[f"adapters/{adapter.name}"] = sha256_json([adapter.sha256, adapter.scale])
    return digests


def _stated(overrides: dict[str, Any]) -> dict[str, Any]:
    return {"hf_overrides": overrides} if overrides else {}


def _library(plan: EnginePlan) -> dict[str, str]:
    """Kernel sets differ in the last bits of a sum, and so do builds of one set by different compilers."""
    name = plan.kernels.kernel_set
    if not name.startswith(_CPU_SET):
        return {}
    return {"library": sha256_file(library_path(name.removeprefix(_CPU_SET)))}


def _version(package: str) -> str:
    return importlib.metadata.version(package)
