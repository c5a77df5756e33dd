"""The dashboard and the alert rules, held against a server that runs and, where it is installed, against Prometheus."""

import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from appliance.deploy.render.panels import PANELS
from appliance.deploy.render.targets import render_target
from appliance.deploy.render.workload import RenderOptions
from appliance.engine.scripted import Script
from tests.deploy.render.test_render import prepared
from tests.server.harness import Server, running, says

SLO = "slo: {ttft_p95: 2s, tpot_p50: 80ms, itl_p95: 200ms}\n"
SCRIPT = Script(replies=[says("greet", "hello world")])
SELECTED = re.compile(r"(appliance_\w+)(?:\{([^}]*)\})?")
KEYED = ("appliance_key_tokens_total", "appliance_key_refusals_total")  # only a server with keys has them


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM_HASH", "sha256:" + "ab" * 32)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("watched"), SCRIPT, slo={"ttft_p95": 2.0}) as running_server:
        ask(running_server)
        yield running_server


def ask(server: Server) -> None:
    with server.openai() as client:
        client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": "greet"}])


def rendered(target: str, folder: Path) -> str:
    (text,) = render_target(target, prepared(folder, more=SLO), (), RenderOptions()).values()
    return text


def rules(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(rendered("alerts", folder))["groups"][0]["rules"]
    return found


def samples(server: Server) -> dict[str, list[dict[str, str]]]:
    """Sample name -> the label sets it has."""
    found: dict[str, list[dict[str, str]]] = {}
    for family in text_string_to_metric_families(httpx.get(f"{server.url}/metrics").text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


def test_every_query_names_what_the_server_offers(server: Server, tmp_path: Path) -> None:
    offered = samples(server)
    expressions = [query.expression for panel in PANELS for query in panel.queries]
    expressions += [rule["expr"] for rule in rules(tmp_path)]
    for name, selector in (found for text in expressions for found in SELECTED.findall(text)):
        if name in KEYED:
            continue
        assert name in offered, name
        labels = {part.split("=")[0].rstrip("~!") for part in selector.split(",") if part}
        assert labels <= set(offered[name][0]), (name, labels)


def test_groups_are_by_labels_that_exist(server: Server) -> None:
    offered = samples(server)
    for query in (query for panel in PANELS for query in panel.queries):
        for by, name in re.findall(r"by \(([^)]*)\) \(rate\((appliance_\w+)", query.expression):
            if name not in KEYED:
                assert {label.strip() for label in by.split(",")} <= set(offered[name][0])


def test_declared_targets_are_lines_and_rules(tmp_path: Path) -> None:
    panels = {panel["title"]: panel for panel in json.loads(rendered("grafana", tmp_path))["panels"]}
    steps = panels["Time to first token"]["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert [step["value"] for step in steps] == [None, 2.0]
    named = {rule["alert"]: rule["expr"] for rule in rules(tmp_path)}
    assert named["ApplianceSloTtftP95"].endswith("> 2")
    assert "0.5, sum by (le) (rate(appliance_inter_token_seconds_bucket" in named["ApplianceSloTpotP50"]
    assert not any("Itl" in name for name in named)


def test_promtool_accepts_the_rules(tmp_path: Path) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not here")
    path = tmp_path / "alerts.yaml"
    path.write_text(rendered("alerts", tmp_path))
    subprocess.run(["promtool", "check", "rules", str(path)], check=True, capture_output=True)


@contextmanager
def prometheus(server: Server, folder: Path) -> Iterator[str]:
    """A Prometheus that scrapes the server. Yields its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    target = server.url.removeprefix("http://")
    config = {
        "global": {"scrape_interval": "200ms"},
        "scrape_configs": [{"job_name": "appliance", "static_configs": [{"targets": [target]}]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen([*command, f"--web.listen-address={address}"], stdout=log, stderr=log)
    try:
        yield f"http://{address}"
    finally:
        process.kill()
        process.wait()


def value_of(address: str, expression: str) -> list[Any]:
    asked = expression.replace("$__rate_interval", "30s").replace("$model", "scripted")
    answer = httpx.get(f"{address}/api/v1/query", params={"query": asked})
    assert answer.status_code == 200, (expression, answer.text)
    found: list[Any] = answer.json()["data"]["result"]
    return found


def test_prometheus_answers_every_query(server: Server, tmp_path: Path) -> None:
    if shutil.which("prometheus") is None:
        pytest.skip("Prometheus is not here")
    queries = [query.expression for panel in PANELS for query in panel.queries if not query.expression.count("key_")]
    with prometheus(server, tmp_path) as address:
        deadline = time.monotonic() + 60
        _await_ready(address, deadline)
        missing = queries
        while missing and time.monotonic() < deadline:
            ask(server)
            missing = [query for query in missing if not value_of(address, query)]
        assert missing == []
        for rule in rules(tmp_path):
            value_of(address, rule["expr"])


def _await_ready(address: str, deadline: float) -> None:
    """Until its port is open and its storage loaded: before that it answers 503."""
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{address}/-/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise AssertionError("Prometheus did not become ready")
