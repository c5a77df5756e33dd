"""The arguments and options that several verbs share."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

SpecOrName: TypeAlias = Annotated[
    str, typer.Argument(metavar="SPEC|NAME", help="A deployment's YAML file, or the name it was applied by.")
]
Overrides: TypeAlias = Annotated[
    tuple[str, ...], typer.Option("--set", metavar="PATH=VALUE", help="Override a field of the spec; repeatable.")
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]
WithUsage: TypeAlias = Annotated[bool, typer.Option("--usage", help="Requests and tokens since it started, too.")]
Deployment: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="[NAME|SPEC]", help="A deployment, or its spec. Not needed where only one is known.", show_default=False
    ),
]
Hardware: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="NAME|FILE", help="The machine to plan for, or its facts; default: this machine."),
]
ModelFactsFile: TypeAlias = Annotated[
    Path | None, typer.Option("--model-facts", metavar="FILE", help="Facts of a checkpoint that is not here, as JSON.")
]
Timeout: TypeAlias = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", help="How long it may take to be ready.")
]
ServerUrl: TypeAlias = Annotated[
    str, typer.Option(metavar="URL", help="Any OpenAI-compatible server, such as http://127.0.0.1:8000/v1.")
]
ModelName: TypeAlias = Annotated[
    str, typer.Option("--model", metavar="NAME", help="Default: the first the server lists.", show_default=False)
]
ApiKey: TypeAlias = Annotated[
    str, typer.Option(metavar="KEY", help="Default: the variable APPLIANCE_API_KEY.", show_default=False)
]
Preset: TypeAlias = Annotated[
    str | None, typer.Option(metavar="NAME", help="single, offline64, online16 or shared-prefix.")
]
Changes: TypeAlias = Annotated[
    tuple[str, ...],
    typer.Option("--with", metavar="FIELD=VALUE", help="Change a field of the scenario; repeatable."),
]
