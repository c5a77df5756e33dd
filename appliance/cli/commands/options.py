"""Options that several verbs share."""

from typing import Annotated, TypeAlias

import typer


def spec_file(given: str) -> str:
    """A path as it is; the name of a deployment as the file that it was applied from."""
    if not given or given == "-" or "." in given or "/" in given:
        return given
    from appliance.deploy import naming

    return naming.spec_file(given)


SpecPath: TypeAlias = Annotated[
    str, typer.Argument(metavar="SPEC", help="A deployment's YAML file, or its name once applied.", parser=spec_file)
]
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
