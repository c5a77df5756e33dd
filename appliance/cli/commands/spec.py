"""The verbs about a spec: validate, explain, schema, init, audit, lock."""

from typing import Annotated

import typer

from appliance.cli.arguments.shared import AsJson
from appliance.cli.arguments.spec import AuditArguments, InitArguments, LockArguments, ValidateArguments
from appliance.cli.verb import verb


def add(app: typer.Typer) -> None:
    @verb(app, "validate", "appliance validate deployment.yaml --format github")
    def validate(arguments: ValidateArguments) -> int:
        """Check a spec: every mistake at once, with its line and column."""
        from appliance.cli import validate

        return validate.run(arguments)

    @verb(app, "explain", "appliance explain cache.block_size")
    def explain(
        path: Annotated[str, typer.Argument(metavar="[PATH]", help="A field, a vLLM flag, or a rule id.")] = "",
        as_json: AsJson = False,
    ) -> int:
        """Say what a field of the spec means, or list the sections."""
        from appliance.cli import explain

        return explain.run(path, as_json)

    @verb(app, "schema", "appliance schema > deployment.schema.json")
    def schema(
        check: Annotated[bool, typer.Option("--check", help="Answer 2 when the generated files are stale.")] = False,
        write: Annotated[bool, typer.Option("--write", help="Write the generated files of the repository.")] = False,
    ) -> int:
        """Print the JSON Schema of a spec, for editors and checkers."""
        from appliance.cli import schema

        return schema.run(check, write)

    @verb(app, "init", "appliance init deployment.yaml --source hf://Qwen/Qwen2.5-0.5B-Instruct")
    def init(arguments: InitArguments) -> int:
        """Write a commented spec to start from."""
        from appliance.cli import init

        return init.run(arguments)

    _add_gates(app)


def _add_gates(app: typer.Typer) -> None:
    """Adds the verbs by which a pipeline checks a spec."""

    @verb(app, "audit", "appliance audit deployment.yaml --policy policy.yaml")
    def audit(arguments: AuditArguments) -> int:
        """Say what a deployment exposes, to whom, and what to mend; 2 when the policy forbids it."""
        from appliance.cli import audit

        return audit.run(arguments)

    @verb(app, "lock", "appliance lock deployment.yaml --check", changes_things=True)
    def lock(arguments: LockArguments) -> int:
        """Write the digests of everything that changes answers; `apply --locked` refuses when one differs."""
        from appliance.cli import lock

        return lock.run(arguments)
