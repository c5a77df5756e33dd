"""The first of several that succeeds."""

import asyncio
from collections.abc import Coroutine, Sequence

from appliance.service.errors import RequestFailedError


async def first_success(attempts: Sequence[Coroutine[None, None, None]]) -> None:
    """Returns when one attempt has succeeded, and gives the others up. Raises the error of the last one that failed
    where all do."""
    running = {asyncio.ensure_future(each) for each in attempts}
    failure: RequestFailedError | None = None
    try:
        while running:
            ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for each in ended:
                error = each.exception()
                if error is None:
                    return
                if not isinstance(error, RequestFailedError):
                    raise error
                failure = error
    finally:
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    assert failure is not None, "there was an attempt"
    raise failure
