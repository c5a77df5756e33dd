"""Drives a server: open loop by arrival times, closed loop by a bound on the requests in flight, or both."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from appliance.bench.record import MeasuredRequest
from appliance.bench.scenario import Scenario
from appliance.bench.sse import BenchTarget, CompletionClient
from appliance.bench.workload import WorkItem, make_workload

Tick = Callable[[int, int], None]  # (requests done, requests)


def request_sampling(scenario: Scenario) -> dict[str, Any]:
    fields: dict[str, Any] = {"temperature": scenario.temperature}
    if scenario.top_p < 1:
        fields["top_p"] = scenario.top_p
    if scenario.ignore_eos:
        fields["ignore_eos"] = True
    return fields


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
    async with CompletionClient(target) as client:
        warmups = make_workload(scenario, vocab_size, round_index=-1)[: scenario.num_warmups]
        for item in warmups:
            await client.send(item, request_sampling(scenario), stream=scenario.stream)
        warmed_up()
        return [
            await _round(scenario, client, make_workload(scenario, vocab_size, index), tick)
            for index in range(scenario.repeats)
        ]


async def _round(
    scenario: Scenario, client: CompletionClient, items: list[WorkItem], tick: Tick
) -> list[MeasuredRequest]:
    slots = asyncio.Semaphore(scenario.max_concurrency or len(items) or 1)
    sampling = request_sampling(scenario)
    start = time.perf_counter()
    records: list[MeasuredRequest] = []

    async def one(item: WorkItem) -> None:
        await asyncio.sleep(max(0.0, start + item.arrival_s - time.perf_counter()))
        async with slots:
            records.append(await client.send(item, sampling, stream=scenario.stream))
        tick(len(records), len(items))

    tasks = [asyncio.create_task(one(item)) for item in items]
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=scenario.max_duration)
        for task in late:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return records
