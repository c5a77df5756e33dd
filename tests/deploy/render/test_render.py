"""Files for other supervisors, held against the checkers of those formats."""

import configparser
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # it has no types
import msgspec
import pytest
import yaml
from compose_spec import PyCompose

from appliance.cli.arguments.exchange import RenderArguments
from appliance.cli.render import run
from appliance.deploy.render.container import PROBE_PERIOD_S
from appliance.deploy.render.pod import PRE_STOP_S
from appliance.deploy.render.targets import render_target
from appliance.deploy.render.workload import STOP_MARGIN_S, RenderError, RenderOptions
from appliance.plan.prepare import Prepared, prepare
from appliance.spec import load_text
from tests.plan.machines import small_model

SPEC = """\
api_version: appliance/v1
kind: Deployment
name: answers
model: {{source: {source}, served_names: [small]}}
endpoints:
  http: {{host: {host}, port: 8123}}
  auth: {{keys: [{{name: team, hash: "${{env:TEAM_HASH}}"}}]}}
restart: {{heartbeat_timeout: 45s}}
shutdown: {{timeout: 90s}}
{more}"""
HUB = "hf://owner/small"
HASH = "sha256:" + "ab" * 32


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM_HASH", HASH)


def prepared(folder: Path, *, source: str = HUB, host: str = "0.0.0.0", more: str = "") -> Prepared:
    spec, facts = folder / "answers.yaml", folder / "facts.json"
    spec.write_text(SPEC.format(source=source, host=host, more=more))
    facts.write_bytes(msgspec.json.encode(small_model()))
    return prepare(spec, hardware="server-epyc-9654", model_facts=facts)


def rendered(target: str, folder: Path, options: RenderOptions | None = None, **given: Any) -> str:
    (text,) = render_target(target, prepared(folder, **given), (), options or RenderOptions()).values()
    return text


def objects(text: str) -> dict[str, Any]:
    return {document["kind"]: document for document in yaml.safe_load_all(text)}


@pytest.mark.parametrize("target", ["systemd", "compose", "kubernetes", "kserve", "ray-serve"])
@pytest.mark.parametrize("source", [HUB, "./model.gguf"])
def test_a_secret_is_named_and_never_written(target: str, source: str, tmp_path: Path) -> None:
    text = rendered(target, tmp_path, source=source)
    assert HASH not in text
    assert ("TEAM_HASH" in text) == (target != "systemd")
    assert ("/etc/appliance/answers.env" in text) == (target == "systemd")


@pytest.mark.parametrize("source", [HUB, "./model.gguf"])
@pytest.mark.parametrize("max_replicas", [None, 5])
def test_kubernetes_accepts_the_objects(source: str, max_replicas: int | None, tmp_path: Path) -> None:
    text = rendered("kubernetes", tmp_path, RenderOptions(replicas=2, max_replicas=max_replicas), source=source)
    found = list(yaml.safe_load_all(text))
    for document in found:
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    kinds = [document["kind"] for document in found]
    assert kinds[:5] == ["ConfigMap", "PersistentVolumeClaim", "Deployment", "Service", "PodDisruptionBudget"]
    assert ("HorizontalPodAutoscaler" in kinds) == (max_replicas is not None)
    assert ("Needs a PersistentVolumeClaim answers-model that holds model.gguf" in text) == (source != HUB)


def test_probes_and_grace_follow_the_spec(tmp_path: Path) -> None:
    pod = objects(rendered("kubernetes", tmp_path))["Deployment"]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == PRE_STOP_S + 90 + STOP_MARGIN_S
    container = pod["containers"][0]
    assert container["livenessProbe"]["failureThreshold"] * PROBE_PERIOD_S > 45
    assert container["startupProbe"]["failureThreshold"] * PROBE_PERIOD_S == 600
    assert container["lifecycle"]["preStop"]["sleep"]["seconds"] == PRE_STOP_S
    assert container["ports"][0]["containerPort"] == 8123


def test_the_spec_in_the_map_is_the_file(tmp_path: Path) -> None:
    found = objects(rendered("kubernetes", tmp_path))
    assert found["ConfigMap"]["data"]["deployment.yaml"] == (tmp_path / "answers.yaml").read_text()


def test_planning_under_the_limit_gives_the_same_plan(tmp_path: Path) -> None:
    memory = prepared(tmp_path).plan.memory[0]
    container = objects(rendered("kubernetes", tmp_path))["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    limit = int(container["resources"]["limits"]["memory"])
    planned = sum(item.size_bytes for item in memory.items)
    assert planned <= limit * memory.budget_bytes / memory.device_bytes < planned + 2


def test_keda_asks_prometheus_for_the_queue(tmp_path: Path) -> None:
    options = RenderOptions(replicas=1, max_replicas=4, prometheus_url="http://prometheus:9090")
    scaled = objects(rendered("kubernetes", tmp_path, options))["ScaledObject"]["spec"]
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (1, 4)
    assert scaled["triggers"][0]["metadata"]["query"] == 'sum(appliance_requests_waiting{pod=~"answers-.*"})'


def test_kserve_runs_the_same_pod(tmp_path: Path) -> None:
    service = objects(rendered("kserve", tmp_path, RenderOptions(max_replicas=3)))["InferenceService"]
    predictor = service["spec"]["predictor"]
    replicas = predictor.pop("minReplicas"), predictor.pop("maxReplicas")
    assert replicas == (1, 3)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "answers"}, "spec": predictor}
    kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)


