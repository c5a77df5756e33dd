"""The results of the step profiler: values only, so that a reader needs no engine."""

import msgspec


class OperatorProfile(msgspec.Struct, frozen=True, kw_only=True):
    """All operators of one label, summed over steps. bytes and operations: the least that they must move and do."""

    label: str
    unit: str
    seconds: float
    bytes: int
    operations: int


class StepsProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of one kind. phases: seconds; "between" is the time since the step before. shared_keys: cached tokens that
    decodes did not read because cascade attention had read them for another one, per layer without a window."""

    steps: int
    tokens: int
    sampled: int
    phases: dict[str, float]
    operators: tuple[OperatorProfile, ...]
    shared_keys: int = 0


class EngineProfile(msgspec.Struct, frozen=True, kw_only=True):
    """threads: CPU seconds by thread name; "native" sums the threads that are not Python's."""

    seconds: float
    kinds: dict[str, StepsProfile]
    threads: dict[str, float]
