"""A Helm chart: the Kubernetes objects, with what an installation may choose as values.

What the plan decides (memory, threads, probes, grace) is a value only where another choice leaves the plan valid.
"""

import dataclasses
import json
import re
from typing import Any, Final

from appliance import __version__
from appliance.deploy.render import kubernetes
from appliance.deploy.render.container import SPEC_FILE
from appliance.deploy.render.documents import dump
from appliance.deploy.render.workload import ServerWorkload

# Stand in for template actions while the objects are data. No name of a deployment can look like one.
_RELEASE: Final = "0release0"
_ACTION: Final = re.compile(r"0value0([a-zA-Z]+(?:0dot0[a-zA-Z]+)*)0(text|number)0")
_SPEC_TEXT: Final = "0spec0"

VALUES_SCHEMA: Final[dict[str, Any]] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "additionalProperties": False,
    "required": ["image", "replicas", "service", "cache"],
    "properties": {
        "global": {"type": "object"},
        "image": {"type": "string", "minLength": 1},
        "replicas": {"type": "integer", "minimum": 1},
        "maxReplicas": {"type": "integer", "minimum": 1},
        "service": {
            "type": "object",
            "additionalProperties": False,
            "required": ["type", "port"],
            "properties": {
                "type": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
                "port": {"type": "integer", "minimum": 1, "maximum": 65535},
            },
        },
        "cache": {
            "type": "object",
            "additionalProperties": False,
            "required": ["size"],
            "properties": {"size": {"type": "string", "pattern": "^[0-9]+(Ki|Mi|Gi|Ti)$"}},
        },
    },
}


def render(workload: ServerWorkload) -> dict[str, str]:
    """Files of the chart by their paths. Objects are named after the release, so that it can be installed twice."""
    released = dataclasses.replace(workload, name=_RELEASE, spec_text=_SPEC_TEXT)
    objects = kubernetes.objects(released)
    values = _values(objects)
    for each in objects:
        _parametrize(each)
    templates = {f"templates/{_file_name(each)}": _template(each) for each in objects}
    return {
        "Chart.yaml": dump([_chart(workload)]),
        "values.yaml": dump([values], "What an installation may choose; all else follows from the spec."),
        "values.schema.json": json.dumps(VALUES_SCHEMA, indent=2) + "\n",
        f"files/{SPEC_FILE.name}": workload.spec_text,
        **templates,
        "templates/NOTES.txt": _notes(workload),
    }


def _chart(workload: ServerWorkload) -> dict[str, Any]:
    return {
        "apiVersion": "v2",
        "name": workload.name,
        "description": f"{workload.model_name}, served by the appliance",
        "type": "application",
        "version": "0.1.0",
        "appVersion": __version__,
    }


def _values(objects: list[dict[str, Any]]) -> dict[str, Any]:
    found = {each["kind"]: each for each in objects}
    pod = found["Deployment"]["spec"]["template"]["spec"]
    claim = found["PersistentVolumeClaim"]["spec"]["resources"]["requests"]["storage"]
    values: dict[str, Any] = {
        "image": pod["containers"][0]["image"],
        "replicas": 1,
        "service": {"type": "ClusterIP", "port": 80},
        "cache": {"size": claim},
    }
    for kind, least, most in (
        ("HorizontalPodAutoscaler", "minReplicas", "maxReplicas"),
        ("ScaledObject", "minReplicaCount", "maxReplicaCount"),
    ):
        if kind in found:
            values["replicas"], values["maxReplicas"] = found[kind]["spec"][least], found[kind]["spec"][most]
    values["replicas"] = found["Deployment"]["spec"].get("replicas", values["replicas"])
    return values


def _parametrize(each: dict[str, Any]) -> None:
    """Puts stand-ins for actions at the places of the values."""
    spec = each.get("spec", {})
    match each["kind"]:
        case "Deployment":
            spec["template"]["spec"]["containers"][0]["image"] = _value("image", "text")
            spec["template"]["metadata"]["annotations"]["checksum/spec"] = _SPEC_TEXT  # a new spec is a new pod
            if "replicas" in spec:
                spec["replicas"] = _value("replicas")
        case "Service":
            spec["type"] = _value("service0dot0type", "text")
            spec["ports"][0]["port"] = _value("service0dot0port")
        case "PersistentVolumeClaim":
            spec["resources"]["requests"]["storage"] = _value("cache0dot0size", "text")
        case "HorizontalPodAutoscaler":
            spec["minReplicas"], spec["maxReplicas"] = _value("replicas"), _value("maxReplicas")
        case "ScaledObject":
            spec["minReplicaCount"], spec["maxReplicaCount"] = _value("replicas"), _value("maxReplicas")


def _value(path: str, kind: str = "number") -> str:
    return f"0value0{path}0{kind}0"


def _template(each: dict[str, Any]) -> str:
    """The object's YAML with the stand-ins as actions; braces of the spec's own are escaped first."""
    text = dump([each]).replace("{{", '{{ "{{" }}')
    file = f'.Files.Get "files/{SPEC_FILE.name}"'
    if each["kind"] == "ConfigMap":
        text = text.replace(_SPEC_TEXT, f"{{{{ {file} | toJson }}}}")
    text = text.replace(_SPEC_TEXT, f"{{{{ {file} | sha256sum }}}}").replace(_RELEASE, "{{ .Release.Name }}")
    return _ACTION.sub(_action, text)


def _action(found: re.Match[str]) -> str:
    path = found[1].replace("0dot0", ".")
    return f"{{{{ .Values.{path}{' | quote' if found[2] == 'text' else ''} }}}}"


def _file_name(each: dict[str, Any]) -> str:
    return f"{each['kind'].lower()}.yaml"


def _notes(workload: ServerWorkload) -> str:
    lines = [f"{workload.model_name} answers at http://{{{{ .Release.Name }}}}:{{{{ .Values.service.port }}}}/v1"]
    needs = kubernetes.needs(dataclasses.replace(workload, name=_RELEASE))
    return "\n".join([*lines, needs.replace(_RELEASE, "{{ .Release.Name }}")]).rstrip() + "\n"
