"""Generates the reference pages of the spec: the fields that this version runs, and those that it refuses."""

import functools
from collections.abc import Callable, Iterator

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
`drain` a new server, which takes the place of the old one, `restart` a new server with another engine. Fields that this
version refuses stand on [a page of their own](not-in-this-version.md).
"""

_REFUSED_HEAD = """# Fields that this version refuses

Generated from the declarations in `appliance/spec/sections/`: `appliance schema --write`. Do not edit.

These fields are part of the format, so that a spec can be written, checked and imported today. `appliance validate`
checks their values; `plan` and `apply` refuse a spec that sets one of them, at its place. Editors do not suggest them.
Fields that this version runs are [here](spec.md).
"""


def reference_text() -> str:
    """Returns the Markdown of the fields that this version runs, and of the rules, as it is committed."""
    return _page(_HEAD, _is_run, ["", *_rule_lines()])


def refused_text() -> str:
    """Returns the Markdown of the fields that this version refuses, as it is committed."""
    return _page(_REFUSED_HEAD, lambda found: not _is_run(found), [])


def _is_run(found: Field) -> bool:
    """Returns whether this version runs the field: it is built, and so is every section around it."""
    parts = found.path.replace("[]", "").split(".")
    around = (_by_path()[".".join(parts[:count])] for count in range(1, len(parts) + 1))
    return all(each.doc.built for each in around)


@functools.cache
def _by_path() -> dict[str, Field]:
    return {found.path.replace("[]", ""): found for found in walk()}


def _page(head: str, belongs: Callable[[Field], bool], tail: list[str]) -> str:
    sections: list[tuple[str, type[Section], str]] = [("The document", DeploymentSpec, "")]
    for found in walk():
        if found.child is not None:
            path = found.path + ("[]" if found.is_list else "")
            sections.append((f"`{path}`", found.child, path))
    lines = [head]
    for title, section, path in sections:
        rows = [found for found in fields_of(section, path) if belongs(found)]
        if rows:
            lines += (
                ["", *_section_lines(title, section, rows)] if len(lines) > 1 else _section_lines(title, section, rows)
            )
    return "\n".join(lines + tail) + "\n"


def _section_lines(title: str, section: type[Section], rows: list[Field]) -> Iterator[str]:
    yield f"## {title}"
    yield ""
    yield section.doc
    yield ""
    yield "| field | takes | default | apply | meaning |"
    yield "|---|---|---|---|---|"
    yield from map(_row, rows)


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
    """Yields notes on values of the field that this version does not run."""
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
