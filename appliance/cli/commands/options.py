"""Options that several verbs share."""

from typing import Annotated, TypeAlias

import typer

SpecPath: TypeAlias = Annotated[str, typer.Argument(metavar="SPEC", help="A deployment's YAML file.")]
Overrides: TypeAlias = Annotated[
    list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Override a field of the spec; repeatable.")
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Deployment: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="[NAME]", help="A deployment, or its spec. Not needed where only one is known.", show_default=False
    ),
]
ServerUrl: TypeAlias = Annotated[
    str, typer.Option("--url", metavar="URL", help="Any OpenAI-compatible server, such as http://127.0.0.1:8000/v1.")
]
ModelName: TypeAlias = Annotated[
    str, typer.Option("--model", metavar="NAME", help="Default: the first the server lists.")
]
ApiKey: TypeAlias = Annotated[
    str, typer.Option("--api-key", metavar="KEY", help="Default: the variable APPLIANCE_API_KEY.", show_default=False)
]
