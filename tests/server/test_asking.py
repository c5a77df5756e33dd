"""Routes that only look: an engine that ends while it is asked is left out of what they answer."""

from typing import cast

import msgspec
import pytest

from appliance.engine.messages import EngineStats, ErrorKind
from appliance.server.admin.asking import stats_of
from appliance.service.client import EngineClient
from appliance.service.errors import RequestFailedError

THERE = EngineStats(
    time=0.0, num_running=0, num_waiting=0, num_blocks_used=0, num_blocks_total=1, num_steps=0, prompt_tokens=0,
    generation_tokens=0, prefix_queries=0, prefix_hits=0, num_preemptions=0,
)  # fmt: skip
GONE = RequestFailedError(ErrorKind.UNAVAILABLE, "the engine was killed")
BROKEN = RequestFailedError(ErrorKind.INTERNAL, "cannot say")


class Asked:
    def __init__(self, answer: EngineStats | RequestFailedError) -> None:
        self._answer = answer

    async def call(self, _: str) -> msgspec.Raw:
        if isinstance(self._answer, RequestFailedError):
            raise self._answer
        return msgspec.Raw(msgspec.msgpack.encode(self._answer))


async def stats(*answers: EngineStats | RequestFailedError) -> dict[int, EngineStats]:
    return await stats_of({number: cast(EngineClient, Asked(each)) for number, each in enumerate(answers)})


async def test_one_that_ends_is_left_out() -> None:
    assert await stats(THERE, GONE, THERE) == {0: THERE, 2: THERE}


@pytest.mark.parametrize(
    ("answers", "message"), [((GONE, GONE), "killed"), ((BROKEN,), "cannot say"), ((THERE, BROKEN), "cannot say")]
)
async def test_faults_are_raised_and_where_none_is_left_its_end(
    answers: tuple[EngineStats | RequestFailedError, ...], message: str
) -> None:
    with pytest.raises(RequestFailedError, match=message):
        await stats(*answers)
