"""diff, apply, history and rollback as a user types them, on a model with real kernels."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import CommandLine, free_port
from tests.e2e.served import make_random_model

SPEC = """\
api_version: appliance/v1
kind: Deployment
name: random
model: {{source: {model}, served_names: [one], max_model_len: 256}}
hardware: {{memory: {{kv_cache: 1MiB}}}}
scheduler: {{max_num_seqs: 8}}
endpoints: {{http: {{port: {port}}}}}
"""


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[CommandLine]:
    cli = CommandLine(tmp_path / "state")
    yield cli
    cli.run("down", "random")


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    model = tmp_path / "model"
    model.mkdir()
    make_random_model(model)
    path = tmp_path / "random.yaml"
    path.write_text(SPEC.format(model=model, port=free_port()))
    return path


def names(url: str) -> list[str]:
    return [each["id"] for each in httpx.get(f"{url}/v1/models").json()["data"]]


def test_generations(cli: CommandLine, spec: Path) -> None:
    nothing_runs: dict[str, Any] = cli.json("diff", spec, code=2)
    assert (nothing_runs["how"], nothing_runs["generation"]) == ("start", 0)
    first = cli.json("apply", spec)
    assert first["how"] == "start"
    assert cli.json("diff", spec)["pending"] is False

    live = cli.json("diff", spec, "--set", "model.served_names=[two]", code=2)
    assert (live["how"], live["unavailable_s"]) == ("reload", 0)
    assert live["fields"] == [{"path": "model.served_names", "old": ["one"], "new": ["two"], "apply": "live"}]
    assert live["plan"] == [{"path": "model.served_names", "old": ["one"], "new": ["two"], "apply": "live"}]
    assert "expected unavailability: none" in cli.run("diff", spec, "--set", "model.served_names=[two]", code=2).stdout

    second = cli.json("apply", spec, "--set", "model.served_names=[two]")
    assert (second["how"], second["pid"], second["generation"]) == ("reload", first["pid"], 2)
    assert names(second["url"]) == ["two"]

    swap = cli.json("diff", spec, "--set", "scheduler.max_num_seqs=4", code=2)
    assert swap["how"] in ("beside", "in place")
    assert {each["apply"] for each in swap["fields"]} == {"live", "restart"}
    third = cli.json("apply", spec, "--set", "scheduler.max_num_seqs=4")
    assert third["pid"] != first["pid"]
    assert (third["generation"], names(third["url"])) == (3, ["one"])

    refused = cli.run("apply", spec, "--set", "model.chat_template='{{ broken'", code=4)
    assert "the chat template is broken" in refused.stderr
    assert cli.run("rollback", "random", "9", code=1).stderr.startswith("error: random has no generation 9")
    back = cli.json("rollback", "random", "2")
    assert (back["generation"], names(back["url"])) == (5, ["two"])

    rows = cli.json("history", "random")
    assert [(row["generation"], row["outcome"], row["serving"]) for row in rows] == [
        (5, "serving", True), (4, "failed", False), (3, "serving", False), (2, "serving", False), (1, "serving", False),
    ]  # fmt: skip
    assert rows[0]["rollback_of"] == 2
    assert "the chat template is broken" in rows[1]["reason"]
    assert "rollback to 2" in cli.run("history", "random").stdout


def test_drift(cli: CommandLine, spec: Path) -> None:
    template = spec.parent / "chat.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    cli.run("apply", spec, "--set", "model.chat_template=chat.jinja")
    assert "runs as it was applied" in cli.run("drift").stdout
    assert cli.json("drift") == []

    template.write_text("{% for m in messages %}<{{ m.content }}>{% endfor %}")
    [edited] = cli.json("drift", code=2)
    assert (edited["kind"], edited["what"]) == ("plan", "model.chat_template")
    spec.write_text(spec.read_text() + "# a comment\n")
    weights = spec.parent / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes())
    found = cli.json("drift", code=2)
    assert [(each["kind"], Path(each["what"]).name) for each in found] == [
        ("spec", "random.yaml"), ("plan", "model.chat_template"), ("file", "model.safetensors"),
    ]  # fmt: skip
