"""The part of a machine that one of several may use."""

from appliance.hardware import load_facts
from appliance.hardware.granted import granted


def test_a_grant_bounds_cores_and_memory() -> None:
    whole = load_facts("server-epyc-9654")
    part = granted(whole, 8, 32 << 30)
    assert (part.cpu.num_cores, part.memory.limit_bytes) == (8, 32 << 30)
    assert part.memory.total_bytes == whole.memory.total_bytes
    assert part.cpu.flags == whole.cpu.flags
    assert part.measured is None


def test_more_than_there_is_changes_nothing() -> None:
    whole = load_facts("server-epyc-9654")
    assert granted(whole) == granted(whole, 10_000, 1 << 60) == whole
