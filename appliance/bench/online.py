"""Drives a server: open loop by arrival times, closed loop by a bound on the requests in flight, or both."""

import asyncio
import time
from collections.abc import Callable

from appliance.bench.asked import AskedRequest, asked_requests
from appliance.bench.record import MeasuredRequest
from appliance.bench.scenario import Scenario
from appliance.bench.sse import BenchClient, BenchTarget
from appliance.bench.workload import make_workload

Tick = Callable[[int, int], None]  # (requests done, requests)


def _nothing() -> None:
    """Ignores the result of the warm-up."""


def run_online(
    scenario: Scenario, target: BenchTarget, vocab_size: int, tick: Tick, warmed_up: Callable[[], None] = _nothing
) -> list[list[MeasuredRequest]]:
    """One list of records a round. A round's tokens differ from the others', so a prefix cache gains nothing.

    warmed_up: called before the first round.
    """
    return asyncio.run(_rounds(scenario, target, vocab_size, tick, warmed_up))


async def _rounds(
    scenario: Scenario, target: BenchTarget, vocab_size: int, tick: Tick, warmed_up: Callable[[], None]
) -> list[list[MeasuredRequest]]:
    async with BenchClient(target) as client:
        for asked in _asked(scenario, vocab_size, -1)[: scenario.num_warmups]:
            await client.send(asked)
        warmed_up()
        return [
            await _round(scenario, client, _asked(scenario, vocab_size, index), tick)
            for index in range(scenario.repeats)
        ]


def _asked(scenario: Scenario, vocab_size: int, round_index: int) -> list[AskedRequest]:
    return asked_requests(scenario, make_workload(scenario, vocab_size, round_index))


async def _round(
    scenario: Scenario, client: BenchClient, requests: list[AskedRequest], tick: Tick
) -> list[MeasuredRequest]:
    slots = asyncio.Semaphore(scenario.max_concurrency or len(requests) or 1)
    start = time.perf_counter()
    records: list[MeasuredRequest] = []

    async def one(asked: AskedRequest) -> None:
        await asyncio.sleep(max(0.0, start + asked.arrival_s - time.perf_counter()))
        async with slots:
            records.append(await client.send(asked))
        tick(len(records), len(requests))

    tasks = [asyncio.create_task(one(asked)) for asked in requests]
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=scenario.max_duration)
        for task in late:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return records
