"""`appliance bench` against a live server and in process, and the comparison of the two."""

import json
from collections.abc import Callable
from pathlib import Path

from tests.e2e.conftest import CommandLine

WORK = [
    *("--with", "num_prompts=6", "--with", "input_len=24", "--with", "output_len=8", "--with", "repeats=2"),
    *("--vocab-size", "200"),
]


def test_serve_throughput_and_compare(
    appliance: CommandLine, spec: Path, deployed: Callable[[], str], tmp_path: Path
) -> None:
    url = deployed()
    online, offline, page = tmp_path / "online.json", tmp_path / "offline.json", tmp_path / "report.html"
    appliance.run("bench", "serve", spec, *WORK, "--with", "max_concurrency=3", "-o", online, "--html", page)
    result = json.loads(online.read_text())
    assert result["target"] == url
    assert len(result["rounds"]) == 2
    assert {"completed": 6, "failed": 0, "input_tokens": 144, "output_tokens": 48}.items() <= result["rounds"][
        1
    ].items()
    assert {"ttft", "e2el"} <= set(result["rounds"][0]["latencies"])  # so few tokens may all come at once: no ITL then
    assert result["engine_sha256"]
    assert "<svg" in page.read_text()
    assert "http://" not in page.read_text().replace(url, "").replace("http://www.w3.org/2000/svg", "")

    appliance.run("bench", "throughput", spec, *WORK, "-o", offline)
    compared = appliance.run("bench", "compare", offline, online, code=6)  # one was bounded to three at a time
    assert "max_concurrency" in compared.stderr
    appliance.run("bench", "serve", "--url", url, *WORK, "-o", online)
    assert "output_throughput" in appliance.run("bench", "compare", offline, online).stdout


def test_a_missed_slo_is_exit_5(appliance: CommandLine, spec: Path, deployed: Callable[[], str]) -> None:
    deployed()
    arguments = ["bench", "serve", spec, *WORK, "--set", "slo.ttft_p95=1ms", "--assert-slo"]
    assert "the SLO was missed" in appliance.run(*arguments, code=5).stderr
