"""The examples of docs/guides/clients.md run as they stand there, but for the address and the model's name."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from served import MODEL, ROOT

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "clients.md"
EXAMPLES = re.findall(r"^## (.+?)$(?:(?!^## ).)*?^```python\n(.+?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(("client", "code"), EXAMPLES, ids=[client for client, _ in EXAMPLES])
def test_an_example(client: str, code: str) -> None:
    code = code.replace("http://127.0.0.1:8000", ROOT).replace("qwen-coder", MODEL)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
