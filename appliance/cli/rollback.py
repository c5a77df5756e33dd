"""`appliance rollback`: applies an older generation's plan again, as a new generation."""

import msgspec

from appliance import __version__
from appliance.base.errors import ApplianceError
from appliance.cli.apply import Printer, bring_about
from appliance.cli.arguments.lifecycle import ApplyArguments, RollbackArguments
from appliance.deploy.execute import DesiredState
from appliance.deploy.naming import find_deployment
from appliance.deploy.phases import PhaseClock
from appliance.deploy.state import DeploymentState, Generation
from appliance.plan.types import EnginePlan


def run(arguments: RollbackArguments) -> int:
    """Applies the older generation. Raises ApplyError (4) if it does not become ready."""
    state = find_deployment(arguments.name)
    generation = _chosen(state, arguments.generation)
    current = state.current()
    phases, printer = PhaseClock("resolve"), Printer(quiet=arguments.as_json)
    wanted = DesiredState(
        plan=_plan(generation),
        spec_file=current.spec_file if current is not None else generation.spec_file,
        spec_text=generation.spec_text,
        spec_data=generation.spec_data() or {},
        overrides=generation.overrides,
        rollback_of=generation.number,
    )
    how = ApplyArguments(spec=wanted.spec_file, timeout_s=arguments.timeout_s, as_json=arguments.as_json)
    return bring_about(wanted, how, printer, phases)


def _chosen(state: DeploymentState, number: int) -> Generation:
    """Returns a generation by number; 0 is the one that served before the current one. Raises ApplianceError."""
    kept = {each.number: each for each in state.generations()}
    served = [each for each in kept.values() if (result := each.result()) is not None and result.outcome == "serving"]
    current = state.current()
    serving = current.generation if current is not None else 0
    before = [each for each in served if not serving or each.number < serving]
    if not number and before:
        return before[-1]
    if number in kept:
        return kept[number]
    what = f"no generation {number}" if number else "no generation that served before"
    raise ApplianceError(f"{state.name} has {what}", hint=f"appliance history {state.name}")


def _plan(generation: Generation) -> EnginePlan:
    """Returns a generation's plan. Raises ApplianceError for another version's plan: only its spec can be applied."""
    hint = f"appliance apply {generation.folder / 'spec.yaml'}"
    try:
        plan = generation.plan()
    except (OSError, msgspec.DecodeError) as error:
        raise ApplianceError(f"the plan of generation {generation.number} cannot be read: {error}", hint=hint) from None
    if plan.appliance_version != __version__:
        message = (
            f"generation {generation.number} was planned by version {plan.appliance_version}; this is {__version__}"
        )
        raise ApplianceError(message, hint=hint)
    return plan
