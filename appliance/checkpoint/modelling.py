"""The Python code that could run a checkpoint: of the installed transformers, or of the checkpoint itself.

Its text is read, and nothing of it is imported.
"""

import hashlib
import importlib.metadata
import importlib.util
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

Origin = Literal["transformers", "checkpoint"]
_AUTO_CLASS: Final = "AutoModelForCausalLM"
_TAKES_ATTENTION: Final = re.compile(r"_supports_attention_backend\s*(:\s*bool\s*)?=\s*True")
_KEEPS_STATES: Final = re.compile(r"_is_stateful\s*(:\s*bool\s*)?=\s*True")


class CodeFile(msgspec.Struct, frozen=True):
    """A file of Python code. name: its path below the folder of the code."""

    name: str
    sha256: str


class ModellingCode(msgspec.Struct, frozen=True, kw_only=True):
    """Code for one checkpoint. model_class, config_class: names of classes of transformers, or `module.Class`.

    files: those that hold the model, or all that may run. obstacles: why it cannot run over our cache.
    """

    origin: Origin
    model_class: str
    config_class: str | None = None
    folder: str
    files: tuple[CodeFile, ...]
    obstacles: tuple[str, ...] = ()


class Modelling(msgspec.Struct, frozen=True, kw_only=True):
    """All code for one checkpoint. version: of the installed transformers, None if it is not installed."""

    version: str | None
    of_transformers: ModellingCode | None = None
    of_checkpoint: ModellingCode | None = None


def find_modelling(architecture: str, config: Mapping[str, Any], folder: Path) -> Modelling:
    """Returns the code for a checkpoint. folder: that of the checkpoint's own code."""
    return Modelling(
        version=_version(),
        of_transformers=_of_transformers(architecture, config),
        of_checkpoint=_of_checkpoint(config, folder),
    )


def own_class(config: Mapping[str, Any]) -> str | None:
    """Returns the class that a checkpoint's own code has for it, as `module.Class`; None if it brings none."""
    stated = _auto_map(config).get(_AUTO_CLASS)
    return stated if isinstance(stated, str) else None


def _version() -> str | None:
    try:
        return importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError:
        return None


def _of_transformers(architecture: str, config: Mapping[str, Any]) -> ModellingCode | None:
    spec = importlib.util.find_spec("transformers")
    if spec is None or not spec.submodule_search_locations:
        return None
    package = Path(next(iter(spec.submodule_search_locations)))
    found = _module_with(architecture, config, package / "models")
    if found is None:
        return None
    text = found.read_text(encoding="utf-8")
    obstacles = []
    if not _TAKES_ATTENTION.search(text):
        obstacles.append("transformers' code for it does not take attention from outside")
    if _KEEPS_STATES.search(text):
        obstacles.append("it keeps states of its own besides keys and values")
    return ModellingCode(
        origin="transformers",
        model_class=architecture,
        folder=str(package.parent),
        files=tuple(_files(package.parent, (found, *sorted(found.parent.glob("configuration_*.py"))))),
        obstacles=tuple(obstacles),
    )


def _module_with(architecture: str, config: Mapping[str, Any], models: Path) -> Path | None:
    """Returns the module that defines the class: most often that of the model type."""
    name = str(config.get("model_type")).replace("-", "_")
    first = [path for path in (models / name / f"modeling_{name}.py",) if name.isidentifier() and path.is_file()]
    defines = re.compile(rf"^class {re.escape(architecture)}\(", re.MULTILINE)
    return next((path for path in first if defines.search(path.read_text(encoding="utf-8"))), None) or next(
        (path for path in sorted(models.glob("*/modeling_*.py")) if defines.search(path.read_text(encoding="utf-8"))),
        None,
    )


def _of_checkpoint(config: Mapping[str, Any], folder: Path) -> ModellingCode | None:
    model_class = own_class(config)
    if model_class is None:
        return None
    config_class = _auto_map(config).get("AutoConfig")
    names = [model_class, *([config_class] if isinstance(config_class, str) else [])]
    obstacles = []
    elsewhere = sorted({name.partition("--")[0] for name in names if "--" in name})
    if elsewhere:
        obstacles.append(f"its code is in another repository, {', '.join(elsewhere)}")
    missing = sorted({file for name in names if "--" not in name if not (folder / (file := _file_of(name))).is_file()})
    if missing:
        obstacles.append(f"its code is not with the checkpoint: there is no {', '.join(missing)}")
    return ModellingCode(
        origin="checkpoint",
        model_class=model_class,
        config_class=config_class if isinstance(config_class, str) else None,
        folder=str(folder),
        files=tuple(_files(folder, sorted(folder.glob("*.py")))),
        obstacles=tuple(obstacles),
    )


def _auto_map(config: Mapping[str, Any]) -> Mapping[str, Any]:
    found = config.get("auto_map")
    return found if isinstance(found, dict) else {}


def _file_of(name: str) -> str:
    return f"{name.rpartition('.')[0]}.py"


def _files(root: Path, paths: Iterable[Path]) -> Iterator[CodeFile]:
    for path in paths:
        yield CodeFile(path.relative_to(root).as_posix(), hashlib.sha256(path.read_bytes()).hexdigest())
