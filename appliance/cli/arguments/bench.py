"""The arguments of the verbs that measure."""

from pathlib import Path
from typing import Annotated

import typer

from appliance.bench.scenario import Kind
from appliance.cli.arguments.record import VerbArguments
from appliance.cli.arguments.shared import (
    ApiKey,
    AsJson,
    Changes,
    ModelName,
    Overrides,
    Preset,
    ServerUrl,
    SpecOrName,
)


class BenchArguments(VerbArguments):
    """The arguments of every kind of benchmark."""

    spec: Annotated[
        str,
        typer.Argument(
            metavar="[SPEC|NAME]",
            help="A deployment's YAML file, or the name it was applied by.",
            show_default=False,
        ),
    ] = ""
    scenario: Annotated[str | None, typer.Option(help="A scenario of the spec; default: all of this kind.")] = None
    preset: Preset = None
    changes: Changes = ()
    overrides: Overrides = ()
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the result as JSON.")] = (
        None
    )
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a report with plots.")] = None
    label: Annotated[str | None, typer.Option(help="Whose figures these are.")] = None
    vocab_size: Annotated[int, typer.Option(help="Draw prompts from the first ids; 0 is the default.")] = 0
    assert_slo: Annotated[bool, typer.Option("--assert-slo", help="Answer 5 when a target is missed.")] = False
    profile: Annotated[bool, typer.Option("--profile", help="Say where the engine's time went, step by step.")] = False
    roofline: Annotated[
        bool,
        typer.Option("--roofline", help="The same, with the floor of this machine (doctor --measure) and its share."),
    ] = False


class BenchServeArguments(BenchArguments):
    url: ServerUrl = ""
    model: ModelName = ""
    api_key: ApiKey = ""


class BenchEmbedArguments(BenchServeArguments):
    """The arguments of the benchmark of a model that pools."""

    kind: Annotated[
        Kind,
        typer.Option(help="serve: a server over HTTP; latency, throughput: an engine in this process."),
    ] = "serve"


class TuneArguments(VerbArguments):
    spec: SpecOrName
    preset: Preset = None
    changes: Changes = ()
    overrides: Overrides = ()
    seconds: Annotated[float, typer.Option(min=1.0, help="How long the search may take.")] = 600.0
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The new spec; default: SPEC.tuned.yaml.")
    ] = None
    as_json: AsJson = False
