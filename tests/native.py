"""The native libraries that tests load: the installed ones, or those of the folder that APPLIANCE_TEST_NATIVE names.

`make sanitize` builds such folders, of libraries that a sanitizer watches; each may have some levels only.
"""

import os
from pathlib import Path

from appliance.kernels.cpu import library

_EMULATED = Path(__file__).parent.parent / "build/emulated"
_LEVELS = ("generic", "avx2", "avx512", "avx512_vnni", "avx512_bf16", "amx", "emulated", "emulated_amx")
_FOLDER = os.environ.get("APPLIANCE_TEST_NATIVE")


def use_named_folder() -> None:
    """Has this process load levels from the folder that the environment names, if it names one."""
    if _FOLDER is not None:
        library.library_path = _path


def levels() -> list[str]:
    """The levels to test: all, or those that the named folder has.

    `emulated` is AVX-512 with VNNI and BF16 in plain C++, `emulated_amx` the matrix unit beside the vectors of AVX2.
    """
    found = [level for level in _LEVELS if _FOLDER is None or _path(level).exists()]
    assert found, f"{_FOLDER} has no native library"
    return found


def emulated_path(level: str) -> Path:
    return (_EMULATED if _FOLDER is None else Path(_FOLDER)) / _name(level)


def _path(level: str) -> Path:
    assert _FOLDER is not None
    return Path(_FOLDER) / _name(level)


def _name(level: str) -> str:
    return f"libappliance_cpu_{level}.so"
