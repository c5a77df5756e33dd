"""The results of the step profiler: values only, so that a reader needs no engine."""

from collections.abc import Iterable, Sequence

import msgspec

from appliance.engine.step_trace import StepTrace


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


class EngineProfile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """threads: CPU seconds by thread name; "native" sums the threads that are not Python's. trace: of the steps, where
    one was asked for."""

    seconds: float
    kinds: dict[str, StepsProfile]
    threads: dict[str, float]
    trace: StepTrace | None = None


def added_up(profiles: Sequence[EngineProfile]) -> EngineProfile | None:
    """Adds up what engines did in the same time, without traces. Returns None where there are no profiles."""
    if not profiles:
        return None
    names = dict.fromkeys(name for each in profiles for name in each.kinds)
    return EngineProfile(
        seconds=max(each.seconds for each in profiles),
        kinds={name: _steps([each.kinds[name] for each in profiles if name in each.kinds]) for name in names},
        threads=_sums(each.threads for each in profiles),
    )


def _steps(kinds: Sequence[StepsProfile]) -> StepsProfile:
    operators: dict[tuple[str, str], OperatorProfile] = {}
    for each in (operator for kind in kinds for operator in kind.operators):
        before = operators.get((each.label, each.unit))
        operators[each.label, each.unit] = each if before is None else _added(before, each)
    return StepsProfile(
        steps=sum(each.steps for each in kinds),
        tokens=sum(each.tokens for each in kinds),
        sampled=sum(each.sampled for each in kinds),
        phases=_sums(each.phases for each in kinds),
        operators=tuple(operators.values()),
        shared_keys=sum(each.shared_keys for each in kinds),
    )


def _added(one: OperatorProfile, other: OperatorProfile) -> OperatorProfile:
    return msgspec.structs.replace(
        one,
        seconds=one.seconds + other.seconds,
        bytes=one.bytes + other.bytes,
        operations=one.operations + other.operations,
    )


def _sums(values: Iterable[dict[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for each in values:
        for name, value in each.items():
            found[name] = found.get(name, 0.0) + value
    return found
