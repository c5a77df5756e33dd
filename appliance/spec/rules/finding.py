"""The result of a rule."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from appliance.base.diagnostics import Severity


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A fault that a rule found. `path` is the field to blame; `hint` says what to write instead."""

    path: str
    message: str
    hint: str
    value: Any = None
    allowed: str = ""
    severity: Severity = Severity.ERROR


Findings = Iterator[Finding]


def repeated(values: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yields the index and value of each repeated value."""
    seen: set[str] = set()
    for index, value in enumerate(values):
        if value in seen:
            yield index, value
        seen.add(value)
