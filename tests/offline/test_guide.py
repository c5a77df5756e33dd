"""The blocks of the guide run one after the other, as its first paragraph says."""

import re
from pathlib import Path

import pytest

from tests.e2e.served import make_random_adapter, make_random_model
from tests.models.tiny_pooled import make_pooled, write_tokenizer

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "python.md"
SPEC = """\
api_version: appliance/v1
kind: Deployment
name: small
model: {source: ./model, max_model_len: 512}
cache: {num_blocks: 256}
"""


def test_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model").mkdir()
    make_random_model(tmp_path / "model")
    (tmp_path / "encoder").mkdir()
    make_pooled("bert-mean", tmp_path / "encoder")
    write_tokenizer(tmp_path / "encoder")
    make_random_adapter(tmp_path / "adapters" / "sql", seed=3)
    (tmp_path / "deployment.yaml").write_text(SPEC)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 11
    exec(compile("\n".join(blocks), str(GUIDE), "exec"), {"__name__": "guide"})  # our own page
    shown = capsys.readouterr().out
    assert "did you mean 'max_model_len'?" in shown
    assert "4 512" in shown
    assert "Positive" in shown or "Negative" in shown
