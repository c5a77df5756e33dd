"""The verbs about a spec: validate, explain, schema, init, audit, lock."""

from enum import StrEnum
from typing import Annotated

import typer

from appliance.cli.commands.options import AsJson, Overrides, SpecPath
from appliance.cli.commands.verb import verb


class Form(StrEnum):
    """How diagnostics are printed."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"


def add(app: typer.Typer) -> None:
    @verb(app, "validate", "appliance validate deployment.yaml --format github")
    def validate(
        paths: Annotated[list[str], typer.Argument(metavar="SPEC...", help="Files, or folders of YAML files.")],
        form: Annotated[Form, typer.Option("--format", help="How findings are printed.")] = Form.TEXT,
        as_json: AsJson = False,
        overrides: Overrides = None,
    ) -> int:
        """Check a spec: every mistake at once, with its line and column."""
        from appliance.cli import validate

        return validate.run(paths, Form.JSON if as_json else form.value, overrides or [])

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
    def init(
        path: Annotated[str, typer.Argument(metavar="[FILE]", help="The file to write.")] = "deployment.yaml",
        source: Annotated[str, typer.Option(help="Where the model is; default: a small one.", show_default=False)] = "",
        name: Annotated[str, typer.Option(help="The deployment's name; default: from the source.")] = "",
        force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
        with_schema: Annotated[bool, typer.Option("--schema", help="Write the JSON Schema beside it too.")] = False,
    ) -> int:
        """Write a commented spec to start from."""
        from appliance.cli import init
        from appliance.spec.starter import SOURCE

        return init.run(path, source or SOURCE, name, force, with_schema)

    _add_gates(app)


def _add_gates(app: typer.Typer) -> None:
    """What a pipeline asks before it lets a spec through."""

    @verb(app, "audit", "appliance audit deployment.yaml --policy policy.yaml")
    def audit(
        spec: SpecPath,
        overrides: Overrides = None,
        policy: Annotated[str, typer.Option(metavar="FILE", help="What fails; default: high findings.")] = "",
        hardware: Annotated[
            str, typer.Option(metavar="FILE|NAME", help="The machine to plan for; default: this.")
        ] = "",
        model_facts: Annotated[str, typer.Option(metavar="FILE", help="Facts of a checkpoint that is not here.")] = "",
        as_json: AsJson = False,
    ) -> int:
        """Say what a deployment exposes, to whom, and what to mend; 2 when the policy forbids it."""
        from appliance.cli import audit

        return audit.run(
            spec,
            overrides or (),
            policy or None,
            hardware=hardware or None,
            model_facts=model_facts or None,
            as_json=as_json,
        )

    @verb(app, "lock", "appliance lock deployment.yaml --check", changes_things=True)
    def lock(
        spec: SpecPath,
        overrides: Overrides = None,
        output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="Default: beside the spec.")] = "",
        check: Annotated[bool, typer.Option("--check", help="Write nothing; answer 2 when something differs.")] = False,
        as_json: AsJson = False,
    ) -> int:
        """Write the digests of everything that changes answers; `apply --locked` refuses when one differs."""
        from appliance.cli import lock

        return lock.run(spec, overrides or (), output or None, check, as_json)
