"""A finding, and how grave it is."""

import enum
from dataclasses import dataclass


class Gravity(enum.IntEnum):
    """Higher is graver."""

    LOW = 1
    MEDIUM = 2
    HIGH = 3


@dataclass(frozen=True, slots=True)
class AuditFinding:
    rule: str  # "audit/open-network"
    gravity: Gravity
    path: str  # of the spec
    message: str
    hint: str
