"""Choosing a profile: a pure function of facts and profiles that can say why."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from appliance.hardware.errors import HardwareError
from appliance.hardware.facts import AcceleratorFacts, HardwareFacts
from appliance.hardware.profile import Predicate, Profile


@dataclass(frozen=True, slots=True)
class PredicateResult:
    predicate: Predicate
    holds: bool
    found: str  # what the machine has, or what it lacks

    def __str__(self) -> str:
        condition = f"{self.predicate.fact} {self.predicate.operator} {_shown(self.predicate.operand)}"
        return f"{'holds' if self.holds else 'fails'}: {condition} ({self.found})"


@dataclass(frozen=True, slots=True)
class ProfileMatch:
    profile: Profile
    results: tuple[PredicateResult, ...]

    @property
    def matches(self) -> bool:
        return all(result.holds for result in self.results)


@dataclass(frozen=True, slots=True)
class ProfileSelection:
    """The chosen profile, and every profile with its conditions, the best candidates first."""

    profile: Profile
    candidates: tuple[ProfileMatch, ...]

    @property
    def reason(self) -> str:
        """Why this one, in one line."""
        others = [match.profile.name for match in self.candidates if match.matches and match.profile != self.profile]
        beaten = f"; above {', '.join(others)} by priority" if others else ""
        conditions = "; ".join(
            f"{result.predicate.fact} {result.predicate.operator} {_shown(result.predicate.operand)}"
            for match in self.candidates
            if match.profile == self.profile
            for result in match.results
        )
        return f"{conditions}{beaten}"


def match_profile(facts: HardwareFacts, profile: Profile) -> ProfileMatch:
    """Every condition of one profile against the facts."""
    return ProfileMatch(profile, tuple(_evaluate(facts, predicate) for predicate in profile.match))


def match_profiles(facts: HardwareFacts, profiles: Iterable[Profile]) -> tuple[ProfileMatch, ...]:
    """All profiles with their conditions: matching ones first, then by priority and name."""
    matches = (match_profile(facts, profile) for profile in profiles)
    return tuple(sorted(matches, key=lambda match: (not match.matches, -match.profile.priority, match.profile.name)))


def select_profile(facts: HardwareFacts, profiles: Iterable[Profile]) -> ProfileSelection:
    """The matching profile of the highest priority.

    Raises HardwareError when none matches, or when two of the highest priority do.
    """
    candidates = match_profiles(facts, profiles)
    matching = [match.profile for match in candidates if match.matches]
    if not matching:
        raise HardwareError(f"no profile matches {facts.name}: {_closest(candidates)}", hint=_EXPLAIN)
    tied = [profile.name for profile in matching if profile.priority == matching[0].priority]
    if len(tied) > 1:
        problem = f"profiles {' and '.join(tied)} match {facts.name} with the same priority {matching[0].priority}"
        raise HardwareError(problem, hint="name one in hardware.profile, or change a priority")
    return ProfileSelection(matching[0], candidates)


_EXPLAIN: Final = "`appliance profile list --explain` shows every condition"


def _closest(candidates: tuple[ProfileMatch, ...]) -> str:
    """What the profile with the fewest failing conditions asks for."""
    if not candidates:
        return "there are no profiles"
    nearest = min(candidates, key=lambda match: sum(not result.holds for result in match.results))
    failing = "; ".join(str(result) for result in nearest.results if not result.holds)
    return f"the nearest, {nearest.profile.name}, {failing}"


def _evaluate(facts: HardwareFacts, predicate: Predicate) -> PredicateResult:
    if predicate.fact == "cpu.flags":
        wanted = predicate.contains_all or ()
        missing = [flag for flag in wanted if flag not in facts.cpu.flags]
        if predicate.contains_all is None:
            raise HardwareError("cpu.flags can only be asked with contains_all")
        return PredicateResult(predicate, not missing, f"missing: {', '.join(missing)}" if missing else "all there")
    if predicate.fact in _OF_DEVICES:
        values = [_OF_DEVICES[predicate.fact](device) for device in facts.accelerators]
        shown = ", ".join(dict.fromkeys(str(value) for value in values)) or "no accelerator"
        return PredicateResult(
            predicate, bool(values) and all(_compare(predicate, v) for v in values), f"found: {shown}"
        )
    value = _OF_MACHINE[predicate.fact](facts)
    return PredicateResult(predicate, _compare(predicate, value), f"found: {value}")


def _compare(predicate: Predicate, value: Any) -> bool:
    operand = predicate.operand
    match predicate.operator:
        case "equals":
            return bool(value == operand)
        case "one_of":
            return value in operand
        case "at_least":
            return bool(value >= operand)
        case "at_most":
            return bool(value <= operand)
    raise HardwareError(f"{predicate.fact} cannot be asked with {predicate.operator}")


_OF_MACHINE: Final[dict[str, Callable[[HardwareFacts], Any]]] = {
    "os": lambda facts: facts.os,
    "cpu.vendor": lambda facts: facts.cpu.vendor,
    "cpu.architecture": lambda facts: facts.cpu.architecture,
    "cpu.num_cores": lambda facts: facts.cpu.num_cores,
    "cpu.num_numa_nodes": lambda facts: facts.cpu.num_numa_nodes,
    "memory.limit_bytes": lambda facts: facts.memory.limit_bytes,
    "accelerators.count": lambda facts: len(facts.accelerators),
}
_OF_DEVICES: Final[dict[str, Callable[[AcceleratorFacts], Any]]] = {
    "accelerators.vendor": lambda device: device.vendor,
    "accelerators.architecture": lambda device: device.architecture,
    "accelerators.memory_bytes": lambda device: device.memory_bytes,
}


def _shown(operand: Any) -> str:
    return ", ".join(map(str, operand)) if isinstance(operand, tuple) else str(operand)
