"""What screened logits gain on a model's own continuations of a text, and whether those that count stay the same.

    python docs/benchmarks/screen.py SPEC [--set PATH=VALUE ...] [--rows 1,16,64] [--top-k 1,20] [--steps 48]
        [--prompt 128] [--repetition-penalty 1.1]

Sequences continue pieces of the reference manual that ships inside Python, greedily, or sampling of top_k tokens. Each
step in which all of them decode runs twice, with all logits and screened, in alternating order. Milliseconds are of the
output head alone, and `ratio` is theirs; `step` is the ratio of whole steps, as the median of the pairs. `computed` is
the share of the logits that came out exact, `others` are rows whose first top_k, penalised, differ.
"""

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from pydoc_data.topics import topics

import msgspec
import numpy as np

from appliance.base.environ import cache_dir
from appliance.engine.backend import load_backend
from appliance.engine.core.config import SchedulerConfig
from appliance.engine.core.scheduler import Scheduler
from appliance.engine.messages import GenerateRequest, SamplingParams
from appliance.engine.runner import Runner
from appliance.kernels.cpu.kernel_set import CpuExecutable
from appliance.kernels.interface import FewLogits, StepInputs
from appliance.kernels.logits import HostLogits, Logits
from appliance.kernels.sampling import SampledBatch, SamplingBatch
from appliance.plan.prepare import prepare
from appliance.plan.types import EnginePlan
from appliance.service.text_side import load_text_side


@dataclass(slots=True)
class Found:
    seconds: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})  # of the head, by screened
    step_seconds: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})
    computed: list[float] = field(default_factory=list)
    rows: int = 0
    differing: int = 0  # rows whose largest are others


class Twice:
    """An executable that runs decode steps with and without the screen."""

    def __init__(self, executable: CpuExecutable) -> None:
        self.found = Found()
        self.rows = 0  # of the steps that are looked at
        self.penalty = np.float32(1)
        self._executable = executable
        self._seconds = np.zeros(len(executable.operator_work()))
        executable.time_operators(self._seconds)

    @property
    def few_logits(self) -> FewLogits | None:
        return self._executable.few_logits

    def run(self, inputs: StepInputs) -> HostLogits:
        asked = inputs.num_largest
        if asked is None or not len(inputs.token_ids) == len(inputs.sampled_rows) == self.rows:
            return self._executable.run(inputs)
        order = (False, True) if len(self.found.computed) % 2 else (True, False)
        logits = {screened: self._timed(inputs, asked if screened else None) for screened in order}
        self.found.computed.append(float((logits[False].values == logits[True].values).mean()))
        first = {
            screened: largest(self._penalised(inputs, own.values), int(asked[0])) for screened, own in logits.items()
        }
        self.found.differing += int((first[False] != first[True]).any(1).sum())
        self.found.rows += len(inputs.sampled_rows)
        return logits[False]

    def _penalised(self, inputs: StepInputs, logits: np.ndarray) -> np.ndarray:
        if inputs.past is None:
            return logits
        penalised = logits.copy()
        for at, (row, count) in enumerate(zip(inputs.past.row, inputs.past.count, strict=True)):
            ids = np.unique(inputs.past.table[row, :count])
            values = penalised[at, ids]
            penalised[at, ids] = np.where(values > 0, values / self.penalty, values * self.penalty)
        return penalised

    def _timed(self, inputs: StepInputs, num_largest: np.ndarray | None) -> HostLogits:
        self._seconds[:] = 0
        inputs = replace(inputs, num_largest=num_largest)
        begin = time.perf_counter()
        logits = self._executable.run(inputs)
        self.found.step_seconds[num_largest is not None].append(time.perf_counter() - begin)
        logits = HostLogits(logits.values.copy())
        self.found.seconds[num_largest is not None].append(float(self._seconds[-1]))
        return logits

    def sample(self, logits: Logits, batch: SamplingBatch) -> SampledBatch:
        return self._executable.sample(logits, batch)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._executable.copy_blocks(pairs)

    @property
    def memory_bytes(self) -> Mapping[str, int]:
        return self._executable.memory_bytes

    def close(self) -> None:
        self._executable.close()


def largest(logits: np.ndarray, count: int) -> np.ndarray:
    """f32 [rows, V] with nothing but the `count` largest of each row, and those that equal the last."""
    least = np.partition(logits, -count, 1)[:, -count, np.newaxis]
    return np.where(logits >= least, logits, -np.inf)


def prompts(plan: EnginePlan, count: int, size: int) -> list[list[int]]:
    tokenizer = load_text_side(plan, cache_dir()).tokenizer
    assert tokenizer is not None
    token_ids = tokenizer.encode("\n\n".join(topics[name] for name in sorted(topics)), add_special_tokens=False)
    step = (len(token_ids) - size) // count
    return [token_ids[start : start + size] for start in range(0, count * step, step)]


def measure(
    twice: Twice, config: SchedulerConfig, vocab_size: int, texts: list[list[int]], sampling: SamplingParams
) -> Found:
    twice.found, twice.rows, twice.penalty = Found(), len(texts), np.float32(sampling.repetition_penalty)
    scheduler, runner = Scheduler(config), Runner(twice, config, vocab_size)
    for number, text in enumerate(texts):
        scheduler.add(b"", GenerateRequest(request_id=f"r{number}", prompt_token_ids=text, sampling=sampling))
    while (plan := scheduler.schedule()) is not None:
        scheduler.commit(plan, runner.run(plan))
    return twice.found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec", type=Path)
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="PATH=VALUE")
    parser.add_argument("--rows", default="1,16,64")
    parser.add_argument("--top-k", default="1", help="1 is greedy")
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--repetition-penalty", type=float, default=1.0)
    given = parser.parse_args()
    plan = prepare(given.spec, tuple(given.overrides)).plan
    if not plan.kernels.screen_logits:
        raise SystemExit("the plan screens no logits; `appliance plan --explain` says why")
    unhurried = msgspec.structs.replace(plan.scheduler, target_step_s=None)  # nobody waits: all decode together
    config = SchedulerConfig.from_plan(msgspec.structs.replace(plan, scheduler=unhurried))
    backend = load_backend(plan, config, lambda *_: None)
    assert isinstance(backend.executable, CpuExecutable), "only sets for processors screen logits"
    twice = Twice(backend.executable)
    say("| top_k | sequences | head, ms | screened, ms | ratio | step | computed: median | mean | most | others |")
    say("|---|---|---|---|---|---|---|---|---|---|")
    for top_k, rows in itertools.product(numbers(given.top_k), numbers(given.rows)):
        sampling = SamplingParams(
            max_tokens=given.steps,
            temperature=0.0 if top_k == 1 else 1.0,
            top_k=top_k,
            repetition_penalty=given.repetition_penalty,
        )
        found = measure(twice, config, backend.vocab_size, prompts(plan, rows, given.prompt), sampling)
        say(f"| {top_k} " + line_of(found))


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def line_of(found: Found) -> str:
    whole, screened = (1e3 * statistics.median(found.seconds[each]) for each in (False, True))
    shares = statistics.median(found.computed), statistics.mean(found.computed), max(found.computed)
    rows = found.rows // len(found.computed)
    step = statistics.median(a / b for a, b in zip(*(found.step_seconds[each] for each in (False, True)), strict=True))
    ratios = f"{whole / screened:.2f}", f"{step:.2f}"
    cells = [rows, f"{whole:.2f}", f"{screened:.2f}", *ratios, *(f"{share:.2%}" for share in shares)]
    return "| " + " | ".join(map(str, cells)) + f" | {found.differing} of {found.rows} |"


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
