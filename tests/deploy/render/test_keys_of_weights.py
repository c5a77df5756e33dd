"""A rendered deployment finds the key of its encrypted checkpoint where its spec says, and never holds the key."""

from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # it has no types
import msgspec
import pytest
import yaml
from compose_spec import PyCompose

from appliance.deploy.render.targets import render_target
from appliance.deploy.render.workload import RenderError, RenderOptions
from appliance.plan.prepare import Prepared, prepare
from tests.deploy.render.test_helm import substituted
from tests.deploy.render.test_leader_worker_set import FOUR_RANKS
from tests.deploy.render.test_render import HUB, SPEC, secret
from tests.plan.machines import small_model

__all__ = ["secret"]

KEY = "/run/secrets/model.key"


def prepared(folder: Path, key: str = KEY, more: str = "") -> Prepared:
    model = small_model()
    sealed = tuple(msgspec.structs.replace(tensor, sealed_at=1) for tensor in model.tensors)
    (folder / "facts.json").write_bytes(
        msgspec.json.encode(msgspec.structs.replace(model, format="tensorizer", tensors=sealed))
    )
    options = f"loading: {{load_format: tensorizer, model_loader_extra_config: {{encryption_keyfile: {key}}}}}\n{more}"
    (folder / "answers.yaml").write_text(SPEC.format(source=HUB, host="0.0.0.0", more=options))
    found = folder / "facts.json"
    return prepare(folder / "answers.yaml", hardware="server-epyc-9654", model_facts=found, has_key=False)


def files(target: str, made: Prepared) -> dict[str, str]:
    return render_target(target, made, (), RenderOptions())


def pods(found: Any) -> list[Any]:
    """The pod specs anywhere in a document."""
    if isinstance(found, list):
        return [pod for each in found for pod in pods(each)]
    if not isinstance(found, dict):
        return []
    return [found] if "containers" in found else [pod for each in found.values() for pod in pods(each)]


@pytest.mark.parametrize("target", ["kubernetes", "kserve", "leaderworkerset", "helm"])
def test_each_pod_mounts_the_secret_where_the_spec_says(target: str, tmp_path: Path) -> None:
    found = files(target, prepared(tmp_path, more=FOUR_RANKS if target == "leaderworkerset" else ""))
    if target == "helm":
        made, notes = pods(substituted(found, "answers")), found["templates/NOTES.txt"]
    else:
        (notes,) = found.values()
        made = pods(list(yaml.safe_load_all(notes)))
    assert len(made) == (2 if target == "leaderworkerset" else 1)
    for pod in made:
        (volume,) = (each for each in pod["volumes"] if each["name"] == "key")
        assert volume["secret"] == {"secretName": "answers-weights-key", "defaultMode": 0o440}
        (mount,) = (each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "key")
        assert mount == {"name": "key", "mountPath": KEY, "subPath": "key", "readOnly": True}
    assert "-weights-key with key, which opens the weights" in notes


def test_kubernetes_accepts_the_objects(tmp_path: Path) -> None:
    (text,) = files("kubernetes", prepared(tmp_path)).values()
    documents = list(yaml.safe_load_all(text))
    assert len(documents) >= 4
    for document in documents:
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def test_compose_binds_the_file(tmp_path: Path) -> None:
    (text,) = files("compose", prepared(tmp_path)).values()
    volumes = yaml.safe_load(text)["services"]["answers"]["volumes"]
    assert {"type": "bind", "source": KEY, "target": KEY, "read_only": True} in volumes
    assert PyCompose.from_yaml(text).get_service("answers") is not None


@pytest.mark.parametrize("key", ["model.key", "~/model.key"])
def test_a_path_of_this_machine_is_refused(key: str, tmp_path: Path) -> None:
    for target in ("compose", "kubernetes"):
        with pytest.raises(RenderError, match="encryption_keyfile is a path of this machine") as caught:
            files(target, prepared(tmp_path, key))
        assert "/run/secrets/model.key" in str(caught.value.hint)
    assert files("systemd", prepared(tmp_path, key))
