"""Responses in the background: a task of this process makes them, and marks in the store that it still does."""

import asyncio
import time
from contextlib import closing
from typing import Any

import orjson

from appliance.server.http.callers import owner
from appliance.server.output.generation import AnswerSource
from appliance.server.responses.answer import Keep, ResponseAnswer
from appliance.server.state import ServerState
from appliance.service.errors import RequestFailedError
from appliance.service.streams import merged
from appliance.store.responses import UNFINISHED, ResponseStore, StoredResponse

TOUCH_EVERY_S = 1.0
_LOST_AFTER_S = 15.0  # without a touch: the process that made it is gone


def start(state: ServerState, stream: AnswerSource, answer: ResponseAnswer, keep: Keep) -> dict[str, Any]:
    """The response as it is at its beginning."""
    response = answer.response("in_progress")
    keep(response)
    task = asyncio.create_task(_run(state.store.responses, stream, answer, response["id"]), name="background response")
    state.open.background.add(task)
    task.add_done_callback(state.open.background.discard)
    return response


def current(stored: StoredResponse) -> dict[str, Any]:
    """The response as it is now; one whose process is gone has failed."""
    response: dict[str, Any] = orjson.loads(stored.response)
    if stored.status in UNFINISHED and time.time() - stored.touched > _LOST_AFTER_S:
        error = {"code": "server_error", "message": "the server ended before the response did"}
        response = {**response, "status": "failed", "error": error}
    return response


async def _run(responses: ResponseStore, stream: AnswerSource, answer: ResponseAnswer, response_id: str) -> None:
    watcher = asyncio.create_task(_touch(responses, stream, owner(), response_id))
    try:
        with closing(stream):
            async for outputs in stream:
                for output in merged(outputs):
                    answer.add(output)
        answer.body()  # keeps it, unless it was cancelled
    except RequestFailedError as failure:
        answer.failed(str(failure))
    finally:
        watcher.cancel()


async def _touch(responses: ResponseStore, stream: AnswerSource, holder: str, response_id: str) -> None:
    """Ends the stream when the response was cancelled or deleted, by whatever process."""
    while await asyncio.to_thread(responses.touch, holder, response_id):
        await asyncio.sleep(TOUCH_EVERY_S)
    stream.close()
