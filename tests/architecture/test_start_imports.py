"""What the processes of a deployment import before they are ready: each module costs start time and memory."""

import json
import subprocess
import sys

import pytest

PRINT_MODULES = "import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
ENGINE_ONLY = {"numpy", "llguidance"}
SERVER_ONLY = {"fastapi", "uvicorn", "pydantic", "tokenizers", "jinja2", "prometheus_client", "asyncio"}
NOBODY = {
    "torch",
    "transformers",
    "huggingface_hub",
    "safetensors",
    "gguf",
    "rich",
    "typer",
    "yaml",
    "httpx",
    "requests",
    "opentelemetry.sdk",
    "opentelemetry.exporter",
}


def imported_by(module: str) -> set[str]:
    code = PRINT_MODULES.format(module=module)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("appliance.server.process.run", NOBODY | ENGINE_ONLY),
        ("appliance.engine.process", NOBODY | SERVER_ONLY),
        # Before it starts the engine, a server imports next to nothing.
        ("appliance.server.__main__", NOBODY | ENGINE_ONLY | SERVER_ONLY | {"msgspec", "zmq"}),
    ],
)
def test_a_process_imports_only_what_it_needs(module: str, unwanted: set[str]) -> None:
    assert imported_by(module) & unwanted == set()
