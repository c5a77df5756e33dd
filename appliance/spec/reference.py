"""The reference page of the spec, generated. Written to docs/reference/spec.md."""

from collections.abc import Iterator

from appliance.catalog.rules import SUMMARIES
from appliance.spec.deployment import DeploymentSpec
from appliance.spec.fields import Section
from appliance.spec.tree import Field, fields_of, walk

_HEAD = """# The deployment spec

Generated from the declarations in `appliance/spec/sections/`: `appliance schema --write`. Do not edit.

One YAML file describes one deployment. Unknown keys are errors; keys that begin with `x-` are yours. Counts take
`k`, `m`, `g` (powers of 1000) and `K`, `M`, `G` (powers of 1024), sizes a unit (`4GiB`), durations a unit (`500ms`).
Any value may be `${env:NAME}`, `${env:NAME:?message}` or `${file:path}`, and is then masked wherever it is printed.
`--set path=value` and `APPLIANCE__SECTION__FIELD` override the file, unless it says `overrides: none`.

The column *apply* says what a change of the field costs: `live` nothing, `adapters` a change of the adapter set,
`drain` a new server, which takes the place of the old one, `restart` a new server with another engine. What is marked
*not in this version* is checked, and refused by the planner.
"""


def reference_text() -> str:
    """Markdown, as committed."""
    lines = [_HEAD, *_section_lines("The document", DeploymentSpec, "")]
    for found in walk():
        if found.child is not None:
            path = found.path + ("[]" if found.is_list else "")
            lines += ["", *_section_lines(f"`{path}`", found.child, path, found)]
    lines += ["", *_rule_lines()]
    return "\n".join(lines) + "\n"


def _section_lines(title: str, section: type[Section], path: str, found: Field | None = None) -> Iterator[str]:
    yield f"## {title}"
    yield ""
    lacking = " *Not in this version.*" if found is not None and not found.doc.built else ""
    yield section.doc + lacking
    yield ""
    yield "| field | takes | default | apply | meaning |"
    yield "|---|---|---|---|---|"
    for each in fields_of(section, path):
        yield _row(each)


def _row(found: Field) -> str:
    takes = "a section" if found.child else found.allowed
    if found.child and found.is_list:
        takes = "a list of sections"
    default = f"`{found.default_text}`" if found.default_text else ""
    cells = [f"`{found.name}`", takes, default, found.doc.apply, " ".join(_meaning(found))]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _meaning(found: Field) -> Iterator[str]:
    yield found.doc.doc
    if found.doc.auto:
        yield f"`auto`: {found.doc.auto}."
    if found.doc.vllm:
        yield f"In vLLM: `{found.doc.vllm}`."
    yield from version_notes(found)


def version_notes(found: Field) -> Iterator[str]:
    """What this version cannot do with the field."""
    if found.doc.built_values is not None:
        values = ", ".join(f"`{value}`" for value in found.doc.built_values)
        yield f"This version runs {values}."
    elif not found.doc.built:
        yield "*Not in this version.*"


def _rule_lines() -> Iterator[str]:
    yield "## Rules"
    yield ""
    yield "Every diagnostic names one of these."
    yield ""
    yield "| rule | says |"
    yield "|---|---|"
    for rule, summary in SUMMARIES.items():
        yield f"| `{rule}` | {summary.replace('|', chr(92) + '|')} |"
