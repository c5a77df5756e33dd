"""The arguments of the verbs that use a model."""

from enum import StrEnum
from typing import Annotated

import typer

from appliance.cli.arguments.record import VerbArguments
from appliance.cli.arguments.shared import ApiKey, AsJson, Deployment, ModelName, Overrides, ServerUrl, SpecOrName


class AnswerOrder(StrEnum):
    """The order in which the answers of a batch are written."""

    INPUT = "input"
    COMPLETION = "completion"


class BatchArguments(VerbArguments):
    """The arguments of `batch`. For empty values and None, the spec decides."""

    spec: SpecOrName
    input_file: Annotated[str, typer.Option("--input", "-i", metavar="FILE", help="Requests, one a line.")] = ""
    output_file: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="Answers, one a line.")] = ""
    error_file: Annotated[
        str, typer.Option("--errors", metavar="FILE", help="Failed lines again. Default: beside the output.")
    ] = ""
    order: Annotated[AnswerOrder | None, typer.Option(help="Of the answers. Default: the spec's.")] = None
    resume: Annotated[
        bool | None, typer.Option("--resume/--no-resume", help="Go on with the output, or start it anew.")
    ] = None
    max_concurrency: Annotated[int, typer.Option(help="Requests at the same time; 0 is the plan's.")] = 0
    overrides: Overrides = ()
    as_json: AsJson = False


class TalkArguments(VerbArguments):
    """The arguments of `chat` and `complete`."""

    name: Deployment = ""
    text: Annotated[
        str, typer.Argument(metavar="[TEXT]", help="Ask this, print the answer, and end.", show_default=False)
    ] = ""
    quick: Annotated[str, typer.Option("--quick", "-q", metavar="TEXT", help="What to ask, as an option.")] = ""
    max_tokens: Annotated[int, typer.Option(help="Most tokens of an answer; 0 leaves it to the server.")] = 0
    temperature: Annotated[float | None, typer.Option(help="Default: the model's.", show_default=False)] = None
    curl: Annotated[bool, typer.Option("--curl", help="Print the curl line that asks the same.")] = False
    url: ServerUrl = ""
    model: ModelName = ""
    api_key: ApiKey = ""


class ChatArguments(TalkArguments):
    system_prompt: Annotated[str, typer.Option(help="Said before the conversation.")] = ""
