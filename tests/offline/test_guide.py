"""The Python blocks of guides run one after the other, as their first paragraphs say."""

import re
from pathlib import Path

import pytest

from tests.e2e.served import make_random_adapter, make_random_model
from tests.models.tiny_pooled import make_pooled, write_tokenizer

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
SPEC = """\
api_version: appliance/v1
kind: Deployment
name: small
model: {source: ./model, max_model_len: 512}
cache: {num_blocks: 256}
"""


def run_guide(page: str, least: int) -> None:
    """Runs the Python blocks of a page of ours, of which there are at least so many."""
    blocks = re.findall(r"^```python\n(.*?)^```$", (GUIDES / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) >= least
    exec(compile("\n".join(blocks), page, "exec"), {"__name__": "guide"})


def test_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model").mkdir()
    make_random_model(tmp_path / "model")
    (tmp_path / "encoder").mkdir()
    make_pooled("bert-mean", tmp_path / "encoder")
    write_tokenizer(tmp_path / "encoder")
    make_random_adapter(tmp_path / "adapters" / "sql", seed=3)
    (tmp_path / "deployment.yaml").write_text(SPEC)
    monkeypatch.chdir(tmp_path)
    run_guide("python.md", 13)
    shown = capsys.readouterr().out
    assert "did you mean 'max_model_len'?" in shown
    assert "4 512" in shown
    assert "Positive" in shown or "Negative" in shown


def test_the_guide_of_weights_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, seed in ((0, 7), (100, 8)):
        folder = tmp_path / "checkpoints" / f"step-{number}"
        folder.mkdir(parents=True)
        make_random_model(folder, seed=seed)
    monkeypatch.chdir(tmp_path)
    run_guide("weights.md", 1)
    assert capsys.readouterr().out.split() == ["1", "2"]
