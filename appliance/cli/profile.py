"""`appliance profile list` and `appliance profile show`."""

import json

import msgspec
import yaml

from appliance.base.errors import ExitCode
from appliance.hardware import (
    HardwareError,
    HardwareFacts,
    Profile,
    ProfileMatch,
    find_profile,
    load_facts,
    load_profiles,
    match_profiles,
    probe_machine,
    select_profile,
)


def run_list(*, explain: bool = False, hardware: str | None = None, as_json: bool = False) -> int:
    """Prints every profile, the chosen one marked; `explain` adds each condition and whether it holds.

    hardware: a known machine or a facts file; None is this machine. Returns 3 if no profile, or more than one, is best.
    """
    facts = load_facts(hardware) if hardware else probe_machine()
    matches = match_profiles(facts, load_profiles())
    chosen, failure = _choose(facts, matches)
    if as_json:
        print(json.dumps(_as_json(facts, matches, chosen), indent=2))
    else:
        print(f"{facts.name}: {describe(facts)}")
        for match in matches:
            _print_match(match, match.profile == chosen, explain)
    if failure is not None:
        raise failure
    return ExitCode.OK


def run_show(name: str = "", as_json: bool = False) -> int:
    """Prints one profile as YAML or JSON; without a name, that of this machine. Raises HardwareError."""
    profiles = load_profiles()
    profile = find_profile(name, profiles) if name else select_profile(probe_machine(), profiles).profile
    data = msgspec.to_builtins(profile)
    print(json.dumps(data, indent=2) if as_json else yaml.safe_dump(data, sort_keys=False, width=120).rstrip())
    return ExitCode.OK


def describe(facts: HardwareFacts) -> str:
    """Returns a description of the machine in one line."""
    devices: dict[str, int] = {}
    for device in facts.accelerators:
        devices[device.name] = devices.get(device.name, 0) + 1
    counted = [f"{count} x {name}" if count > 1 else name for name, count in devices.items()]
    return ", ".join([f"{facts.cpu.model_name}, {facts.cpu.num_cores} cores", *counted])


def _choose(facts: HardwareFacts, matches: tuple[ProfileMatch, ...]) -> tuple[Profile | None, HardwareError | None]:
    try:
        return select_profile(facts, [match.profile for match in matches]).profile, None
    except HardwareError as error:
        return None, error


def _print_match(match: ProfileMatch, is_chosen: bool, explain: bool) -> None:
    state = "chosen" if is_chosen else "matches" if match.matches else "no"
    profile, mark = match.profile, "*" if is_chosen else " "
    print(f"{mark} {profile.name:<16} {state:<8} priority {profile.priority:<4} {profile.description}")
    if explain:
        print(f"      support: {profile.support}; kernel sets: {', '.join(profile.kernel_sets)}")
        for result in match.results:
            print(f"      {result}")


def _as_json(facts: HardwareFacts, matches: tuple[ProfileMatch, ...], chosen: Profile | None) -> dict[str, object]:
    return {
        "hardware": facts.name,
        "chosen": chosen.name if chosen else None,
        "profiles": [
            {
                "name": match.profile.name,
                "matches": match.matches,
                "priority": match.profile.priority,
                "support": match.profile.support,
                "conditions": [
                    {
                        "fact": result.predicate.fact,
                        "operator": result.predicate.operator,
                        "operand": result.predicate.operand,
                        "holds": result.holds,
                        "found": result.found,
                    }
                    for result in match.results
                ],
            }
            for match in matches
        ],
    }
