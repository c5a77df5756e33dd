"""`appliance apply --watch`: applies the spec's files when they change."""

import sys
from pathlib import Path

from appliance.base.errors import ApplianceError, ExitCode
from appliance.cli.apply import run as apply_once
from appliance.cli.arguments.lifecycle import ApplyArguments
from appliance.cli.spec_target import spec_target
from appliance.cli.verb import UsageError
from appliance.deploy.watch import Watch
from appliance.spec.compose import reachable_files


def run(arguments: ApplyArguments, watch: Watch | None = None) -> int:
    """Applies once, which must succeed; then each saved change, until Ctrl-C. The deployment then continues to run."""
    if arguments.foreground:
        raise UsageError("--watch and --foreground exclude each other", hint="a foreground server has no other process")
    spec = Path(spec_target(arguments.spec).path)
    watch = watch or Watch(lambda: reachable_files(spec))
    apply_once(arguments)
    print(f"watching {spec}; Ctrl-C ends the watching, not the server", file=sys.stderr)
    try:
        watch.run(lambda: _apply_or_tell(arguments))
    except KeyboardInterrupt:
        return ExitCode.OK


def _apply_or_tell(arguments: ApplyArguments) -> None:
    """Applies an edit. An edit that cannot be applied is reported and changes nothing."""
    try:
        apply_once(arguments)
    except ApplianceError as error:
        print(error.report(), file=sys.stderr)
        print("what ran goes on; save a file of the spec to try again", file=sys.stderr)
