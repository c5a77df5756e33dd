"""Every rendered name and label is one that a cluster takes, whatever the deployment is called."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from appliance.deploy.render.names import MAX_GENERATED, dashboard_uid, pods_of
from appliance.deploy.render.targets import render_target
from appliance.deploy.render.workload import RenderError, RenderOptions
from appliance.plan.prepare import Prepared
from tests.deploy.render.test_render import prepared, secret

__all__ = ["secret"]

LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")  # RFC 1035: Services, and KServe's own objects
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")  # RFC 1123: every other object
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
LONG = "a" + "-b" * 31  # 63 characters
OPTIONS = RenderOptions(replicas=2, max_replicas=4, prometheus_url="http://prometheus:9090")


def named(folder: Path, name: str) -> Prepared:
    made = prepared(folder)
    return made._replace(plan=msgspec.structs.replace(made.plan, name=name))


def mappings(found: Any) -> Iterator[dict[str, Any]]:
    if isinstance(found, dict):
        yield found
    for each in found.values() if isinstance(found, dict) else found if isinstance(found, list) else ():
        yield from mappings(each)


@pytest.mark.parametrize(
    ("name", "target"),
    [
        (name, target)
        for target, longest in (("kubernetes", 63), ("kserve", 53))
        for name in ("a", "chat-7b", LONG[:longest])
    ],
)
def test_a_cluster_takes_every_name_and_label(name: str, target: str, tmp_path: Path) -> None:
    (text,) = render_target(target, named(tmp_path, name), (), OPTIONS).values()
    documents = list(yaml.safe_load_all(text))
    assert len(documents) >= 3
    for each in documents:
        form = LABEL if each["kind"] in ("Service", "InferenceService") else SUBDOMAIN
        assert form.fullmatch(each["metadata"]["name"]), each["metadata"]["name"]
    labels = [each[key] for each in mappings(documents) for key in ("labels", "matchLabels") if key in each]
    assert len(labels) >= 3
    assert [value for each in labels for value in each.values() if not LABEL_VALUE.fullmatch(value)] == []


@pytest.mark.parametrize(
    ("name", "target"),
    [("7b-chat", "kubernetes"), ("7" * 63, "kubernetes"), ("7" * 53, "kserve"), (LONG, "kserve")],
)
def test_a_refused_name_has_a_place_and_one_that_fits(name: str, target: str, tmp_path: Path) -> None:
    with pytest.raises(RenderError, match=r"answers\.yaml:3:7: name: ") as refused:
        render_target(target, named(tmp_path, name), (), OPTIONS)
    fitting = str(refused.value.hint).removeprefix("--set name=")
    assert LABEL.fullmatch(fitting)
    assert render_target(target, named(tmp_path, fitting), (), OPTIONS)


@pytest.mark.parametrize("name", ["a", "chat-7b", LONG[:57], LONG])
def test_the_autoscaler_finds_the_pods_of_every_name(name: str) -> None:
    """Kubernetes names a pod after its ReplicaSet, cut to 58 characters, and adds five."""
    pod = f"{name}-5d4f8c7b9-"[:MAX_GENERATED] + "x7k2p"
    assert re.fullmatch(pods_of(name), pod)


def test_two_long_names_have_two_dashboards(tmp_path: Path) -> None:
    names = ["answers", LONG, LONG[:-1] + "c"]
    (text,) = render_target("grafana", named(tmp_path, LONG), (), RenderOptions()).values()
    assert json.loads(text)["uid"] == dashboard_uid(LONG)
    assert dashboard_uid("answers") == "appliance-answers"
    assert len({dashboard_uid(name) for name in names}) == 3
    assert all(len(dashboard_uid(name)) <= 40 for name in names)
