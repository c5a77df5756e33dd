"""The class in the schema is what a change of the field costs: every field that can be varied is varied."""

import functools
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import msgspec
import pytest

from appliance.base.errors import SpecError
from appliance.deploy.classes import ORDER, class_of, highest
from appliance.deploy.reconcile import changes
from appliance.hardware import load_profiles, select_profile
from appliance.plan.compile import run_passes
from appliance.plan.inputs import PlanInputs, ResolvedFiles
from appliance.plan.types import EnginePlan
from appliance.spec import LoadedSpec
from appliance.spec.fields import ApplyClass
from appliance.spec.tree import Field, walk
from tests.deploy.field_values import OTHER_CODE, UNCHANGED, VALUES, adapters_of, draft_model_of
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
    "true",
    "false",
    "2",
    "3",
    "64",
    "2048",
    "7s",
    "11s",
    "3MiB",
    "0.5",
    "0.25",
    "[x]",
    "./other",
    "other",
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
    """Returns the plan; None if the planner refuses."""
    facts = machine()
    profile = select_profile(facts, load_profiles()).profile
    is_custom = loaded.spec.loading.load_format == "custom"  # the loader of these tests reads what the planner reads
    model = msgspec.structs.replace(small_model(), format="custom" if is_custom else "safetensors")
    files = ResolvedFiles(modelling=OTHER_CODE, adapters=adapters_of(loaded), draft_model=draft_model_of(loaded, model))
    outcome = run_passes(PlanInputs(loaded=loaded, facts=facts, profile=profile, model=model, files=files))
    return None if outcome.ledger.refusals or outcome.ledger.misfits else outcome.plan


def unbuilt(path: str) -> bool:
    """Returns whether this version refuses the field or a section above it (tests/plan/test_refusals.py)."""
    parts = path.replace("[]", "").split(".")
    above = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
    return any(each in BY_PATH and not BY_PATH[each].doc.built for each in above)


def has_one_meaning(found: Field) -> bool:
    """Returns whether all behaviours but one are refused."""
    return len([value for value in found.doc.built_values or (0, 0) if value != "auto"]) <= 1


def others(found: Field) -> Iterator[tuple[tuple[str, ...], str]]:
    """What is given, and an override to it that may change the plan."""
    path = found.path.replace("[]", "[0]")
    if (other := VALUES.get(found.path)) is not None:
        yield other.given, f"{path}={other.value}"
        return
    yield from (((), f"{path}={value}") for value in dict.fromkeys(candidates(found)))


@functools.cache
def base(given: tuple[str, ...]) -> EnginePlan | None:
    return planned(load(BASE, *given))


def costs(found: Field) -> Iterator[ApplyClass]:
    """Yields the costs of each value that can be planned and that changes the plan."""
    for given, override in others(found):
        try:
            before, after = base(given), planned(load(BASE, *given, override))
        except SpecError:
            continue
        if before is not None and after is not None and (found_changes := changes(before, after)):
            yield highest(change.apply for change in found_changes)


BY_PATH = {found.path.replace("[]", ""): found for found in walk()}
FIELDS = [found for found in walk() if found.child is None and not found.path.startswith(NOT_A_CHANGE)]
VARIED = [each for each in FIELDS if not unbuilt(each.path) and not has_one_meaning(each)]


def test_the_class_of_every_field_is_what_its_change_costs() -> None:
    """A new field is varied, or says in field_values.py why it changes no plan."""
    wrong: dict[str, str] = {}
    for found in VARIED:
        observed = max(costs(found), key=ORDER.index, default=None)
        if observed is None and found.path not in UNCHANGED:
            wrong[found.path] = "no value changes the plan; add one to field_values.VALUES"
        elif observed is not None and found.path in UNCHANGED:
            wrong[found.path] = "it does change the plan; take it out of field_values.UNCHANGED"
        elif observed is not None and observed != found.doc.apply:
            wrong[found.path] = f"the schema says {found.doc.apply}, and it is {observed}"
    assert wrong == {}
    assert set(VALUES) | set(UNCHANGED) <= {found.path for found in VARIED}


@pytest.mark.parametrize(
    ("path", "apply"),
    [
        ("serving.limits.max_n", "live"),
        ("serving.auth.key_rules.a.priority", "live"),
        ("serving.listen.port", "drain"),
        ("serving.listen.tls.certfile", "live"),
        ("scheduler.max_waiting", "live"),
        ("scheduler.max_num_seqs", "restart"),
        ("model.served_names", "live"),
        ("model.tokenizer_path", "restart"),
        ("cache.num_blocks", "restart"),
        ("adapters.served", "adapters"),
        ("adapters.max_loras", "restart"),
        ("what.comes.later", "restart"),
    ],
)
def test_classes_of_planned_values(path: str, apply: str) -> None:
    assert class_of(path) == apply
