"""A few requests check that an engine keeps the plan's targets before it takes over from another."""

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from appliance.base.errors import SloMissedError
from appliance.base.percentiles import percentile
from appliance.engine.messages import Hello, SamplingParams
from appliance.plan.serving_types import GatePlan
from appliance.plan.types import EnginePlan
from appliance.service.client import AdmissionLimits, EngineClient
from appliance.service.errors import RequestFailedError
from appliance.service.health import EngineHealth
from appliance.service.intake import OPEN
from appliance.service.link import SocketLink
from appliance.service.requests import TextRequest
from appliance.service.text_side import TextSide

_NOT_PASSED = "the gate of slo was not passed"
_LOOK_EVERY_S = 0.25  # whether the engine lives
_FIRST_TOKEN_ID = 3  # below lie the special tokens of many vocabularies
_TOKEN_IDS = 253  # that every vocabulary has


@dataclass(slots=True)
class Latencies:
    """Seconds, as the targets name them; a gap between two arrivals is one value of `itl`."""

    ttft: list[float] = field(default_factory=list)
    itl: list[float] = field(default_factory=list)
    tpot: list[float] = field(default_factory=list)
    e2el: list[float] = field(default_factory=list)

    def add(self, began: float, arrivals: list[float], num_tokens: int) -> None:
        self.ttft.append(arrivals[0] - began)
        self.e2el.append(arrivals[-1] - began)
        self.itl += [later - earlier for earlier, later in pairwise(arrivals)]
        if num_tokens > 1:
            self.tpot.append((arrivals[-1] - arrivals[0]) / (num_tokens - 1))

    def missed(self, targets: Mapping[str, float]) -> list[str]:
        """Says in words which targets were missed. One without a measurement is not missed: one token has no gap."""
        told = []
        for name, bound in targets.items():
            metric, _, percent = name.partition("_p")
            values = sorted(getattr(self, metric))
            if values and (value := percentile(values, float(percent))) > bound:
                told.append(f"{name} is {value * 1e3:.1f} ms, the target is {bound * 1e3:.1f} ms")
        return told


async def check_gate(plan: EnginePlan, gate: GatePlan, endpoint: str, text: TextSide, health: EngineHealth) -> None:
    """Asks the engine at `endpoint`, past every limit and into no figure. The first request only warms it up.

    Raises SloMissedError that names every target missed, or why a request failed.
    """
    client = EngineClient(AdmissionLimits(plan.scheduler.max_num_seqs, None))
    client.use_text(text)
    link = SocketLink(endpoint, client.on_event)
    client.attach(link)
    client.intake = OPEN
    link.send(Hello())
    measuring = asyncio.create_task(_measure(client, gate), name="gate")
    try:
        while not measuring.done():
            await asyncio.wait({measuring}, timeout=_LOOK_EVERY_S)
            if not health.is_ready:
                raise SloMissedError(f"{_NOT_PASSED}: {health.reason}")
        found = measuring.result()
    except RequestFailedError as failure:
        raise SloMissedError(f"{_NOT_PASSED}: a request failed: {failure}") from failure
    finally:
        measuring.cancel()
        await asyncio.gather(measuring, return_exceptions=True)
        link.close()
    if missed := found.missed(plan.slo):
        raise SloMissedError(f"{_NOT_PASSED}: {'; '.join(missed)}")


async def _measure(client: EngineClient, gate: GatePlan, clock: Callable[[], float] = time.monotonic) -> Latencies:
    random_, found = random.Random(0), Latencies()
    await _ask(client, _request(gate, random_), Latencies(), clock)
    turns = asyncio.Semaphore(gate.max_concurrency)

    async def one(request: TextRequest) -> None:
        async with turns:
            await _ask(client, request, found, clock)

    tasks = [asyncio.create_task(one(_request(gate, random_))) for _ in range(gate.num_prompts)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    return found


async def _ask(client: EngineClient, request: TextRequest, found: Latencies, clock: Callable[[], float]) -> None:
    began, arrivals, num_tokens = clock(), [], 0
    with client.generate(request) as stream:
        async for outputs in stream:
            arrivals.append(clock())
            num_tokens += sum(len(each.token_ids) for each in outputs)
    found.add(began, arrivals, num_tokens)


def _request(gate: GatePlan, random_: random.Random) -> TextRequest:
    prompt = [_FIRST_TOKEN_ID + random_.randrange(_TOKEN_IDS) for _ in range(gate.input_len)]
    sampling = SamplingParams(max_tokens=gate.output_len, temperature=0.0, ignore_eos=True)
    return TextRequest(request_id="gate", prompt_token_ids=prompt, sampling=sampling, cache_salt="gate")
