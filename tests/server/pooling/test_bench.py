"""`appliance bench embed` of models that pool: over a socket, and in this process."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.bench.result import load
from appliance.cli.app import main
from appliance.deploy.pins.lockfile import lock_path
from tests.server.pooling.conftest import Served

WORK = [
    *("--with", "num_prompts=6", "--with", "batch_size=4", "--with", "input_len=12", "--with", "repeats=2"),
    *("--vocab-size", "90"),
]


def test_a_served_embedder_is_measured_and_shown(
    embedder: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, found, page = embedder.folder / "deployment.yaml", tmp_path / "r.json", tmp_path / "r.html"
    lock_path(spec).write_text("locked")
    arguments = [str(spec), "--url", embedder.url, *WORK, "-o", str(found), "--html", str(page)]
    assert main(["bench", "embed", *arguments]) == 0
    result = load(found)
    assert result.scenario.task == "embed"
    assert (result.engine_sha256, result.spec_sha256) == (embedder.plan.engine_sha256, embedder.plan.spec_sha256)
    assert len(result.lock_sha256 or "") == 64
    assert [record.num_prompts for record in result.records] == [4, 2]
    assert len(result.rounds) == 2
    for figures in result.rounds:
        assert (figures.completed, figures.failed, figures.input_tokens, figures.output_tokens) == (2, 0, 72, 0)
        assert figures.prompt_throughput == pytest.approx(3 * figures.request_throughput)
    assert {"e2el_p50", "e2el_p95", "e2el_p99", "total_throughput", "prompt_throughput"} <= set(result.figures)
    assert not {"output_throughput", "ttft_p50"} & set(result.figures)
    assert "2 requests to embed, 72 tokens in" in capsys.readouterr().out
    assert "Input over time" in page.read_text()
    assert "Time to first token" not in page.read_text()


@pytest.mark.parametrize(("name", "task"), [("bert-score", "score"), ("bert-score", "rerank"), ("bert-mean", "rerank")])
def test_pairs_are_texts(serve: Callable[..., Served], name: str, task: str, tmp_path: Path) -> None:
    served, found = serve(name), tmp_path / "r.json"
    arguments = [str(served.folder / "deployment.yaml"), "--url", served.url, *WORK, "--with", f"task={task}"]
    assert main(["bench", "embed", *arguments, "-o", str(found)]) == 0
    [_, last] = load(found).rounds
    assert (last.completed, last.failed) == (2, 0)
    assert last.input_tokens > 72


@pytest.mark.parametrize(("name", "kind", "more"), [("bert-mean", "latency", ""), ("bert-classify", "throughput", "")])
def test_the_engine_alone_is_measured(
    serve: Callable[..., Served], name: str, kind: str, more: str, tmp_path: Path
) -> None:
    served, found = serve(name), tmp_path / "r.json"
    arguments = [str(served.folder / "deployment.yaml"), "--kind", kind, *WORK, "--with", "num_warmups=2"]
    assert main(["bench", "embed", *arguments, "-o", str(found)]) == 0
    result = load(found)
    assert result.target == "in process"
    assert (result.rounds[0].completed, result.rounds[0].input_tokens) == (6, 72)
    assert result.figures["e2el_p99"].median > 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--with", "task=classify"], "requests to classify are not for this model"),
        (["--with", "task=generate"], "requests to generate are not for this model"),
        (["--kind", "latency", "--url", "http://127.0.0.1:9"], "measures an engine in this process"),
    ],
)
def test_what_the_model_is_not_for_is_refused(
    embedder: Served, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "embed", str(embedder.folder / "deployment.yaml"), *arguments]) != 0
    assert said in capsys.readouterr().err


def test_the_usual_verbs_measure_it_too(embedder: Served, tmp_path: Path) -> None:
    found = tmp_path / "r.json"
    spec = str(embedder.folder / "deployment.yaml")
    assert main(["bench", "serve", spec, "--url", embedder.url, *WORK, "-o", str(found)]) == 0
    assert json.loads(found.read_text())["scenario"]["task"] == "embed"


def test_settings_are_not_tried_by_tokens_that_a_model_does_not_generate(
    embedder: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", str(embedder.folder / "deployment.yaml")]) != 0
    assert "this model pools" in capsys.readouterr().err
