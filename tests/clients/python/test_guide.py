"""The examples of docs/guides/clients.md run as they stand there, but for the address and the model's name."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from served import KEY, MODEL, ROOT

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "clients.md"
SECTIONS = re.split(r"^## ", GUIDE.read_text(), flags=re.MULTILINE)
CODE = re.compile(r"^```python\n(.+?)^```$", re.MULTILINE | re.DOTALL)
FOUND = [(text.partition("\n")[0], code) for text in SECTIONS for code in CODE.findall(text)]
# Of the clients in this environment; the other environment has the others.
EXAMPLES = [(client, code) for client, code in FOUND if find_spec(client.replace("-", "_"))]


@pytest.mark.parametrize(("client", "code"), EXAMPLES, ids=[client for client, _ in EXAMPLES])
def test_an_example(client: str, code: str) -> None:
    code = code.replace("http://127.0.0.1:8000", ROOT).replace("qwen-coder", MODEL).replace('"none"', f'"{KEY}"')
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
