"""The verbs about what runs: apply, diff, drift, history, rollback, status, logs, down."""

from typing import Annotated

import typer

from appliance.cli.commands.options import AsJson, Deployment, Overrides, SpecPath
from appliance.cli.commands.verb import verb


def add(app: typer.Typer) -> None:
    @verb(app, "apply", "appliance apply deployment.yaml", changes_things=True)
    def apply(
        spec: SpecPath,
        overrides: Overrides = None,
        foreground: Annotated[
            bool, typer.Option("--foreground", help="Become the server: for containers and systemd.")
        ] = False,
        timeout: Annotated[float, typer.Option(metavar="SECONDS", help="How long it may take to be ready.")] = 600.0,
        locked: Annotated[bool, typer.Option("--locked", help="Refuse what differs from the lock file.")] = False,
        watch: Annotated[bool, typer.Option("--watch", help="Go on: apply the spec whenever it is saved.")] = False,
        as_json: AsJson = False,
    ) -> int:
        """Make what runs be what the spec says; return when it is ready."""
        from appliance.cli import apply

        options = apply.ApplyOptions(
            spec=spec,
            overrides=overrides or (),
            foreground=foreground,
            timeout_s=timeout,
            as_json=as_json,
            locked=locked,
        )
        if watch:
            from appliance.cli import watch as watching

            return watching.run(options)
        return apply.run(options)

    _add_generations(app)
    _add_running(app)


def _add_running(app: typer.Typer) -> None:
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

    @verb(app, "down", "appliance down quickstart", changes_things=True)
    def down(name: Deployment = "") -> int:
        """Drain and end a deployment."""
        from appliance.cli import down

        return down.run(name)


def _add_generations(app: typer.Typer) -> None:
    @verb(app, "diff", "appliance diff deployment.yaml --set scheduler.max_num_seqs=8")
    def diff(spec: SpecPath, overrides: Overrides = None, as_json: AsJson = False) -> int:
        """Say what an apply would change and what that costs; 2 when there is something."""
        from appliance.cli import diff

        return diff.run(spec, overrides or (), as_json)

    @verb(app, "drift", "appliance drift quickstart --json")
    def drift(name: Deployment = "", as_json: AsJson = False) -> int:
        """Say what has changed under a deployment since it was applied; 2 when something has."""
        from appliance.cli import drift

        return drift.run(name, as_json)

    @verb(app, "history", "appliance history quickstart --json")
    def history(name: Deployment = "", as_json: AsJson = False) -> int:
        """List the generations: when each served, why, and why those that failed did."""
        from appliance.cli import history

        return history.run(name, as_json)

    @verb(app, "rollback", "appliance rollback quickstart 3", changes_things=True)
    def rollback(
        name: Annotated[str, typer.Argument(metavar="NAME", help="A deployment, or its spec.")],
        generation: Annotated[
            int, typer.Argument(metavar="[N]", help="Default: the one that served before.", show_default=False)
        ] = 0,
        timeout: Annotated[float, typer.Option(metavar="SECONDS", help="How long it may take to be ready.")] = 600.0,
        as_json: AsJson = False,
    ) -> int:
        """Apply an older generation again, as a new one."""
        from appliance.cli import rollback

        return rollback.run(name, generation, timeout, as_json)
