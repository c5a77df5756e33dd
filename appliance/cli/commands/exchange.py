"""The verbs between systems: render, import and completion."""

from enum import StrEnum
from typing import Annotated

import typer

from appliance.cli.commands.options import AsJson, Overrides, SpecPath
from appliance.cli.commands.verb import UsageError, verb


class Shell(StrEnum):
    """Whose completion is printed."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def add(app: typer.Typer) -> None:
    _add_render(app)
    _add_import(app)
    _add_completion(app)


def _add_completion(app: typer.Typer) -> None:
    @verb(app, "completion", "appliance completion bash > ~/.local/share/bash-completion/completions/appliance")
    def completion(shell: Annotated[Shell, typer.Argument(help="Your shell.")]) -> int:
        """Print a shell's completion script."""
        from appliance.cli import completion

        return completion.run(shell.value)


def _add_render(app: typer.Typer) -> None:
    @verb(
        app,
        "render",
        "appliance render deployment.yaml --to kubernetes --set endpoints.http.host=0.0.0.0 | kubectl apply -f -",
    )
    def render(
        spec: SpecPath,
        target: Annotated[
            str, typer.Option("--to", help="systemd, compose, kubernetes, helm, kserve, grafana or alerts.")
        ] = "",
        resolved: Annotated[bool, typer.Option("--resolved", help="Print the spec with every value instead.")] = False,
        explain: Annotated[bool, typer.Option("--explain", help="With --resolved: say where values are from.")] = False,
        overrides: Overrides = None,
        hardware: Annotated[
            str, typer.Option(metavar="FILE|NAME", help="The machine to plan for; default: this.")
        ] = "",
        model_facts: Annotated[str, typer.Option(metavar="FILE", help="Facts of a checkpoint that is not here.")] = "",
        image: Annotated[str, typer.Option(help="The container's image.")] = "appliance:cpu",
        replicas: Annotated[int, typer.Option(min=1, help="How many, or at least how many.")] = 1,
        max_replicas: Annotated[int, typer.Option(min=0, help="Autoscale up to so many; 0 does not.")] = 0,
        prometheus: Annotated[str, typer.Option(metavar="URL", help="Scale by KEDA, which asks here.")] = "",
        timeout: Annotated[float, typer.Option(metavar="SECONDS", help="How long a start may take.")] = 600.0,
        folder: Annotated[str, typer.Option("--output", "-o", metavar="DIR", help="Write files there.")] = "",
        as_json: AsJson = False,
    ) -> int:
        """Make a systemd unit, a compose file, Kubernetes objects or a chart, or print the spec as it is resolved."""
        if resolved == bool(target):
            raise UsageError("give one of --to and --resolved")
        if resolved:
            from appliance.cli import resolved_spec

            return resolved_spec.run(spec, overrides or (), explain=explain, as_json=as_json)
        from appliance.cli import render
        from appliance.deploy.render.workload import RenderOptions

        options = RenderOptions(
            image=image,
            replicas=replicas,
            max_replicas=max_replicas or None,
            prometheus_url=prometheus or None,
            start_timeout_s=timeout,
        )
        return render.run(
            spec,
            target,
            overrides or (),
            options,
            hardware=hardware or None,
            model_facts=model_facts or None,
            folder=folder or None,
            as_json=as_json,
        )


def _add_import(app: typer.Typer) -> None:
    @verb(app, "import", "appliance import vllm 'vllm serve Qwen/Qwen3-8B -tp 2 --max-model-len 32k' > deployment.yaml")
    def import_(
        kind: Annotated[
            str,
            typer.Argument(metavar="KIND", help="vllm, llama-server, vllm-config, compose, llama-swap or modelfile."),
        ],
        words: Annotated[
            list[str], typer.Argument(metavar="SOURCE...", help="A command line, a file, or - for stdin.")
        ],
        folder: Annotated[str, typer.Option("--output", "-o", metavar="DIR", help="Write specs there.")] = "",
        strict: Annotated[bool, typer.Option("--strict", help="Answer 2 when something has no equivalent.")] = False,
        as_json: AsJson = False,
    ) -> int:
        """Make a spec of another system's command line or file; what has no equivalent is listed."""
        from appliance.cli import import_ as work

        return work.run(kind, words, folder or None, strict, as_json)
