"""The Python cost of one decode step, without a model.

    python docs/benchmarks/engine_step.py [SEQUENCES] [--steps 600] [--hash sha256]

Milliseconds of each part of a step in which all sequences decode. --hash names what blocks of the prefix cache are
hashed with.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from appliance.engine.core.config import SchedulerConfig
from appliance.engine.core.scheduler import Scheduler
from appliance.engine.messages import GenerateRequest, OutputBatch, SamplingParams
from appliance.engine.runner import Runner
from appliance.engine.wire import encode
from appliance.kernels.interface import StepInputs
from appliance.kernels.logits import HostLogits, Logits
from appliance.kernels.sampling import SampledBatch, SamplingBatch

VOCAB_SIZE = 150_000


class NoModel:
    """Says the same token for every row, at no cost."""

    memory_bytes: Mapping[str, int] = {}

    def run(self, inputs: StepInputs) -> HostLogits:
        return HostLogits(np.zeros((len(inputs.sampled_rows), 1), np.float32))

    def sample(self, logits: Logits, batch: SamplingBatch) -> SampledBatch:
        return SampledBatch(np.full(batch.num_rows, 5, np.int32), 0)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None: ...

    def close(self) -> None: ...


def measure(num_seqs: int, num_steps: int, hash_algorithm: Literal["builtin", "sha256"]) -> dict[str, list[float]]:
    config = SchedulerConfig(
        max_model_len=4096, block_size=16, num_blocks=80 * num_seqs, max_num_seqs=num_seqs, max_num_batched_tokens=2048,
        max_num_sampled=num_seqs, hash_algorithm=hash_algorithm,
    )  # fmt: skip
    scheduler, runner = Scheduler(config), Runner(NoModel(), config, VOCAB_SIZE)
    prompts = np.random.default_rng(0).integers(0, VOCAB_SIZE, (num_seqs, 300))
    sampling = SamplingParams(max_tokens=num_steps, temperature=0.7, top_p=0.9)
    for number, prompt in enumerate(prompts.tolist()):
        scheduler.add(b"c", GenerateRequest(request_id=f"r{number}", prompt_token_ids=prompt, sampling=sampling))
    parts: dict[str, list[float]] = {"schedule": [], "prepare, sample, report": [], "commit": [], "encode": []}
    while True:
        times = [time.perf_counter()]
        plan = scheduler.schedule()
        if plan is None:
            return parts
        times.append(time.perf_counter())
        result = runner.run(plan)
        times.append(time.perf_counter())
        outputs = scheduler.commit(plan, result)
        times.append(time.perf_counter())
        for batch in outputs.values():
            encode(OutputBatch(batch, scheduler.stats(0.0)))
        times.append(time.perf_counter())
        if plan.num_tokens == num_seqs:
            for part, start, end in zip(parts.values(), times, times[1:], strict=False):
                part.append((end - start) * 1e3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sequences", type=int, nargs="?", default=64)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--hash", choices=("builtin", "sha256"), default="builtin")
    given = parser.parse_args()
    for name, values in measure(given.sequences, given.steps, given.hash).items():
        middle, high = statistics.median(values), statistics.quantiles(values, n=20)[-1]
        sys.stdout.write(f"{name:24} median {middle:.3f} ms   p95 {high:.3f} ms\n")


if __name__ == "__main__":
    main()
