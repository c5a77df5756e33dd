"""The arguments of the verbs between systems."""

from pathlib import Path
from typing import Annotated

import typer

from appliance.cli.arguments.record import VerbArguments
from appliance.cli.arguments.shared import AsJson, Hardware, ModelFactsFile, Overrides, SpecOrName


class RenderArguments(VerbArguments):
    spec: SpecOrName
    target: Annotated[
        str, typer.Option("--to", help="systemd, compose, kubernetes, helm, kserve, grafana or alerts.")
    ] = ""
    resolved: Annotated[bool, typer.Option("--resolved", help="Print the spec with every value instead.")] = False
    explain: Annotated[bool, typer.Option("--explain", help="With --resolved: say where values are from.")] = False
    overrides: Overrides = ()
    hardware: Hardware = None
    model_facts: ModelFactsFile = None
    image: Annotated[str, typer.Option(help="The container's image.")] = "appliance:cpu"
    replicas: Annotated[int, typer.Option(min=1, help="How many, or at least how many.")] = 1
    max_replicas: Annotated[int, typer.Option(min=0, help="Autoscale up to so many; 0 does not.")] = 0
    prometheus: Annotated[str | None, typer.Option(metavar="URL", help="Scale by KEDA, which asks here.")] = None
    timeout_s: Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="How long a start may take.")] = 600.0
    folder: Annotated[Path | None, typer.Option("--output", "-o", metavar="DIR", help="Write files there.")] = None
    as_json: AsJson = False


class SerializeArguments(VerbArguments):
    spec: SpecOrName
    folder: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="A new folder, or an empty one.")]
    keyfile: Annotated[
        Path | None,
        typer.Option("--encryption-keyfile", metavar="FILE", help="Encrypt with the 32 bytes of this file."),
    ] = None
    password_file: Annotated[
        Path | None,
        typer.Option("--encryption-password-file", metavar="FILE", help="Encrypt with the password in this file."),
    ] = None
    overrides: Overrides = ()
    as_json: AsJson = False


class ImportArguments(VerbArguments):
    kind: Annotated[
        str,
        typer.Argument(metavar="KIND", help="vllm, llama-server, vllm-config, compose, llama-swap or modelfile."),
    ]
    words: Annotated[
        tuple[str, ...], typer.Argument(metavar="SOURCE...", help="A command line, a file, or - for stdin.")
    ]
    folder: Annotated[Path | None, typer.Option("--output", "-o", metavar="DIR", help="Write specs there.")] = None
    strict: Annotated[bool, typer.Option("--strict", help="Answer 2 when something has no equivalent.")] = False
    as_json: AsJson = False
