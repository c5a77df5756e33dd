"""Traffic on a simulated machine: how long its steps and gaps become."""

import random

import msgspec
import pytest

from appliance.engine.core.config import SchedulerConfig
from appliance.engine.core.pace import PAUSE_S
from appliance.engine.core.scheduler import Scheduler

from .simulator import Harness, generate
from .test_pace import machine


class Clock:
    """Traffic on a simulated machine: how long steps took, the gaps between tokens, and when each first one came."""

    def __init__(self, run: Harness) -> None:
        self.run, self.now = run, 0.0
        self.steps: list[float] = []
        self.first: dict[str, float] = {}
        self.gaps: list[float] = []
        self._last: dict[str, float] = {}
        self._seen: dict[tuple[str, int], int] = {}

    def step(self) -> bool:
        if not self.run.step():
            return False
        plan = self.run.steps[-1]
        decodes = sum(chunk.length == 1 for chunk in plan.chunks)
        seconds = machine(decodes, plan.num_tokens - decodes)
        self.run.scheduler.learn(plan, seconds)
        self.steps.append(seconds)
        self.now += seconds
        for key, outputs in self.run.outputs.items():
            if len(outputs) > self._seen.get(key, 0):
                self._seen[key] = len(outputs)
                if key[0] in self._last:
                    self.gaps.append(self.now - self._last[key[0]])
                self._last[key[0]] = self.now
                self.first.setdefault(key[0], self.now)
        return True


def traffic(num_seqs: int = 8, **fields: object) -> Clock:
    values: dict[str, object] = {
        "max_model_len": 4096, "block_size": 16, "num_blocks": 1024, "max_num_seqs": num_seqs,
        "max_num_batched_tokens": 2048, "max_num_sampled": num_seqs, "target_step_s": 0.2,
    }  # fmt: skip
    return Clock(Harness(Scheduler(SchedulerConfig(**(values | fields)))))  # type: ignore[arg-type] # free keywords


def test_a_long_prompt_keeps_the_others_flowing() -> None:
    """Traffic on a simulated clock: each step with decodes ends near the target, and the long prompt ends too."""
    clock = traffic(max_num_batched_tokens=512)
    run = clock.run
    draw = random.Random(3)
    for name in "abc":
        run.scheduler.add(b"", generate(name, [draw.randrange(90) for _ in range(40)], 200))
    for _ in range(5):
        assert clock.step()
    run.scheduler.add(b"", generate("long", [draw.randrange(90) for _ in range(2000)], 5))
    while ("long", 0) not in run.outputs:
        assert clock.step()
    assert max(clock.steps[5:]) <= 0.25
    assert len(clock.steps) < 5 + 2000 / 30


@pytest.mark.parametrize(("streamed", "most_s"), [((False, False), 0.8), ((False, True), 0.2)])
def test_steps_are_short_for_streams_alone(streamed: tuple[bool, bool], most_s: float) -> None:
    """Two sequences decode while a prompt that is not streamed runs beside them."""
    clock = traffic()
    run = clock.run
    for name, is_streamed in zip("ab", streamed, strict=True):
        run.scheduler.add(b"", msgspec.structs.replace(generate(name, [3] * 40, 200), is_streamed=is_streamed))
    for _ in range(8):
        assert clock.step()
    run.scheduler.add(b"", msgspec.structs.replace(generate("c", [5] * 3000, 5), is_streamed=False))
    for _ in range(8):
        assert clock.step()
    assert max(clock.steps[8:]) == pytest.approx(most_s, rel=0.15)


def alone(prompts: list[list[int]], **fields: object) -> tuple[Clock, list[int]]:
    """Runs the first prompt to its end, then the others, which come during its first step; also their step's sizes."""
    clock = traffic(**fields)
    clock.run.scheduler.add(b"", generate("warm", [1] * 300, 1))
    while clock.step():
        pass
    begin = len(clock.run.steps)
    clock.run.scheduler.add(b"", generate("0", prompts[0], 1))
    assert clock.step()
    for number, prompt in enumerate(prompts[1:], start=1):
        clock.run.scheduler.add(b"", generate(str(number), prompt, 1))
    while clock.step():
        pass
    return clock, [plan.num_tokens for plan in clock.run.steps[begin:]]


def test_a_prompt_alone_holds_up_nobody_longer_than_it_would_in_small_pieces() -> None:
    """A request that comes while it runs waits for its end in any case."""
    prompts = [[2] * 2000, [3] * 40]
    large, sizes = alone(prompts)
    small, small_sizes = alone(prompts, long_prefill_token_threshold=4000)
    assert sizes == [500, 500, 500, 500, 40]
    assert len(small_sizes) >= 10
    assert large.first["0"] < small.first["0"]
    assert large.first["1"] < small.first["1"]


