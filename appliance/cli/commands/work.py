"""The verbs that use a model: batch, chat, complete."""

import typer

from appliance.cli.arguments.work import BatchArguments, ChatArguments, TalkArguments
from appliance.cli.verb import verb


def add(app: typer.Typer) -> None:
    @verb(app, "batch", "appliance batch deployment.yaml -i requests.jsonl -o answers.jsonl", changes_things=True)
    def batch(arguments: BatchArguments) -> int:
        """Answer an OpenAI batch file; a killed run goes on where it stopped."""
        from appliance.cli import batch

        return batch.run(arguments)

    @verb(app, "chat", 'appliance chat quickstart "What is a hash chain?"')
    def chat(arguments: ChatArguments) -> int:
        """Talk to a running deployment, or to any OpenAI server."""
        from appliance.cli import talk

        return talk.run_chat(arguments)

    @verb(app, "complete", 'appliance complete quickstart "def fibonacci(n):" --max-tokens 64')
    def complete(arguments: TalkArguments) -> int:
        """Let a running deployment, or any OpenAI server, go on with a text."""
        from appliance.cli import talk

        return talk.run_complete(arguments)
