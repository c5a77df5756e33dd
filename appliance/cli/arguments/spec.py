"""The arguments of the verbs for a spec."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from appliance.cli.arguments.record import VerbArguments
from appliance.cli.arguments.shared import AsJson, Hardware, ModelFactsFile, Overrides, SpecOrName


class DiagnosticsForm(StrEnum):
    """The form in which diagnostics are printed."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"


class ValidateArguments(VerbArguments):
    paths: Annotated[
        tuple[str, ...],
        typer.Argument(metavar="SPEC...", help="Files, folders of them, or names of deployments."),
    ]
    form: Annotated[DiagnosticsForm, typer.Option("--format", help="How findings are printed.")] = DiagnosticsForm.TEXT
    as_json: AsJson = False
    overrides: Overrides = ()


class InitArguments(VerbArguments):
    path: Annotated[str, typer.Argument(metavar="[FILE]", help="The file to write.")] = "deployment.yaml"
    source: Annotated[str, typer.Option(help="Where the model is; default: a small one.", show_default=False)] = ""
    name: Annotated[str, typer.Option(help="The deployment's name; default: from the source.")] = ""
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False
    with_schema: Annotated[bool, typer.Option("--schema", help="Write the JSON Schema beside it too.")] = False


class AuditArguments(VerbArguments):
    spec: SpecOrName
    overrides: Overrides = ()
    policy: Annotated[Path | None, typer.Option(metavar="FILE", help="What fails; default: high findings.")] = None
    hardware: Hardware = None
    model_facts: ModelFactsFile = None
    as_json: AsJson = False


class LockArguments(VerbArguments):
    spec: SpecOrName
    overrides: Overrides = ()
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Default: beside the spec.")] = (
        None
    )
    check: Annotated[bool, typer.Option("--check", help="Write nothing; answer 2 when something differs.")] = False
    as_json: AsJson = False
