"""The verbs that use a model: batch, chat, complete."""

from enum import StrEnum
from typing import Annotated

import typer

from appliance.cli.commands.options import ApiKey, AsJson, Deployment, ModelName, Overrides, ServerUrl, SpecPath
from appliance.cli.commands.verb import UsageError, verb

Quick = Annotated[str, typer.Option("--quick", "-q", metavar="TEXT", help="Ask this, print the answer, and end.")]
Question = Annotated[
    str, typer.Argument(metavar="[TEXT]", help="Ask this, print the answer, and end.", show_default=False)
]
MaxTokens = Annotated[int, typer.Option(help="Most tokens of an answer; 0 leaves it to the server.")]
Temperature = Annotated[float | None, typer.Option(help="Default: the model's.", show_default=False)]
Curl = Annotated[bool, typer.Option("--curl", help="Print the curl line that asks the same.")]


class Order(StrEnum):
    """In which order a batch is written."""

    INPUT = "input"
    COMPLETION = "completion"


def add(app: typer.Typer) -> None:
    _add_batch(app)
    _add_chat(app)
    _add_complete(app)


def _add_batch(app: typer.Typer) -> None:
    @verb(app, "batch", "appliance batch deployment.yaml -i requests.jsonl -o answers.jsonl", changes_things=True)
    def batch(
        spec: SpecPath,
        input_file: Annotated[str, typer.Option("--input", "-i", metavar="FILE", help="Requests, one a line.")] = "",
        output_file: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="Answers, one a line.")] = "",
        error_file: Annotated[
            str, typer.Option("--errors", metavar="FILE", help="Failed lines again. Default: beside the output.")
        ] = "",
        order: Annotated[Order | None, typer.Option(help="Of the answers. Default: the spec's.")] = None,
        resume: Annotated[
            bool | None, typer.Option("--resume/--no-resume", help="Go on with the output, or start it anew.")
        ] = None,
        max_concurrency: Annotated[int, typer.Option(help="Requests at the same time; 0 is the plan's.")] = 0,
        overrides: Overrides = None,
        as_json: AsJson = False,
    ) -> int:
        """Answer an OpenAI batch file; a killed run goes on where it stopped."""
        from appliance.batch.command import BatchCommand
        from appliance.cli import batch

        command = BatchCommand(
            spec=spec,
            input=input_file,
            output=output_file,
            errors=error_file,
            order=order.value if order else None,
            resume=resume,
            max_concurrency=max_concurrency,
            overrides=overrides or (),
            as_json=as_json,
        )
        return batch.run(command)


def _add_chat(app: typer.Typer) -> None:
    @verb(app, "chat", 'appliance chat quickstart -q "What is a hash chain?"')
    def chat(
        name: Deployment = "",
        question: Question = "",
        quick: Quick = "",
        system_prompt: Annotated[str, typer.Option(help="Said before the conversation.")] = "",
        max_tokens: MaxTokens = 0,
        temperature: Temperature = None,
        curl: Curl = False,
        url: ServerUrl = "",
        model: ModelName = "",
        api_key: ApiKey = "",
    ) -> int:
        """Talk to a running deployment, or to any OpenAI server."""
        from appliance.cli import talk

        name, question = _named(name, question)
        target = talk.find_target(name, url, model, api_key)
        options = talk.TalkOptions(max_tokens=max_tokens or None, temperature=temperature, show_curl=curl)
        return talk.run_chat(target, options, _asked(question, quick), system_prompt)


def _add_complete(app: typer.Typer) -> None:
    @verb(app, "complete", 'appliance complete quickstart -q "def fibonacci(n):" --max-tokens 64')
    def complete(
        name: Deployment = "",
        text: Question = "",
        quick: Quick = "",
        max_tokens: MaxTokens = 0,
        temperature: Temperature = None,
        curl: Curl = False,
        url: ServerUrl = "",
        model: ModelName = "",
        api_key: ApiKey = "",
    ) -> int:
        """Let a running deployment, or any OpenAI server, go on with a text."""
        from appliance.cli import talk

        name, text = _named(name, text)
        target = talk.find_target(name, url, model, api_key)
        options = talk.TalkOptions(max_tokens=max_tokens or None, temperature=temperature, show_curl=curl)
        return talk.run_complete(target, options, _asked(text, quick))


def _named(name: str, text: str) -> tuple[str, str]:
    """The deployment and the text; a single argument with a blank in it is a text, as no name has one."""
    return ("", name) if not text and " " in name else (name, text)


def _asked(positional: str, quick: str) -> str:
    if positional and quick:
        raise UsageError("the text was given twice: after the name, and as --quick")
    return positional or quick
