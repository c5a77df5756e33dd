"""The verbs that measure: bench latency, throughput, serve, compare, report; tune."""

from pathlib import Path
from typing import Annotated, Any

import typer

from appliance.cli.commands.options import ApiKey, AsJson, ModelName, Overrides, ServerUrl, SpecPath, spec_file
from appliance.cli.commands.verb import group, verb

Spec = Annotated[
    str,
    typer.Argument(
        metavar="[SPEC]",
        help="A deployment's YAML file, or its name once applied.",
        parser=spec_file,
        show_default=False,
    ),
]
Named = Annotated[str, typer.Option("--scenario", help="A scenario of the spec; default: all of this kind.")]
Preset = Annotated[str, typer.Option("--preset", help="single, offline64, online16 or shared-prefix.")]
Changes = Annotated[
    list[str] | None,
    typer.Option("--with", metavar="FIELD=VALUE", help="Change a field of the scenario; repeatable."),
]
Output = Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="Write the result as JSON.")]
Html = Annotated[str, typer.Option("--html", metavar="FILE", help="Write a report with plots.")]
Label = Annotated[str, typer.Option("--label", help="Whose figures these are.")]
Vocab = Annotated[int, typer.Option("--vocab-size", help="Draw prompts from the first ids; 0 is the default.")]
AssertSlo = Annotated[bool, typer.Option("--assert-slo", help="Answer 5 when a target of the spec is missed.")]

Profile = Annotated[bool, typer.Option("--profile", help="Say where the engine's time went, step by step.")]
Roofline = Annotated[
    bool, typer.Option("--roofline", help="The same, with the floor of this machine (doctor --measure) and its share.")
]


def add(app: typer.Typer) -> None:
    bench = group("bench", "Measure latency, throughput and serving; compare results.")
    app.add_typer(bench, name="bench")
    _add_in_process(bench, "latency", "Run batch after batch on an engine in this process.")
    _add_in_process(bench, "throughput", "Hand every request to an engine in this process at once.")
    _add_serve(bench)
    _add_compare(bench)
    _add_tune(app)


def _add_tune(app: typer.Typer) -> None:
    @verb(app, "tune", "appliance tune deployment.yaml --seconds 300")
    def tune(
        spec: SpecPath,
        preset: Preset = "",
        changes: Changes = None,
        overrides: Overrides = None,
        seconds: Annotated[float, typer.Option(min=1.0, help="How long the search may take.")] = 600.0,
        output: Annotated[
            str, typer.Option("--output", "-o", metavar="FILE", help="The new spec; default: SPEC.tuned.yaml.")
        ] = "",
        as_json: AsJson = False,
    ) -> int:
        """Search the scheduler's fields under the declared targets, and write the best spec with the evidence."""
        from appliance.bench.changes import parse_changes
        from appliance.cli import tune as tuning

        return tuning.run(
            tuning.TuneOptions(
                spec=spec,
                overrides=overrides or (),
                preset=preset or None,
                changes=parse_changes(changes or []),
                seconds=seconds,
                output=Path(output) if output else None,
                as_json=as_json,
            )
        )


def _add_in_process(bench: typer.Typer, kind: str, doc: str) -> None:
    def command(
        spec: Spec,
        scenario: Named = "",
        preset: Preset = "",
        changes: Changes = None,
        overrides: Overrides = None,
        output: Output = "",
        html: Html = "",
        label: Label = "",
        vocab_size: Vocab = 0,
        assert_slo: AssertSlo = False,
        profile: Profile = False,
        roofline: Roofline = False,
    ) -> int:
        return _run(kind, spec, changes, overrides, scenario=scenario, preset=preset, output=output, html=html,
                    label=label, vocab_size=vocab_size, assert_slo=assert_slo,
                    depth=_depth(profile, roofline))  # fmt: skip

    command.__doc__ = doc
    verb(bench, kind, f"appliance bench {kind} deployment.yaml --with num_prompts=64")(command)


def _add_serve(bench: typer.Typer) -> None:
    @verb(bench, "serve", "appliance bench serve --url http://127.0.0.1:8000 --preset online16 -o result.json")
    def serve(
        spec: Spec = "",
        scenario: Named = "",
        preset: Preset = "",
        changes: Changes = None,
        overrides: Overrides = None,
        url: ServerUrl = "",
        model: ModelName = "",
        api_key: ApiKey = "",
        output: Output = "",
        html: Html = "",
        label: Label = "",
        vocab_size: Vocab = 0,
        assert_slo: AssertSlo = False,
        profile: Profile = False,
        roofline: Roofline = False,
    ) -> int:
        """Load a running server: the spec's deployment, or any OpenAI URL."""
        return _run("serve", spec, changes, overrides, scenario=scenario, preset=preset, output=output, html=html,
                    label=label, vocab_size=vocab_size, assert_slo=assert_slo, url=url, model=model,
                    api_key=api_key, depth=_depth(profile, roofline))  # fmt: skip


def _add_compare(bench: typer.Typer) -> None:
    @verb(bench, "compare", "appliance bench compare ours.json theirs.json")
    def compare(ours: Path, theirs: Path) -> int:
        """Print two results side by side with the ratios; answer 6 when they did different work."""
        from appliance.cli import bench as work

        return work.run_compare(ours, theirs)

    @verb(bench, "report", "appliance bench report ours.json theirs.json -o report.html")
    def report(
        files: list[Path],
        output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file.")] = Path("bench.html"),
    ) -> int:
        """Make one HTML report of several results."""
        from appliance.cli import bench as work

        return work.run_report(files, output)


def _depth(profile: bool, roofline: bool) -> str:
    return "roofline" if roofline else "profile" if profile else "figures"


def _run(kind: str, spec: str, changes: list[str] | None, overrides: list[str] | None, **given: Any) -> int:
    from appliance.base import environ
    from appliance.bench.changes import parse_changes
    from appliance.cli import bench as work

    api_key = given.get("api_key") or environ.get("APPLIANCE_API_KEY")
    options: Any = {name: value or None for name, value in given.items()}
    options |= {
        "kind": kind,
        "spec": spec or None,
        "overrides": overrides or [],
        "changes": parse_changes(changes or []),
        "assert_slo": bool(given["assert_slo"]),
        "output": Path(given["output"]) if given["output"] else None,
        "html": Path(given["html"]) if given["html"] else None,
        "url": given.get("url") or None,
        "model": given.get("model") or None,
        "api_key": api_key or None,
    }
    return work.run(work.BenchOptions(**options))