@pytest.mark.parametrize(
    "fields", [{"max_num_partial_prefills": 2}, {"long_prefill_token_threshold": 1000}, {"policy": "priority"}]
)
def test_pieces_are_small_where_others_may_pass(fields: dict[str, object]) -> None:
    clock, _ = alone([[2] * 2000, [3] * 40], **fields)
    assert max(clock.steps[-5:]) == pytest.approx(0.8, rel=0.05)


def test_what_a_prompt_finds_cached_makes_no_step_longer() -> None:
    """Steps after the first take as long as the uncached rest of the prompts, not as the whole prompts."""
    shared = [2] * 2000
    _, sizes = alone([[*shared, 1], *([*shared, number] + [number] * 60 for number in range(2, 9))])
    assert sum(sizes) <= 2001 + 7 * 80
    assert max(machine(0, size) for size in sizes[4:]) == pytest.approx(0.8, rel=0.05)


def test_decodes_do_not_wait_for_a_prompt_that_is_cached() -> None:
    clock, shared = traffic(16, late_share=0.04), [2] * 2000
    clock.run.scheduler.add(b"", generate("warm", [*shared, 1], 1))
    while clock.step():
        pass
    for number in range(8):
        clock.run.scheduler.add(b"", generate(str(number), [10 + number] * 20, 100))
    for _ in range(8):
        assert clock.step()
    clock.run.scheduler.add(b"", generate("again", [*shared, 3], 1))
    assert clock.step()
    assert len(clock.run.steps[-1].chunks) == 9


def test_without_a_target_a_step_takes_what_fits() -> None:
    run = traffic(max_num_batched_tokens=512, target_step_s=None).run
    run.scheduler.add(b"", generate("a", [1], 50))
    run.step()
    run.scheduler.learn(run.steps[-1], 10.0)
    run.scheduler.add(b"", generate("long", [2] * 2000, 5))
    run.step()
    assert run.steps[-1].num_tokens == 512


def test_a_burst_is_prefilled_in_pauses_and_most_gaps_stay_short() -> None:
    clock = traffic(16, late_share=0.04)
    for number in range(16):
        clock.run.scheduler.add(b"", generate(f"r{number}", [number] * 300, 128))
    while clock.step():
        pass
    clock.gaps.sort()
    assert clock.gaps[int(0.95 * len(clock.gaps))] <= 0.25
    assert 2.0 <= clock.gaps[-1] <= 1.1 * PAUSE_S
    firsts = [clock.first[f"r{number}"] for number in range(16)]
    assert firsts == sorted(firsts), "nobody passes anybody"
    assert len(set(firsts)) >= 12, "a prompt's first token goes out when it ends, not with the whole pause"


@pytest.mark.parametrize(("awaited", "longest_s"), [([], 0.25), ([8], PAUSE_S), ([0, 1], PAUSE_S)])
def test_readers_pause_for_prompts_that_somebody_awaits(awaited: list[int], longest_s: float) -> None:
    """Ten prompts come while two streams are read. Those not in `awaited` are not streamed."""
    clock = traffic(16, late_share=0.04)
    for name in "ab":
        clock.run.scheduler.add(b"", generate(name, [ord(name)] * 40, 400))
    for _ in range(20):
        assert clock.step()
    clock.gaps.clear()
    for number in range(10):
        message = generate(f"r{number}", [number] * 300, 2)
        clock.run.scheduler.add(b"", msgspec.structs.replace(message, is_streamed=number in awaited))
    while clock.step():
        pass
    assert max(clock.gaps) <= longest_s * 1.1
    assert max(clock.gaps) >= longest_s / 2
    assert clock.run.scheduler.stats(0.0).num_waiting == 0


def test_a_pause_in_which_no_prompt_can_run_lets_decodes_go_on() -> None:
    """The cache holds two of the sequences: the third waits until one ends, whatever the pace says of pauses."""
    clock = traffic(max_model_len=512, num_blocks=20, max_num_batched_tokens=256, late_share=1.0)
    for number in range(6):
        clock.run.scheduler.add(b"", generate(f"r{number}", [number] * 120, 24))
    while clock.step():
        pass
    assert len(clock.first) == 6
    assert all(len(clock.run.tokens(f"r{number}")) == 24 for number in range(6))
