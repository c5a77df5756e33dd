"""The class in the schema is what a change of the field costs: every field that can be varied is varied."""

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import pytest

from appliance.base.errors import SpecError
from appliance.deploy.classes import ORDER, class_of, highest
from appliance.deploy.reconcile import changes
from appliance.hardware import load_profiles, select_profile
from appliance.plan.compile import run_passes
from appliance.plan.inputs import PlanInputs
from appliance.plan.types import EnginePlan
from appliance.spec import LoadedSpec
from appliance.spec.tree import Field, walk
from tests.plan.machines import MODEL, load, machine, small_model

HASH = "sha256:" + "0" * 64
BASE = f"""\
{MODEL}  served_names: [base]
endpoints:
  auth: {{keys: [{{name: a, hash: "{HASH}"}}], keys_file: ./keys.json}}
  tls: {{certfile: ./c.pem, keyfile: ./k.pem}}
observability: {{traces: {{otlp_traces_endpoint: "http://a:4318"}}}}
"""
GENERIC = (
    *("true", "false", "2", "3", "64", "2048", "7s", "11s", "3MiB", "0.5", "0.25", "[x]", "./other", "other"),
    "http://b",
)
# Of another deployment, of what no server reads, or of where files come from: no plan of this one changes.
NOT_A_CHANGE = ("name", "api_version", "kind", "description", "overrides", "batch", "bench", "model.mirrors", "include")


def candidates(found: Field) -> Iterator[str]:
    for choice in _choices(found.info.annotation):
        yield str(choice).lower() if isinstance(choice, bool) else str(choice)
    yield from GENERIC


def _choices(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    for part in get_args(annotation):
        if get_origin(part) is not None:
            yield from _choices(part)


def planned(loaded: LoadedSpec) -> EnginePlan | None:
    """None where the planner refuses."""
    facts = machine()
    profile = select_profile(facts, load_profiles()).profile
    outcome = run_passes(PlanInputs(loaded=loaded, facts=facts, profile=profile, model=small_model()))
    return None if outcome.ledger.refusals or outcome.ledger.misfits else outcome.plan


def variants(found: Field) -> Iterator[EnginePlan]:
    path = found.path.replace("[]", "[0]")
    for value in dict.fromkeys(candidates(found)):
        try:
            plan = planned(load(BASE, f"{path}={value}"))
        except SpecError:
            continue
        if plan is not None:
            yield plan


FIELDS = [
    found
    for found in walk()
    if found.child is None and not found.path.startswith(NOT_A_CHANGE) and not found.path.startswith("bench")
]


def test_the_class_of_every_field_is_what_its_change_costs() -> None:
    base = planned(load(BASE))
    assert base is not None
    wrong: dict[str, tuple[str, str]] = {}
    num_varied = 0
    for found in FIELDS:
        observed = {
            highest(change.apply for change in each) for plan in variants(found) if (each := changes(base, plan))
        }
        num_varied += bool(observed)
        if observed and max(observed, key=ORDER.index) != found.doc.apply:
            wrong[found.path] = (found.doc.apply, max(observed, key=ORDER.index))
    assert wrong == {}, "\n".join(f"{path}: {said}, and it is {is_}" for path, (said, is_) in wrong.items())
    assert num_varied >= 90


@pytest.mark.parametrize(
    ("path", "apply"),
    [
        ("serving.max_n", "live"),
        ("serving.front.key_rules.a.priority", "live"),
        ("serving.port", "drain"),
        ("serving.front.tls.certfile", "drain"),
        ("model.served_names", "live"),
        ("model.tokenizer_path", "restart"),
        ("cache.num_blocks", "restart"),
        ("what.comes.later", "restart"),
    ],
)
def test_classes_of_planned_values(path: str, apply: str) -> None:
    assert class_of(path) == apply
