"""`appliance plan`: what a spec becomes on a machine, and why."""

import sys
from collections.abc import Sequence
from pathlib import Path

from appliance.base import environ
from appliance.base.diagnostics import render_json as diagnostics_json
from appliance.base.errors import ApplianceError, DiagnosedError, ExitCode
from appliance.plan.boot import compare_boot, read_boot_report
from appliance.plan.prepare import Prepared, prepare
from appliance.plan.render import render_comparison, render_json, render_text


def run(
    spec: str,
    overrides: Sequence[str] = (),
    hardware: str | None = None,
    as_json: bool = False,
    explain: bool = False,
    model_facts: str | None = None,
    verify: str | None = None,
) -> int:
    """Prints the plan. 0 when there is one, 2 when the spec is invalid, 3 when it does not fit.

    verify: a BootReport file, or a deployment's state folder; "" is that of the spec's name. 2 when a measured size is
    more than a tenth off.
    """
    try:
        facts = Path(model_facts) if model_facts else None
        prepared = prepare(spec, overrides, hardware, model_facts=facts, to_run=False)
        if verify is not None:
            return _verify(prepared, verify)
    except DiagnosedError as error:
        print(diagnostics_json(error.diagnostics) if as_json else error.report(), file=None if as_json else sys.stderr)
        return error.exit_code
    except ApplianceError as error:
        print(error.report(), file=sys.stderr)
        return error.exit_code
    print(render_json(prepared.plan) if as_json else render_text(prepared.plan, explain=explain))
    return ExitCode.OK


def _verify(prepared: Prepared, place: str) -> int:
    report = read_boot_report(Path(place) if place else environ.state_dir() / prepared.plan.name)
    rows = compare_boot(prepared.plan, report)
    print(render_comparison(rows))
    return ExitCode.OK if all(row.is_close for row in rows) else ExitCode.INVALID
