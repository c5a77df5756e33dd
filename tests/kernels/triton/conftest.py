"""Triton kernels under its interpreter, on CPU tensors.

Triton reads TRITON_INTERPRET when it is imported, so tests/conftest.py sets it before any test can import triton.
"""

import importlib.util
from pathlib import Path

import pytest

IS_HERE = importlib.util.find_spec("triton") is not None


class _Skipped(pytest.Module):
    def collect(self) -> list[pytest.Item | pytest.Collector]:
        pytest.skip("triton is not installed: pip install triton==3.7.1", allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Modules here import kernels, which import triton: without it, each is skipped by name."""
    return None if IS_HERE else _Skipped.from_parent(parent, path=module_path)
