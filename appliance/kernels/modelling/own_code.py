"""Imports the Python code of a checkpoint from its folder, as a package of its own.

It runs with the rights of this process: whether it may is the spec's decision, and what it is the plan's record.
"""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any


def import_class(reference: str, folder: Path) -> Any:
    """Imports `module.Class` from the folder; its modules may import each other relatively. Raises what they raise."""
    package = f"appliance_checkpoint_{sha256(str(folder).encode()).hexdigest()[:16]}"
    if package not in sys.modules:
        made = ModuleType(package)
        made.__path__ = [str(folder)]
        sys.modules[package] = made
    module, _, name = reference.rpartition(".")
    with _from_source():
        return getattr(importlib.import_module(f"{package}.{module}"), name)


@contextlib.contextmanager
def _from_source() -> Iterator[None]:
    """Compiles sources, and neither reads nor writes bytecode: what runs is what the plan has a digest of."""
    before = sys.pycache_prefix, sys.dont_write_bytecode
    sys.pycache_prefix, sys.dont_write_bytecode = "/dev/null/nothing", True
    try:
        yield
    finally:
        sys.pycache_prefix, sys.dont_write_bytecode = before
