"""What a handler tells the engine of who waits for an answer."""

from types import SimpleNamespace
from typing import Any

import pytest

from appliance.engine.messages import ErrorKind
from appliance.server.output.generation import collect, respond
from appliance.service.errors import RequestFailedError

UNREACHED: Any = None


class NotingClient:
    """Notes how it is asked, and admits nothing."""

    def generate(self, *_: Any, is_streamed: bool = True) -> None:
        self.is_streamed = is_streamed
        raise RequestFailedError(ErrorKind.UNAVAILABLE, "not here")


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_the_engine_hears_whether_an_answer_is_streamed(is_streamed: bool) -> None:
    state: Any = SimpleNamespace(client=NotingClient(), load=0)
    with pytest.raises(RequestFailedError):
        await respond(state, UNREACHED, [], UNREACHED, is_streamed=is_streamed)
    assert state.client.is_streamed is is_streamed


async def test_what_is_collected_is_read_by_nobody() -> None:
    state: Any = SimpleNamespace(client=NotingClient(), load=0)
    with pytest.raises(RequestFailedError):
        await collect(state, UNREACHED, [])
    assert not state.client.is_streamed
