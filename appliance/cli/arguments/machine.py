"""The arguments of the verbs for a plan, a machine and a checkpoint."""

from pathlib import Path
from typing import Annotated

import typer

from appliance.cli.arguments.record import VerbArguments
from appliance.cli.arguments.shared import AsJson, Hardware, ModelFactsFile, Overrides, SpecOrName


class DoctorArguments(VerbArguments):
    deployment: Annotated[
        str, typer.Argument(metavar="[SPEC|NAME]", help="For --bundle; default: the only one.", show_default=False)
    ] = ""
    bundle: Annotated[
        str, typer.Option(metavar="FILE", help="Write a support bundle, without secrets and prompts.")
    ] = ""
    measure: Annotated[bool, typer.Option("--measure", help="Measure bandwidth and peaks (about 10 s).")] = False
    as_json: AsJson = False


class PlanArguments(VerbArguments):
    spec: Annotated[
        str,
        typer.Argument(
            metavar="[SPEC|NAME]",
            help="A deployment's YAML file, or the name it was applied by.",
            show_default=False,
        ),
    ] = ""
    overrides: Overrides = ()
    hardware: Hardware = None
    as_json: AsJson = False
    explain: Annotated[bool, typer.Option("--explain", help="Say why each value is what it is.")] = False
    advise: Annotated[bool, typer.Option("--advise", help="Say what would be faster or hold more here.")] = False
    model_facts: ModelFactsFile = None
    verify: Annotated[bool, typer.Option("--verify", help="Compare with what the deployment measured.")] = False
    boot_report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="For --verify: another boot report, or a folder of state.")
    ] = None
    from_bundle: Annotated[
        str, typer.Option(metavar="FILE", help="In place of a spec: plan what a support bundle holds, and compare.")
    ] = ""


class ProfileListArguments(VerbArguments):
    explain: Annotated[bool, typer.Option("--explain", help="Say which condition held or failed.")] = False
    hardware: Hardware = None
    as_json: AsJson = False


class PullArguments(VerbArguments):
    target: Annotated[
        str, typer.Argument(metavar="SPEC|NAME|SOURCE", help="A deployment, or hf://..., a path, a hub id.")
    ]
    mirrors: Annotated[tuple[str, ...], typer.Option("--mirror", metavar="SOURCE", help="Another place.")] = ()
    sha256: Annotated[str | None, typer.Option(metavar="HEX", help="The digest the file must have.")] = None
    revision: Annotated[str | None, typer.Option(help="A branch, tag or commit of the hub.")] = None
    offline: Annotated[bool, typer.Option("--offline", help="Use only what is on this machine.")] = False
    overrides: Overrides = ()
    as_json: AsJson = False


class ShardArguments(VerbArguments):
    spec: SpecOrName
    folder: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="A new folder, or an empty one.")]
    overrides: Overrides = ()
    hardware: Hardware = None
    as_json: AsJson = False
