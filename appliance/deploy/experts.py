"""What a running server says of experts that move between its ranks, from its metrics."""

import re
from typing import Any

_SAMPLE = re.compile(
    r"^appliance_expert_(moves_total|move_seconds_total|rearrangements_total|balancedness|speed_up|balancer_is_off)"
    r"\{.*\} (\S+)$",
    re.MULTILINE,
)


def read_experts(metrics: str) -> dict[str, Any] | None:
    """Returns moves, their seconds, and balancedness; None if experts stay. A server has one replica then."""
    found = {name.removesuffix("_total"): float(value) for name, value in _SAMPLE.findall(metrics)}
    if not found.get("balancedness"):
        return None
    return {
        "balancedness": found["balancedness"],
        "moves": int(found.get("moves", 0)),
        "rearrangements": int(found.get("rearrangements", 0)),
        "move_seconds": round(found.get("move_seconds", 0.0), 3),
        "speed_up": found.get("speed_up", 0.0),
        "is_off": bool(found.get("balancer_is_off", 0.0)),
    }


def experts_text(experts: dict[str, Any] | None) -> str | None:
    """Returns the line of `status`; None if experts stay."""
    if experts is None:
        return None
    moved = f"balancedness {experts['balancedness']:.2f}; {experts['moves']:,} moved in {experts['move_seconds']:.2f} s"
    if experts["is_off"]:
        return f"{moved}; they move no more, as steps were no faster"
    return f"{moved}; steps {experts['speed_up']:.2f} times as fast" if experts["speed_up"] else moved
