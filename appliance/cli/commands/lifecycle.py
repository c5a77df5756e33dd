"""The verbs about what runs: apply, status, logs, down."""

from typing import Annotated

import typer

from appliance.cli.commands.options import AsJson, Deployment, Overrides, SpecPath
from appliance.cli.commands.verb import verb


def add(app: typer.Typer) -> None:
    @verb(app, "apply", "appliance apply deployment.yaml")
    def apply(
        spec: SpecPath,
        overrides: Overrides = None,
        foreground: Annotated[
            bool, typer.Option("--foreground", help="Become the server: for containers and systemd.")
        ] = False,
        timeout: Annotated[float, typer.Option(metavar="SECONDS", help="How long it may take to be ready.")] = 600.0,
        as_json: AsJson = False,
    ) -> int:
        """Make what runs be what the spec says; return when it is ready."""
        from appliance.cli import apply

        options = apply.ApplyOptions(
            spec=spec, overrides=overrides or (), foreground=foreground, timeout_s=timeout, as_json=as_json
        )
        return apply.run(options)

    @verb(app, "status", "appliance status --json")
    def status(name: Deployment = "", as_json: AsJson = False) -> int:
        """Say what runs and how it is; 0 when it is ready."""
        from appliance.cli import status

        return status.run(name, as_json)

    @verb(app, "logs", "appliance logs quickstart -f")
    def logs(
        name: Deployment = "",
        follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as it grows.")] = False,
        lines: Annotated[int, typer.Option("--lines", "-n", help="How many of the last lines.")] = 100,
        generation: Annotated[int, typer.Option(help="An older generation's; default: the newest.")] = 0,
    ) -> int:
        """Print what a deployment's server wrote."""
        from appliance.cli import logs

        return logs.run(name, follow, lines, generation)

    @verb(app, "down", "appliance down quickstart")
    def down(name: Deployment = "") -> int:
        """Drain and end a deployment."""
        from appliance.cli import down

        return down.run(name)
