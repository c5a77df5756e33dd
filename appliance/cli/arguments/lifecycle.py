"""The arguments of the verbs for running deployments."""

from typing import Annotated

import typer

from appliance.cli.arguments.record import VerbArguments
from appliance.cli.arguments.shared import AsJson, Deployment, Overrides, SpecOrName, Timeout


class ApplyArguments(VerbArguments):
    spec: SpecOrName
    overrides: Overrides = ()
    foreground: Annotated[bool, typer.Option("--foreground", help="Become the server: for containers and systemd.")] = (
        False
    )
    timeout_s: Timeout = 600.0
    locked: Annotated[bool, typer.Option("--locked", help="Refuse what differs from the lock file.")] = False
    watch: Annotated[bool, typer.Option("--watch", help="Go on: apply the spec whenever it is saved.")] = False
    as_json: AsJson = False


class DiffArguments(VerbArguments):
    spec: SpecOrName
    overrides: Overrides = ()
    as_json: AsJson = False


class RollbackArguments(VerbArguments):
    name: Annotated[str, typer.Argument(metavar="NAME|SPEC", help="A deployment, or its spec.")]
    generation: Annotated[
        int, typer.Argument(metavar="[N]", help="Default: the one that served before.", show_default=False)
    ] = 0
    timeout_s: Timeout = 600.0
    as_json: AsJson = False


class LogsArguments(VerbArguments):
    name: Deployment = ""
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as it grows.")] = False
    num_lines: Annotated[int, typer.Option("--lines", "-n", help="How many of the last lines.")] = 100
    generation: Annotated[int, typer.Option(help="An older generation's; 0 is the newest.")] = 0
