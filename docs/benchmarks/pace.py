"""What the scheduler makes of arriving prompts, on a simulated machine.

    python docs/benchmarks/pace.py [DRAWS]

The scheduler is the real one; a step takes the time that STEP_S, ROW_S and TOKEN_S say, so a minute of traffic takes
a second. The constants are those of Qwen2.5-Coder 0.5B Q4_K_M on two AVX2 cores; another machine has others.
"""

import argparse
import heapq
import random
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from appliance.engine.core.config import SchedulerConfig
from appliance.engine.core.scheduler import Scheduler
from appliance.engine.messages import GenerateRequest, SamplingParams
from appliance.engine.step import StepPlan, StepResult

STEP_S, ROW_S, TOKEN_S = 0.015, 0.0055, 0.0042  # a step costs, a decode in it, a prompt token in it
TARGET_S, LATE_SHARE = 0.15, 0.04  # what is planned without an slo


@dataclass(frozen=True, slots=True)
class Arrival:
    """`after`: comes when that request has ended, not at `time_s`: a closed loop."""

    time_s: float
    num_prompt: int
    num_output: int
    after: int | None = None


@dataclass(slots=True)
class Timeline:
    came_s: float = 0.0
    tokens_s: list[float] = field(default_factory=list)


def burst(rng: random.Random, count: int = 16) -> list[Arrival]:
    return [Arrival(0.0, rng.randint(128, 512), 128) for _ in range(count)]


def closed(rng: random.Random, clients: int = 16, count: int = 32) -> list[Arrival]:
    return [Arrival(0.0, rng.randint(128, 512), 128, None if i < clients else i - clients) for i in range(count)]


def open_loop(rng: random.Random, rate: float = 0.35, count: int = 64) -> list[Arrival]:
    found, now = [], 0.0
    for _ in range(count):
        now += rng.expovariate(rate)
        found.append(Arrival(now, rng.randint(128, 512), rng.randint(32, 160)))
    return found


def long_prompt(rng: random.Random) -> list[Arrival]:
    return [Arrival(0.0, 64, 300) for _ in range(8)] + [Arrival(6.0, 4000, 64)]


TRAFFIC: dict[str, Callable[[random.Random], list[Arrival]]] = {
    "burst of 16": burst, "16 clients, 32 requests": closed, "open loop, 0.35 a second": open_loop,
    "one long prompt beside 8": long_prompt,
}  # fmt: skip


def simulate(arrivals: list[Arrival], target_s: float | None, late_share: float) -> tuple[list[Timeline], float]:
    config = SchedulerConfig(
        max_model_len=8192, block_size=16, num_blocks=8192, max_num_seqs=64, max_num_batched_tokens=2048,
        max_num_sampled=64, target_step_s=target_s, late_share=late_share,
    )  # fmt: skip
    scheduler, now, lines = Scheduler(config), 0.0, [Timeline() for _ in arrivals]
    waiting = [(each.time_s, number) for number, each in enumerate(arrivals) if each.after is None]
    heapq.heapify(waiting)
    followers = {each.after: number for number, each in enumerate(arrivals) if each.after is not None}
    while waiting or scheduler.has_work:
        if not scheduler.has_work:
            now = max(now, waiting[0][0])
        while waiting and waiting[0][0] <= now:
            came_s, number = heapq.heappop(waiting)
            lines[number].came_s = came_s
            scheduler.add(b"", request(number, arrivals[number]))
        plan = scheduler.schedule()
        assert plan is not None
        seconds = step_seconds(plan)
        now += seconds
        scheduler.learn(plan, seconds)
        for output in scheduler.commit(plan, StepResult(plan.step, [[7] for chunk in plan.chunks if chunk.sample])).get(
            b"", ()
        ):
            number = int(output.request_id)
            lines[number].tokens_s.append(now)
            if output.finish_reason is not None and number in followers:
                heapq.heappush(waiting, (now, followers[number]))
    return lines, now


def request(number: int, arrival: Arrival) -> GenerateRequest:
    prompt = [number, *range(arrival.num_prompt - 1)]
    return GenerateRequest(
        request_id=str(number), prompt_token_ids=prompt, sampling=SamplingParams(max_tokens=arrival.num_output)
    )


def step_seconds(plan: StepPlan) -> float:
    decodes = sum(chunk.length == 1 for chunk in plan.chunks)
    return STEP_S + ROW_S * decodes + TOKEN_S * (plan.num_tokens - decodes)


def figures(lines: list[Timeline], seconds: float) -> dict[str, float]:
    first = [line.tokens_s[0] - line.came_s for line in lines]
    gaps = [b - a for line in lines for a, b in zip(line.tokens_s, line.tokens_s[1:], strict=False)]
    ttft, itl = statistics.quantiles(first, n=100, method="inclusive"), statistics.quantiles(gaps, n=100)
    return {
        "ttft p50": ttft[49], "p95": ttft[94], "itl p50": itl[49], "itl p95": itl[94], "itl p99": itl[98],
        "most": max(gaps), "tok/s": sum(len(line.tokens_s) for line in lines) / seconds,
    }  # fmt: skip


POLICIES: dict[str, tuple[float | None, float]] = {
    "as planned": (TARGET_S, LATE_SHARE), "never late": (TARGET_S, 0.0), "slower, never late": (0.25, 0.0),
    "prompts first": (None, 0.0),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("draws", type=int, nargs="?", default=6, help="of random traffic; figures are means")
    draws = parser.parse_args().draws
    for policy, bounds in POLICIES.items():
        sys.stdout.write(f"{policy}\n")
        for name, traffic in TRAFFIC.items():
            found = [figures(*simulate(traffic(random.Random(seed)), *bounds)) for seed in range(draws)]
            means = (f"{label} {statistics.mean(f[label] for f in found):6.2f}" for label in found[0])
            sys.stdout.write(f"  {name:26} {'  '.join(means)}\n")


if __name__ == "__main__":
    main()