def test_ray_serve_scales_by_rows_and_takes_what_is_planned(tmp_path: Path) -> None:
    plan = prepared(tmp_path).plan
    config = yaml.safe_load(rendered("ray-serve", tmp_path, RenderOptions(replicas=2, max_replicas=5)))
    assert config["http_options"] | {"host": "0.0.0.0", "port": 8123} == config["http_options"]
    (application,) = config["applications"]
    assert application["args"]["spec"] == (tmp_path / "answers.yaml").read_text()
    engine = application["deployments"][1]
    rows = plan.scheduler.max_num_seqs
    assert engine["autoscaling_config"] == {"min_replicas": 2, "max_replicas": 5, "target_ongoing_requests": rows}
    assert engine["graceful_shutdown_timeout_s"] == 90 + STOP_MARGIN_S
    options = engine["ray_actor_options"]
    assert options["num_cpus"] == application["args"]["num_cores"] == plan.kernels.num_threads
    assert (
        options["memory"] == application["args"]["memory_bytes"] > sum(each.size_bytes for each in plan.memory[0].items)
    )


def test_ray_serve_refuses_what_replicas_would_have_to_share(tmp_path: Path) -> None:
    asked = prepared(tmp_path)
    loaded = load_text(asked.loaded.text.replace("endpoints:", "endpoints:\n  apis: [openai, batches]"), "answers.yaml")
    with pytest.raises(RenderError, match="replicas share no store"):
        render_target("ray-serve", asked._replace(loaded=loaded), (), RenderOptions())


@pytest.mark.parametrize("source", [HUB, "./model.gguf"])
def test_compose_accepts_the_file(source: str, tmp_path: Path) -> None:
    text = rendered("compose", tmp_path, source=source)
    assert PyCompose.from_yaml(text).get_service("answers") is not None
    service = yaml.safe_load(text)["services"]["answers"]
    assert service["stop_grace_period"] == f"{90 + STOP_MARGIN_S}s"
    assert service["ports"] == ["8123:8123"]
    assert ("model.source=/models/model.gguf" in service["command"]) == (source != HUB)
    assert yaml.safe_load(text)["configs"]["spec"]["content"].count("$${env:TEAM_HASH}") == 1


def test_compose_has_one_replica(tmp_path: Path) -> None:
    with pytest.raises(RenderError, match="one port"):
        rendered("compose", tmp_path, RenderOptions(replicas=2))


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "appliance-answers.service"
    unit.write_text(rendered("systemd", tmp_path, host="127.0.0.1"))
    parsed = configparser.ConfigParser(interpolation=None, strict=False)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]  # keys have capitals
    parsed.read_string(unit.read_text())
    assert parsed["Service"]["TimeoutStopSec"] == str(90 + STOP_MARGIN_S)
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here; the unit was parsed alone")
    checked = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert "appliance-answers" not in checked.stderr, checked.stderr


@pytest.mark.parametrize("target", ["compose", "kubernetes", "kserve"])
def test_words_of_a_container_mean_themselves(target: str, tmp_path: Path) -> None:
    (text,) = render_target(target, prepared(tmp_path), ("description=$(TEAM_HASH) $TEAM",), RenderOptions()).values()
    assert "description=$$(TEAM_HASH) $$TEAM" in text  # both take two $ for one, and fill in nothing


def test_words_of_a_unit_mean_themselves(tmp_path: Path) -> None:
    plan = prepared(tmp_path)
    (text,) = render_target("systemd", plan, ('model.served_names=["a b", "100%"]',), RenderOptions()).values()
    assert '--set "model.served_names=[\\"a b\\", \\"100%%\\"]"' in text


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"host": "127.0.0.1"}, "nothing outside the container reaches"),
        ({"more": "x-note: ${file:answers.yaml}\n"}, r"\$\{file:answers.yaml\}"),
    ],
)
def test_a_container_is_refused_what_it_cannot_have(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(RenderError, match=message):
        rendered("compose", tmp_path, **given)


def test_other_targets_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(RenderError, match="nomad"):
        rendered("nomad", tmp_path)


def test_the_verb_writes_files_and_replaces_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepared(tmp_path)
    given: dict[str, Any] = {
        "spec": str(tmp_path / "answers.yaml"),
        "target": "kubernetes",
        "hardware": "server-epyc-9654",
        "model_facts": tmp_path / "facts.json",
        "folder": tmp_path / "out",
    }
    assert run(RenderArguments(**given)) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "out" / "answers.yaml")
    with pytest.raises(Exception, match="is there already"):
        run(RenderArguments(**given))


@pytest.mark.parametrize("target", ["kubernetes", "helm", "kserve"])
def test_a_name_that_no_service_may_have_is_refused(target: str, tmp_path: Path) -> None:
    plan = prepared(tmp_path)
    named = plan._replace(plan=msgspec.structs.replace(plan.plan, name="7b-chat"))
    with pytest.raises(RenderError, match="'7b-chat' cannot name a Kubernetes Service") as refused:
        render_target(target, named, (), RenderOptions())
    assert refused.value.hint == "--set name=model-7b-chat"
    assert render_target("compose", named, (), RenderOptions())
