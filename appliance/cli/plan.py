"""`appliance plan`: what a spec becomes on a machine, and why."""

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from appliance.base import environ
from appliance.base.diagnostics import render_json as diagnostics_json
from appliance.base.errors import ApplianceError, DiagnosedError, ExitCode
from appliance.plan.boot import BootReport, compare_boot
from appliance.plan.prepare import Prepared, prepare
from appliance.plan.render import render_comparison, render_json, render_text

BOOT_REPORT = "boot.json"


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
        prepared = prepare(spec, overrides, hardware, model_facts=Path(model_facts) if model_facts else None)
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
    rows = compare_boot(prepared.plan, read_report(place, prepared.plan.name))
    print(render_comparison(rows))
    return ExitCode.OK if all(row.is_close for row in rows) else ExitCode.INVALID


def read_report(place: str, name: str) -> BootReport:
    """Raises ApplianceError when there is none, or another file."""
    path = Path(place) if place else environ.state_dir() / name
    if path.is_dir():
        found = sorted(path.rglob(BOOT_REPORT), key=lambda file: file.stat().st_mtime)
        path = found[-1] if found else path / BOOT_REPORT
    try:
        return msgspec.json.decode(path.read_bytes(), type=BootReport)
    except OSError:
        raise ApplianceError(f"there is no boot report at {path}", hint="is the deployment running?") from None
    except msgspec.DecodeError as error:
        raise ApplianceError(f"{path.name} is no boot report: {error}") from error
