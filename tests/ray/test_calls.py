"""A request that is answered by an application in another process."""

import asyncio
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from appliance.ray.calls import AnswerHead, HttpCall, answer

CALL = HttpCall("POST", "/v1/echo", b"a=1", [(b"content-type", b"text/plain")], b"the body")


async def collected(app: Any) -> tuple[AnswerHead, bytes]:
    pieces = [piece async for piece in answer(app, CALL)]
    head = pieces[0]
    assert isinstance(head, AnswerHead)
    return head, b"".join(piece for piece in pieces[1:] if isinstance(piece, bytes))


async def test_the_application_gets_the_request_and_its_answer_comes_in_order() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        await send({"type": "http.response.start", "status": 201, "headers": [(b"x", b"y")]})
        for piece in (scope["path"].encode(), scope["query_string"], message["body"], *[b"."] * 300):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    head, body = await asyncio.wait_for(collected(app), 10)
    assert (head.status, head.headers) == (201, [(b"x", b"y")])
    assert body == b"/v1/echoa=1the body" + b"." * 300


async def test_what_the_application_raises_is_raised() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("a fault")

    with pytest.raises(RuntimeError, match="a fault"):
        await asyncio.wait_for(collected(app), 10)


async def test_a_client_that_goes_away_ends_the_request() -> None:
    ended = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        gone = asyncio.create_task(receive())
        while not gone.done():
            await send({"type": "http.response.body", "body": b"more", "more_body": True})
            await asyncio.sleep(0)
        assert (await gone)["type"] == "http.disconnect"
        ended.set()

    pieces = answer(app, CALL)
    assert isinstance(await anext(pieces), AnswerHead)
    assert await anext(pieces)
    await pieces.aclose()  # type: ignore[attr-defined]  # it is a generator
    assert ended.is_set()
