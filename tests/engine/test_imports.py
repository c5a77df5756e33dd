"""The modules that an engine process must not load: torch, and those that only planning needs."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "package", ["torch", "transformers", "tokenizers", "pydantic", "yaml", "asyncio", "llguidance"]
)
def test_the_engine_process_does_not_import(package: str) -> None:
    source = f"import sys, appliance.engine.process; sys.exit({package!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", source], check=False).returncode == 0
