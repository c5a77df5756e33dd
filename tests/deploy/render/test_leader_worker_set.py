"""A server whose ranks are on several machines, as pods of Kubernetes."""

from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # it has no types
import pytest
import yaml

from appliance.base.errors import ApplianceError
from appliance.cli.ranks import ranks_of_node
from appliance.deploy.render.targets import render_target
from appliance.deploy.render.workload import RenderError, RenderOptions, workload_of
from tests.deploy.render.test_render import HASH, HUB, prepared

FOUR_RANKS = """\
hardware: {kernels: {kernel_set: torch}}
parallelism: {tensor: 4, nnodes: 2, master_addr: 10.0.0.1, master_port: 29600}
"""


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM_HASH", HASH)


def objects(folder: Path, source: str = HUB, options: RenderOptions | None = None) -> list[dict[str, Any]]:
    plan = prepared(folder, source=source, more=FOUR_RANKS)
    (text,) = render_target("leaderworkerset", plan, (), options or RenderOptions()).values()
    assert "APPLIANCE_RANKS_TOKEN" in text.partition("apiVersion")[0]
    return list(yaml.safe_load_all(text))


@pytest.mark.parametrize("source", [HUB, "./model.gguf"])
def test_kubernetes_accepts_the_pods_and_what_is_beside_them(source: str, tmp_path: Path) -> None:
    *others, service = objects(tmp_path, source)
    group = others.pop()
    assert (group["apiVersion"], group["kind"]) == ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")
    template = group["spec"]["leaderWorkerTemplate"]
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", **each["metadata"]}, "spec": each["spec"]}
        for each in (template["leaderTemplate"], template["workerTemplate"])
    ]
    for each in (*others, service, *pods):
        kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)
    assert service["spec"]["selector"] == {
        "leaderworkerset.sigs.k8s.io/name": "answers",
        "leaderworkerset.sigs.k8s.io/worker-index": "0",
    }
    (claim,) = (each for each in others if each["kind"] == "PersistentVolumeClaim")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]


def test_size_address_ranks_and_probes_come_from_the_plan(tmp_path: Path) -> None:
    group = objects(tmp_path, options=RenderOptions(replicas=3))[-2]
    assert group["spec"]["replicas"] == 3
    template = group["spec"]["leaderWorkerTemplate"]
    assert (template["size"], template["restartPolicy"]) == (2, "None")
    (leader,) = template["leaderTemplate"]["spec"]["containers"]
    (worker,) = template["workerTemplate"]["spec"]["containers"]
    assert leader["args"][-2:] == ["--set", "parallelism.master_addr=$(POD_ADDRESS)"]
    assert leader["env"][0]["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
    assert {each["containerPort"] for each in leader["ports"]} == {8123, 29600}
    assert leader["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert worker["args"] == [
        *("ranks", "join", "$(LWS_LEADER_ADDRESS):29600"),
        *("--node-rank", "$(LWS_WORKER_INDEX)", "--ranks-per-node", "2"),
    ]
    assert {each["name"] for each in worker["env"]} == {"TEAM_HASH", "APPLIANCE_RANKS_TOKEN"}
    assert worker["resources"] == leader["resources"]
    assert "readinessProbe" not in worker


def test_a_machine_has_memory_and_cores_for_its_ranks(tmp_path: Path) -> None:
    one = workload_of(prepared(tmp_path), (), RenderOptions())
    two = prepared(tmp_path, more="parallelism: {tensor: 2}\n")
    workload, memory = workload_of(two, (), RenderOptions()), two.plan.memory[0]
    assert workload.num_cores == 2 * two.plan.kernels.num_threads == one.num_cores
    planned = 2 * sum(item.size_bytes for item in memory.items)
    assert planned < workload.memory_bytes
    assert workload.memory_bytes * memory.budget_bytes / memory.device_bytes < planned + 2


def test_what_has_one_machine_is_refused_and_so_is_one_machine(tmp_path: Path) -> None:
    with pytest.raises(RenderError, match=r"parallelism\.nnodes is 1"):
        render_target("leaderworkerset", prepared(tmp_path), (), RenderOptions())
    several = prepared(tmp_path, more=FOUR_RANKS)
    for target in ("systemd", "compose", "kubernetes", "helm", "kserve"):
        with pytest.raises(RenderError, match=f"--to {target} has a server on one machine"):
            render_target(target, several, (), RenderOptions())
    with pytest.raises(RenderError, match="would join by hand") as refused:
        render_target("ray-serve", several, (), RenderOptions())
    assert refused.value.hint is not None
    assert "parallelism.backend=ray" in refused.value.hint
    with pytest.raises(RenderError, match="scale by hand"):
        render_target("leaderworkerset", several, (), RenderOptions(max_replicas=2))


def test_the_number_of_a_machine_stands_for_its_ranks() -> None:
    assert list(ranks_of_node([], 2, 8)) == list(range(16, 24))
    assert ranks_of_node([3, 5], None, 1) == [3, 5]
    for ranks, node_rank in (([], None), ([1], 1), ([], 0)):
        with pytest.raises(ApplianceError):
            ranks_of_node(ranks, node_rank, 1)
