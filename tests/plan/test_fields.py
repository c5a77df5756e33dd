"""No field of the spec is ignored: a pass reads it, or the planner refuses it as not in this version."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from appliance.plan import prepare as prepare_module
from appliance.plan.compile import run_passes
from appliance.plan.inputs import PlanInputs
from appliance.plan.prepare import fetch_options, find_draft_model, find_machine, resolve_files
from appliance.spec import LoadedSpec
from appliance.spec.fields import Section
from appliance.spec.tree import Field, walk
from tests.deploy.field_values import adapter_facts

from .machines import MODEL, load, machine, small_model

# Read where the plan is not made: by the loader, or by the command that prints.
ELSEWHERE = {
    "api_version": "the loader",
    "kind": "the loader",
    "description": "for people",
    "overrides": "the loader",
    "include": "the loader",
    "model.source": "find_model",
    "model.mirrors": "find_model",
    "model.sha256": "find_model",
    "model.revision": "find_model",
    "model.resolver": "find_model",
    "endpoints.auth.allow_public_without_keys": "a rule of the spec, before any plan",
    "decoding.trust_plugins": "a rule of the spec, before any plan",
    "decoding.disable_fallback": "with one back-end there is nothing to fall back to, whatever it says",
}
FULL = f"""\
{MODEL}  tokenizer: acme/tokenizer
  max_model_len: 1K
hardware: {{memory: {{utilization: 0.5}}}}
decoding: {{tool_parser: hermes, tool_server: [{{name: files, command: [serve]}}]}}
speculative: {{method: [ngram, draft_model], model: ./draft, quantization: int8}}
lora: {{adapters: [{{name: one, source: ./one, rank: 4}}]}}
slo: {{ttft_p95: 1s, gate: {{num_prompts: 2}}}}
endpoints: {{auth: {{keys: [{{name: a, hash: "sha256:{"0" * 64}"}}]}}, tls: {{certfile: /c, keyfile: /k}}}}
observability: {{traces: {{otlp_traces_endpoint: "http://a"}}}}
"""


@contextmanager
def recorded() -> Iterator[set[tuple[type, str]]]:
    """Every attribute of a section that is read meanwhile."""
    seen: set[tuple[type, str]] = set()
    original, whole = Section.__getattribute__, LoadedSpec._data

    def digested(self: LoadedSpec) -> dict[str, Any]:
        """The digest of a spec reads every field, so its reads do not count."""
        before = set(seen)
        data = whole(self)
        seen.intersection_update(before)
        return data

    def spy(self: Section, name: str) -> Any:
        if name in type(self).model_fields:
            seen.add((type(self), name))
        elif name == "model_dump":
            seen.update((type(self), field) for field in type(self).model_fields)
        return original(self, name)

    Section.__getattribute__ = spy  # type: ignore[method-assign]  # undone below
    LoadedSpec._data = digested  # type: ignore[method-assign]  # undone below
    try:
        yield seen
    finally:
        Section.__getattribute__ = original  # type: ignore[method-assign]  # as it was
        LoadedSpec._data = whole  # type: ignore[method-assign]  # as it was


def has_one_meaning(found: Field) -> bool:
    """Whether everything but one behaviour is refused, so that there is nothing to read."""
    values = found.doc.built_values
    if values is None:
        return False
    return len([value for value in values if value not in ("auto", "none")]) <= 1


def read_fields(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> set[tuple[type, str]]:
    monkeypatch.setattr("appliance.plan.compile.refuse_unbuilt", lambda inputs, ledger: None)
    monkeypatch.setattr(prepare_module, "probe_machine", machine)
    monkeypatch.setattr(prepare_module, "resolve_source", lambda *_: tmp_path)
    monkeypatch.setattr(prepare_module, "read_adapter", lambda path: adapter_facts(str(path)))
    monkeypatch.setattr(prepare_module, "read_facts", lambda *_, **__: small_model())
    loaded = load(FULL)
    with recorded() as seen:
        found = find_machine(loaded.spec, None)
        files = resolve_files(loaded, tmp_path, allow_fetch=False)
        draft_model = find_draft_model(loaded, tmp_path, small_model(), str(tmp_path), allow_fetch=False)
        files = replace(files, draft_model=draft_model)
        fetch_options(loaded.spec, tmp_path, None, offline=True)
        prepare_module.is_offline(loaded.spec)
        run_passes(
            PlanInputs(loaded=loaded, facts=found.facts, profile=found.profile, model=small_model(), files=files)
        )
    return seen


def unbuilt_above(path: str, fields: dict[str, Field]) -> bool:
    parts = path.replace("[]", "").split(".")
    return any(
        not fields[above].doc.built for n in range(1, len(parts) + 1) if (above := ".".join(parts[:n])) in fields
    )


def test_every_field_is_read_or_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = read_fields(monkeypatch, tmp_path)
    fields = {found.path.replace("[]", ""): found for found in walk()}
    ignored = [
        path
        for path, found in fields.items()
        if found.child is None
        and path not in ELSEWHERE
        and not unbuilt_above(path, fields)
        and not has_one_meaning(found)
        and (found.section, found.name) not in seen
        and not path.startswith("bench.scenarios")  # dumped as a whole
    ]
    assert ignored == [], "no pass of the planner reads these fields"


def test_the_digest_of_a_spec_does_not_count_as_reading_it() -> None:
    loaded = load(MODEL)
    with recorded() as seen:
        assert loaded.sha256
        assert seen == set()
        assert loaded.spec.scheduler.max_waiting is None
        assert (type(loaded.spec.scheduler), "max_waiting") in seen


def test_the_exceptions_are_fields() -> None:
    assert set(ELSEWHERE) <= {found.path for found in walk()}
