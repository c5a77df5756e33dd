"""What a rule answers."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from appliance.base.diagnostics import Severity


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """`path` is the field to blame; `hint` is what to write instead."""

    path: str
    message: str
    hint: str
    value: Any = None
    allowed: str = ""
    severity: Severity = Severity.ERROR


Findings = Iterator[Finding]


def repeated(values: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Index and value of everything that came before."""
    seen: set[str] = set()
    for index, value in enumerate(values):
        if value in seen:
            yield index, value
        seen.add(value)
