"""One line of a batch: asked until it has an answer, and written as a line of the output."""

import asyncio
from typing import NamedTuple

import msgspec

from appliance.base.errors import ApplianceError
from appliance.jobs.answerer import Answerer, LineReply
from appliance.jobs.lines import BatchRequest, InputLine, LineError
from appliance.jobs.output import LineFailure, LineResponse, OutputLine

_OVERLOADED, _UNAVAILABLE = 429, 503
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0


class BatchStoppedError(ApplianceError):
    """The engine cannot go on. What is in the output stays; the next run does the rest."""


class AnsweredLine(NamedTuple):
    """A line of the output, and the tokens that it took."""

    line: OutputLine
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Answered(msgspec.Struct):
    usage: _Usage | None = None


async def answer_line(line: InputLine, request: BatchRequest | LineError, answer: Answerer) -> AnsweredLine:
    """Answers a line by what it asks, or by why it is no request. Raises BatchStoppedError when the engine is gone."""
    if isinstance(request, LineError):
        return AnsweredLine(OutputLine(line.key, request.custom_id, None, LineFailure(request.code, str(request))))
    reply = await _ask(request, answer)
    response = LineResponse(reply.status, reply.request_id, msgspec.Raw(reply.body))
    if reply.status >= 400:
        failed = LineFailure("request_failed", _reason(reply))
        return AnsweredLine(OutputLine(line.key, request.custom_id, response, failed))
    usage = msgspec.json.decode(reply.body, type=_Answered).usage or _Usage()
    written = OutputLine(line.key, request.custom_id, response, None)
    return AnsweredLine(written, usage.prompt_tokens, usage.completion_tokens)


async def _ask(request: BatchRequest, answer: Answerer) -> LineReply:
    """Asks again while the engine is full. Raises BatchStoppedError when it is gone."""
    pause = _FIRST_PAUSE_S
    while True:
        reply = await answer(request.url, request.body)
        if reply.status == _UNAVAILABLE:
            raise BatchStoppedError(
                f"the batch stopped: {_reason(reply)}", hint="the same command goes on where it stopped"
            )
        if reply.status != _OVERLOADED:
            return reply
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


class _ErrorText(msgspec.Struct):
    message: str = ""


class _ErrorBody(msgspec.Struct):
    error: _ErrorText = msgspec.field(default_factory=_ErrorText)


def _reason(reply: LineReply) -> str:
    try:
        message = msgspec.json.decode(reply.body, type=_ErrorBody).error.message
    except msgspec.DecodeError:
        message = ""
    return message or f"status {reply.status}"
