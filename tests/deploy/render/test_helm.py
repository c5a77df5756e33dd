"""The chart gives the objects that kubernetes gives: by Helm itself where it is installed, and by substitution here."""

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate  # type: ignore[import-untyped]  # it has no types
import pytest
import yaml

from appliance.cli.arguments.exchange import RenderArguments
from appliance.cli.render import run
from appliance.deploy.render.targets import render_target
from appliance.deploy.render.workload import RenderError, RenderOptions
from tests.deploy.render.test_render import HASH, HUB, prepared, secret

__all__ = ["secret"]

SCALED = (
    RenderOptions(replicas=2),
    RenderOptions(max_replicas=5),
    RenderOptions(max_replicas=5, prometheus_url="http://prometheus:9090"),
)
TRICKY = 'description: "a {{ .Values.image }} b"\n'
OVERRIDES = ('model.served_names=["{{ .Release.Name }}"]',)
HELM = shutil.which("helm")


def chart(folder: Path, options: RenderOptions, **given: Any) -> dict[str, str]:
    return render_target("helm", prepared(folder, **given), OVERRIDES, options)


def substituted(files: dict[str, str], release: str) -> list[dict[str, Any]]:
    """What Helm makes of the few actions that the templates use."""
    values, spec = yaml.safe_load(files["values.yaml"]), files["files/deployment.yaml"]

    def action(found: re.Match[str]) -> str:
        words = found[1].split(" | ")
        if words[0] == '"{{"':
            return "{{"
        if words[0] == ".Release.Name":
            return release
        if words[0].startswith(".Files.Get"):
            return {"toJson": json.dumps(spec), "sha256sum": hashlib.sha256(spec.encode()).hexdigest()}[words[1]]
        value = values
        for name in words[0].removeprefix(".Values.").split("."):
            value = value[name]
        return json.dumps(value) if words[1:] == ["quote"] else str(value)

    texts = [text for name, text in files.items() if name.startswith("templates/") and name.endswith(".yaml")]
    return [yaml.safe_load(re.sub(r"\{\{ (.+?) \}\}", action, text)) for text in texts]


def by_kind(found: list[dict[str, Any]]) -> dict[str, Any]:
    return {each["kind"]: each for each in found}


@pytest.mark.parametrize("options", SCALED, ids=["two", "hpa", "keda"])
@pytest.mark.parametrize("source", [HUB, "./model.gguf"])
def test_the_chart_gives_the_objects_of_kubernetes(options: RenderOptions, source: str, tmp_path: Path) -> None:
    """Under the deployment's own name as the release, all but the sum of the spec is what `--to kubernetes` writes."""
    files = chart(tmp_path, options, source=source, more=TRICKY)
    found = by_kind(substituted(files, "answers"))
    for each in found.values():
        if each["apiVersion"] != "keda.sh/v1alpha1":
            kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)
    del found["Deployment"]["spec"]["template"]["metadata"]["annotations"]["checksum/spec"]
    assert found["Service"]["spec"].pop("type") == "ClusterIP"
    (plain,) = render_target("kubernetes", prepared(tmp_path, source=source, more=TRICKY), OVERRIDES, options).values()
    assert found == by_kind(list(yaml.safe_load_all(plain)))


@pytest.mark.parametrize("options", SCALED, ids=["two", "hpa", "keda"])
def test_helm_takes_the_chart(options: RenderOptions, tmp_path: Path) -> None:
    if HELM is None:
        pytest.skip("helm is not here; the templates were substituted alone")
    files = chart(tmp_path, options, more=TRICKY)
    for name, text in files.items():
        (tmp_path / "chart" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "chart" / name).write_text(text)
    helm = [HELM, "lint", "--strict", str(tmp_path / "chart")]
    assert "0 chart(s) failed" in subprocess.run(helm, capture_output=True, text=True, check=True).stdout
    templated = subprocess.run(
        [HELM, "template", "other", str(tmp_path / "chart")], capture_output=True, text=True, check=True
    ).stdout
    assert by_kind([each for each in yaml.safe_load_all(templated) if each]) == by_kind(substituted(files, "other"))


def test_values_are_held_to_their_schema(tmp_path: Path) -> None:
    files = chart(tmp_path, SCALED[1])
    values, schema = yaml.safe_load(files["values.yaml"]), json.loads(files["values.schema.json"])
    jsonschema.validate(values, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**values, "replcias": 3}, schema)


def test_a_secret_is_no_part_of_the_chart(tmp_path: Path) -> None:
    files = chart(tmp_path, RenderOptions())
    assert not any(HASH in text for text in files.values())
    assert "{{ .Release.Name }}-env with: TEAM_HASH" in files["templates/NOTES.txt"]


def test_a_chart_needs_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepared(tmp_path)
    given: dict[str, Any] = {
        "spec": str(tmp_path / "answers.yaml"),
        "target": "helm",
        "hardware": "server-epyc-9654",
        "model_facts": tmp_path / "facts.json",
    }
    with pytest.raises(RenderError, match="files"):
        run(RenderArguments(**given))
    run(RenderArguments(folder=tmp_path / "chart", **given))
    assert (tmp_path / "chart" / "templates" / "deployment.yaml").is_file()
