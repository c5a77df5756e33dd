"""`appliance explain`: prints the meaning of a field, a section or a rule."""

import json
import re
import sys
from collections.abc import Iterator

from appliance.base.errors import ExitCode
from appliance.catalog.rules import SUMMARIES
from appliance.spec.deployment import DeploymentSpec
from appliance.spec.fields import Section
from appliance.spec.reference import version_notes
from appliance.spec.suggest import near_value, places_of
from appliance.spec.tree import Field, fields_of, walk


def run(path: str = "", as_json: bool = False) -> int:
    """Explains a path, a bare field name (ours or vLLM's), or a rule id. Returns 2 if it is unknown."""
    wanted = path.strip().removeprefix("--")
    if not wanted:
        sections = list(fields_of(DeploymentSpec))
        print(_json(sections) if as_json else "\n".join(_section_lines(DeploymentSpec, "")))
        return ExitCode.OK
    if wanted in SUMMARIES:
        rule = {"rule": wanted, "summary": SUMMARIES[wanted]}
        print(json.dumps([rule], indent=2) if as_json else f"{wanted}\n  {SUMMARIES[wanted]}")
        return ExitCode.OK
    fields = _named(wanted)
    if not fields:
        near = near_value(wanted, [*(each.path for each in walk()), *SUMMARIES])
        print(f"error: no field or rule is named {wanted!r}", file=sys.stderr)
        print(f"  hint: {f'did you mean {near}?' if near else 'appliance explain lists the sections'}", file=sys.stderr)
        return ExitCode.INVALID
    print(_json(fields) if as_json else "\n\n".join("\n".join(_field_lines(found)) for found in fields))
    return ExitCode.OK


def _json(fields: list[Field]) -> str:
    """Writes a list, because several fields may have the same name."""
    return json.dumps([{"path": found.path, "doc": found.doc.doc, **_facts(found)} for found in fields], indent=2)


def _named(wanted: str) -> list[Field]:
    """Finds fields by path, else by name."""
    plain = re.sub(r"\[\d*\]", "", wanted).replace("-", "_")
    table = {found.path.replace("[]", ""): found for found in walk()}
    exact = table.get(plain)
    if exact is not None:
        return [exact]
    return [table[path.replace("[]", "")] for path in places_of(plain)]


def _field_lines(found: Field) -> Iterator[str]:
    yield found.path
    yield f"  {found.doc.doc}"
    yield from (f"  {name + ':':<10}{text}" for name, text in _facts(found).items() if text)
    if found.child is not None:
        yield ""
        yield from _section_lines(found.child, found.path + ("[]" if found.is_list else ""))


def _facts(found: Field) -> dict[str, str]:
    return {
        "takes": "a section" if found.child else found.allowed,
        "default": found.default_text,
        "auto": found.doc.auto,
        "apply": found.doc.apply,
        "since": found.doc.since,
        "vLLM": found.doc.vllm,
        "version": " ".join(version_notes(found)).replace("`", "").replace("*", ""),
        "override": _override_text(found),
    }


def _override_text(found: Field) -> str:
    if found.child is not None or "[]" in found.path:
        return ""
    return f"--set {found.path}=..., APPLIANCE__{found.path.upper().replace('.', '__')}"


def _section_lines(section: type[Section], path: str) -> Iterator[str]:
    yield section.doc
    width = max(len(found.name) for found in fields_of(section)) + 2
    for found in fields_of(section, path):
        default = f" [{found.default_text}]" if found.default_text else ""
        yield f"  {found.name:<{width}}{found.doc.doc}{default}"
