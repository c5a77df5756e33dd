"""The verbs that measure: bench latency, throughput, scaling, serve, embed, compare, report; tune."""

from pathlib import Path
from typing import Annotated

import typer

from appliance.cli.arguments.bench import BenchArguments, BenchEmbedArguments, BenchServeArguments, TuneArguments
from appliance.cli.verb import group, verb


def add(app: typer.Typer) -> None:
    bench = group("bench", "Measure latency, throughput and serving; compare results.")
    app.add_typer(bench, name="bench")
    _add_kinds(bench)
    _add_results(bench)

    @verb(app, "tune", "appliance tune deployment.yaml --seconds 300", changes_things=True)
    def tune(arguments: TuneArguments) -> int:
        """Search the scheduler's fields under the declared targets, and write the best spec with the evidence."""
        from appliance.cli import tune

        return tune.run(arguments)


def _add_kinds(bench: typer.Typer) -> None:
    @verb(bench, "latency", "appliance bench latency deployment.yaml --with num_prompts=64")
    def latency(arguments: BenchArguments) -> int:
        """Run batch after batch on an engine in this process."""
        from appliance.cli import bench

        return bench.run_in_process("latency", arguments)

    @verb(bench, "throughput", "appliance bench throughput deployment.yaml --with num_prompts=64")
    def throughput(arguments: BenchArguments) -> int:
        """Hand every request to an engine in this process at once."""
        from appliance.cli import bench

        return bench.run_in_process("throughput", arguments)

    @verb(bench, "scaling", "appliance bench scaling deployment.yaml --with num_prompts=32")
    def scaling(arguments: BenchArguments) -> int:
        """Measure throughput with 1, 2 and 4 ranks, and print the share of the ideal."""
        from appliance.cli import bench

        return bench.run_scaling(arguments)

    @verb(bench, "serve", "appliance bench serve --url http://127.0.0.1:8000 --preset online16 -o result.json")
    def serve(arguments: BenchServeArguments) -> int:
        """Load a running server: the spec's deployment, or any OpenAI URL."""
        from appliance.cli import bench

        return bench.run_serve(arguments)

    @verb(bench, "embed", "appliance bench embed deployment.yaml --preset embed32 -o result.json")
    def embed(arguments: BenchEmbedArguments) -> int:
        """Measure a model that embeds, classifies or ranks: a server, or an engine in this process."""
        from appliance.cli import bench

        return bench.run_embed(arguments)


def _add_results(bench: typer.Typer) -> None:
    @verb(bench, "compare", "appliance bench compare ours.json theirs.json")
    def compare(ours: Path, theirs: Path) -> int:
        """Print two results side by side with the ratios; answer 6 when they did different work."""
        from appliance.cli import bench

        return bench.run_compare(ours, theirs)

    @verb(bench, "report", "appliance bench report ours.json theirs.json -o report.html")
    def report(
        files: list[Path],
        output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file.")] = Path("bench.html"),
    ) -> int:
        """Make one HTML report of several results."""
        from appliance.cli import bench

        return bench.run_report(files, output)
