"""The verbs for running deployments: apply, diff, drift, history, rollback, status, logs, down."""

import typer

from appliance.cli.arguments.lifecycle import ApplyArguments, DiffArguments, LogsArguments, RollbackArguments
from appliance.cli.arguments.shared import AsJson, Deployment, WithUsage
from appliance.cli.verb import verb


def add(app: typer.Typer) -> None:
    @verb(app, "apply", "appliance apply deployment.yaml", changes_things=True)
    def apply(arguments: ApplyArguments) -> int:
        """Make what runs be what the spec says; return when it is ready."""
        if arguments.watch:
            from appliance.cli import watch

            return watch.run(arguments)
        from appliance.cli import apply

        return apply.run(arguments)

    _add_generations(app)
    _add_running(app)


def _add_running(app: typer.Typer) -> None:
    @verb(app, "status", "appliance status --json")
    def status(name: Deployment = "", as_json: AsJson = False, usage: WithUsage = False) -> int:
        """Say what runs and how it is; 0 when it is ready."""
        from appliance.cli import status

        return status.run(name, as_json, with_usage=usage)

    @verb(app, "logs", "appliance logs quickstart -f")
    def logs(arguments: LogsArguments) -> int:
        """Print what a deployment's server wrote."""
        from appliance.cli import logs

        return logs.run(arguments)

    @verb(app, "down", "appliance down quickstart", changes_things=True)
    def down(name: Deployment = "") -> int:
        """Drain and end a deployment."""
        from appliance.cli import down

        return down.run(name)


def _add_generations(app: typer.Typer) -> None:
    @verb(app, "diff", "appliance diff deployment.yaml --set scheduler.max_num_seqs=8")
    def diff(arguments: DiffArguments) -> int:
        """Say what an apply would change and what that costs; 2 when there is something."""
        from appliance.cli import diff

        return diff.run(arguments)

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
    def rollback(arguments: RollbackArguments) -> int:
        """Apply an older generation again, as a new one."""
        from appliance.cli import rollback

        return rollback.run(arguments)
