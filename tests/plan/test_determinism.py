"""A plan depends on nothing but its inputs: not on the process, and not on the order of its sets and mappings."""

import os
import subprocess
import sys
from pathlib import Path

import yaml

from tests.checkpoint.files import LLAMA, llama_tensors, write_gguf

TOKENS = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": [chr(97 + at) for at in range(32)]}


def test_two_processes_make_the_same_plan(tmp_path: Path) -> None:
    """Identities of checkpoints and hashes are in the plan, so they are compared with it."""
    write_gguf(tmp_path / "m.gguf", metadata=LLAMA | TOKENS, tensors=llama_tensors())
    spec = {
        "api_version": "appliance/v1",
        "kind": "Deployment",
        "name": "same",
        "model": {"source": "m.gguf"},
        "endpoints": {"http": {"port": 8000}},
        "hardware": {"memory": {"kv_cache": "64MiB"}},
    }
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    verb = ["plan", "spec.yaml", "--json", "--hardware", "server-epyc-9654"]
    command = [sys.executable, "-m", "appliance.cli.app", *verb]
    plans = [
        subprocess.run(
            command, cwd=tmp_path, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    ]
    assert b"serving_sha256" in plans[0]
    assert plans[0] == plans[1]
