"""Where the native libraries of this installation are, how to get one that is not, and which torch there is."""

from collections.abc import Iterable, Iterator
from importlib import metadata, resources
from pathlib import Path

_PREFIX = "libappliance_cpu_"


def library_path(level: str) -> Path:
    """Where the build installs the library of a processor level, whether the package is installed or editable."""
    name = f"{_PREFIX}{level}.so"
    return next((folder / name for folder in _folders() if (folder / name).exists()), _root() / name)


def built_levels() -> tuple[str, ...]:
    """The processor levels whose libraries are installed, sorted."""
    files = (path for folder in _folders() for path in folder.glob(f"{_PREFIX}*.so"))
    return tuple(sorted({path.stem.removeprefix(_PREFIX) for path in files}))


def torch_version() -> str:
    """The version of the installed torch, with its build; empty if it is not installed. Nothing is imported."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""


def build_hint(level: str, built: Iterable[str] = ()) -> str:
    """What to do where the library of a level is not installed, beside those that are `built`."""
    levels = ",".join(sorted({*built, level}))
    return f"in a checkout, `APPLIANCE_LEVELS={levels} pip install -e .` builds it; wheels and images have every level"


def rebuild_hint(built: Iterable[str]) -> str:
    """What to do where the installed libraries, of the levels `built`, were built from other sources."""
    levels = ",".join(sorted(built)) or "auto"
    return f"in a checkout, `APPLIANCE_LEVELS={levels} pip install -e .` builds it again; a wheel has to be reinstalled"


def _folders() -> Iterator[Path]:
    """An editable install joins two folders."""
    root = resources.files("appliance") / "_native"
    return (Path(str(place)) for place in getattr(root, "_paths", [root]))


def _root() -> Path:
    return Path(str(resources.files("appliance") / "_native"))
