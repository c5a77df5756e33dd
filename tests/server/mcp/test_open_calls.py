"""Calls that wait for their answers."""

import asyncio
import gc
from typing import Any

import pytest

from appliance.server.mcp.messages import ToolServerError, message_of
from appliance.server.mcp.open_calls import OpenCalls


async def test_each_answer_goes_to_its_call_and_others_are_ignored() -> None:
    calls = OpenCalls()
    with calls.begun() as first, calls.begun() as second:
        for answer in (b'{"id":2,"result":"b"}', b'{"id":"1","result":0}', b'{"id":7,"result":0}'):
            calls.take(message_of(answer))
        assert bytes(await second.answer) == b'"b"'
        assert not first.answer.done()
        assert not calls.fail(7, "too long")
        assert calls.fail(second.number, "too late")
        calls.fail_all("gone")
        assert bytes(await second.answer) == b'"b"'
        with pytest.raises(ToolServerError, match="gone"):
            await first.answer
    assert not calls.fail(first.number, "it has ended")


async def test_nobody_complains_of_an_answer_that_was_not_taken() -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, said: complaints.append(said))
    calls = OpenCalls()
    with calls.begun():
        calls.fail_all("gone")  # and the message could not be sent, so that nobody waits
    gc.collect()
    await asyncio.sleep(0)
    assert complaints == []
