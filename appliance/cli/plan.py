"""`appliance plan`: prints the plan of a spec on a machine, with reasons."""

import sys
from pathlib import Path

from appliance.base import environ
from appliance.base.diagnostics import render_json as diagnostics_json
from appliance.base.errors import ApplianceError, DiagnosedError, ExitCode
from appliance.cli.arguments.machine import PlanArguments
from appliance.cli.spec_target import spec_target
from appliance.hardware.facts import MeasuredFacts
from appliance.plan.advice import advise as advise_changes
from appliance.plan.advice import figures, full_batch
from appliance.plan.boot import compare_boot, read_boot_report
from appliance.plan.compile import run_passes
from appliance.plan.estimate import Workload, estimate
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import Ledger
from appliance.plan.prepare import Prepared, prepare
from appliance.plan.programs import program_of
from appliance.plan.render import render_comparison, render_json, render_text
from appliance.plan.render_estimate import advice_json, advice_lines, estimate_lines, spread_lines
from appliance.plan.spread import spreads
from appliance.plan.types import EnginePlan


def run(arguments: PlanArguments) -> int:
    """Prints the plan. Returns 0 if there is one, 2 if the spec is invalid, 3 if it does not fit.

    Compared with a boot report, returns 2 if a measured size is more than a tenth off. Advice as JSON replaces the
    plan.
    """
    as_json = arguments.as_json
    try:
        path, overrides = spec_target(arguments.spec, arguments.overrides)
        prepared = prepare(path, overrides, arguments.hardware, model_facts=arguments.model_facts, to_run=False)
        if arguments.verify or arguments.boot_report is not None:
            return _verify(prepared, arguments.boot_report)
        print(_shown(prepared, as_json=as_json, explain=arguments.explain, advise=arguments.advise))
    except DiagnosedError as error:
        print(diagnostics_json(error.diagnostics) if as_json else error.report(), file=None if as_json else sys.stderr)
        return error.exit_code
    except ApplianceError as error:
        print(error.report(), file=sys.stderr)
        return error.exit_code
    return ExitCode.OK


def _shown(prepared: Prepared, *, as_json: bool, explain: bool, advise: bool) -> str:
    """Returns the text to print. Raises ApplianceError for advice on a machine that was not measured."""
    plan, inputs, speed = prepared.plan, prepared.inputs, prepared.inputs.speed
    if as_json and not advise:
        return render_json(plan)
    now = figures(plan, inputs, speed) if speed is not None else None
    if speed is None or now is None:
        if advise:
            raise _no_estimate(prepared)
        return render_text(plan, explain=explain)
    found = advise_changes(inputs, plan, speed, _replan) if advise else []
    several = spreads(inputs, plan, speed, _replan) if advise and isinstance(speed, MeasuredFacts) else []
    if as_json:
        return advice_json(now, found, several)
    program = program_of(plan, inputs.model, inputs.programs)
    alone, full = (estimate(plan, program, speed, work) for work in (Workload(), full_batch(plan)))
    assert alone is not None, "there are figures"
    assert full is not None, "there are figures"
    lines = [render_text(plan, explain=explain), "", *estimate_lines(plan, alone, full, speed)]
    return "\n".join(lines + (["", *advice_lines(found), *spread_lines(several)] if advise else []))


def _no_estimate(prepared: Prepared) -> ApplianceError:
    if prepared.inputs.speed is None:
        message = f"{prepared.plan.hardware} was not measured, and advice needs its bandwidth and peaks"
        return ApplianceError(message, hint="on that machine, run: appliance doctor --measure")
    return ApplianceError("there are estimates only for models that this version runs, by native kernels or on GPUs")


def _replan(inputs: PlanInputs) -> tuple[EnginePlan, Ledger]:
    outcome = run_passes(inputs)
    return outcome.plan, outcome.ledger


def _verify(prepared: Prepared, place: Path | None) -> int:
    """Compares with a boot report. place: the report, or a state folder; None: that of the deployment of this name."""
    report = read_boot_report(place or environ.state_dir() / prepared.plan.name)
    rows = compare_boot(prepared.plan, report)
    print(render_comparison(rows))
    return ExitCode.OK if all(row.is_close for row in rows) else ExitCode.INVALID
