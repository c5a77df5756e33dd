"""Where compiled Triton kernels are kept: a folder for each digest of the kernels' sources and of the compiler.

Within it Triton names each kernel by its source, the GPU's architecture and the types of its arguments. So a folder is
never stale, and another version of the appliance or of Triton has another one.
"""

import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, NamedTuple

from appliance.base import environ
from appliance.base.hashing import sha256_file, sha256_json
from appliance.base.log import logger
from appliance.kernels.errors import KernelSetError

KERNELS_FOLDER: Final = "kernels"  # in the cache folder, beside the packed weights
KEPT_FOLDERS: Final = 4  # of one profile, the latest that were used
VARIABLE: Final = "TRITON_CACHE_DIR"  # of Triton
_SOURCES: Final = Path(__file__).parent / "gpu" / "triton"
_COMPILERS: Final = ("triton", "torch")
_log = logger("kernels")


class KernelFolder(NamedTuple):
    """num_kept: compiled kernels that were there before."""

    path: Path
    num_kept: int


def kernel_folder(cache: Path, profile: str, planned: str | None = None) -> Path:
    """Returns where the kernels of a profile's GPUs are kept, which need not be there: in the folder that the plan
    names, else the folder that the environment names, else in the cache."""
    chosen = None if planned else environ.get(VARIABLE)
    return Path(chosen) if chosen else Path(planned or cache) / f"{profile}-{kernels_digest()[:32]}"


def keep_kernels(cache: Path, profile: str, planned: str | None = None) -> KernelFolder:
    """Has Triton, in this process and its children, keep kernels where `kernel_folder` says. Raises KernelSetError if
    the plan names a folder that cannot be made."""
    path = kernel_folder(cache, profile, planned)
    if planned is None and environ.get(VARIABLE):
        return KernelFolder(path, num_kernels(path))
    try:
        found = open_kernel_folder(Path(planned or cache), profile)
    except OSError as error:
        if planned is None:
            raise
        message = f"compiled kernels cannot be kept in {planned}: {error.strerror}"
        raise KernelSetError(message, hint="name a folder that can be written in compilation.cache_dir") from error
    environ.set_variable(VARIABLE, str(found.path))
    return found


def open_kernel_folder(cache: Path, profile: str) -> KernelFolder:
    """Makes the folder of a profile's GPUs, and removes those that were used longest ago."""
    path = cache / f"{profile}-{kernels_digest()[:32]}"
    path.mkdir(parents=True, exist_ok=True)
    path.touch()
    others = sorted(cache.glob(f"{profile}-*"), key=lambda folder: folder.stat().st_mtime, reverse=True)
    for folder in others[KEPT_FOLDERS:]:
        _log.info("kernels of another version are removed: %s", folder.name)
        shutil.rmtree(folder, ignore_errors=True)  # another process may remove it as well
    return KernelFolder(path, num_kernels(path))


def num_kernels(folder: Path) -> int:
    """Returns how many compiled kernels a folder holds: each has a binary for an NVIDIA or an AMD GPU."""
    return len(compiled_kernels(folder))


def compiled_kernels(folder: Path) -> list[Path]:
    """Returns the binaries of a folder, by their names."""
    found = [path for kind in ("cubin", "hsaco") for path in folder.glob(f"*/*.{kind}")]
    return sorted(found, key=lambda path: (path.name, path.parent.name))


def kernels_digest(sources: Path = _SOURCES) -> str:
    """Returns the digest of all kernels' sources, with the versions of Triton and torch."""
    files = {path.name: sha256_file(path) for path in sorted(sources.glob("*.py"))}
    return sha256_json({"sources": files, "versions": {name: _version(name) for name in _COMPILERS}})


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""  # whoever needs it is told when it is loaded
