"""What a running server says of a pause, from its metrics."""

import re

_SAMPLE = re.compile(r'^appliance_engine_paused\{.*?\bmode="(\w+)".*\} 1(?:\.0)?$', re.MULTILINE)
_OPEN = {"abort": "open requests were ended", "wait": "open requests run to their end", "keep": "open ones stand still"}


def read_pause(metrics: str) -> str | None:
    """Returns how the engine is paused; None if it is not. Several replicas are paused while one is."""
    return next(iter(_SAMPLE.findall(metrics)), None)


def pause_text(mode: str | None) -> str | None:
    """Says what a pause does to requests; None if there is none."""
    return None if mode is None else f"{mode}: {_OPEN[mode]}, new ones wait; POST /resume ends it"
