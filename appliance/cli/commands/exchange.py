"""The verbs between systems: render, import, serialize and completion."""

from enum import StrEnum
from typing import Annotated

import typer

from appliance.cli.arguments.exchange import ImportArguments, RenderArguments, SerializeArguments
from appliance.cli.verb import UsageError, verb


class Shell(StrEnum):
    """The shell whose completion script is printed."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def add(app: typer.Typer) -> None:
    @verb(
        app,
        "render",
        "appliance render deployment.yaml --to kubernetes --set endpoints.http.host=0.0.0.0 | kubectl apply -f -",
    )
    def render(arguments: RenderArguments) -> int:
        """Make a systemd unit, a compose file, Kubernetes objects or a chart, or print the spec as it is resolved."""
        if arguments.resolved == bool(arguments.target):
            raise UsageError("give one of --to and --resolved")
        if arguments.resolved:
            from appliance.cli import resolved_spec

            return resolved_spec.run(arguments)
        from appliance.cli import render

        return render.run(arguments)

    @verb(app, "import", "appliance import vllm 'vllm serve Qwen/Qwen3-8B -tp 2 --max-model-len 32k' > deployment.yaml")
    def import_(arguments: ImportArguments) -> int:
        """Make a spec of another system's command line or file; what has no equivalent is listed."""
        from appliance.cli import import_

        return import_.run(arguments)

    @verb(app, "serialize", "appliance serialize deployment.yaml --output sealed --encryption-keyfile model.key")
    def serialize(arguments: SerializeArguments) -> int:
        """Write the checkpoint as a file of tensorizer, plain or encrypted, with its config and tokenizer."""
        if arguments.keyfile is not None and arguments.password_file is not None:
            raise UsageError("give one of --encryption-keyfile and --encryption-password-file")
        from appliance.cli import serialize

        return serialize.run(arguments)

    @verb(app, "completion", "appliance completion bash > ~/.local/share/bash-completion/completions/appliance")
    def completion(shell: Annotated[Shell, typer.Argument(help="Your shell.")]) -> int:
        """Print a shell's completion script."""
        from appliance.cli import completion

        return completion.run(shell.value)
