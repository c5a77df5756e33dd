"""What swap space gains: long answers that urgent requests interrupt, in a cache that has no room for both.

    python docs/benchmarks/swap.py SPEC [--prompt 1500] [--answer 200] [--streams 4] [--set PATH=VALUE]

Each stream has a prompt of its own, and requests of a better priority come while it answers. The engine runs in this
process, once with `preemption_mode: recompute` and once with `swap`, in turn, and both must say the same.
"""

import argparse
import random
import sys
import time
from pathlib import Path

import msgspec

from appliance.engine.inproc import InprocEngine
from appliance.engine.messages import EngineStats, GenerateRequest, OutputBatch, SamplingParams
from appliance.plan.prepare import prepare

URGENT_EVERY = 24  # steps
URGENT_TOKENS = (256, 16)  # of the prompt, and of the answer


def request(name: str, num_prompt: int, num_output: int, priority: int) -> GenerateRequest:
    draws = random.Random(name)
    return GenerateRequest(
        request_id=name,
        prompt_token_ids=[draws.randrange(1000, 90_000) for _ in range(num_prompt)],
        sampling=SamplingParams(max_tokens=num_output, temperature=0.0, ignore_eos=True),
        priority=priority,
    )


def run(options: argparse.Namespace, mode: str) -> tuple[float, dict[str, list[int]], EngineStats]:
    """Returns seconds, tokens by request, and the engine's statistics."""
    sizes = options.prompt + options.answer
    blocks = -(-sizes // 16) * options.streams + 4
    overrides = [
        "scheduler.policy=priority", f"cache.num_blocks={blocks}", f"model.max_model_len={sizes + 16}",
        "cache.prefix_caching=false", *options.overrides,
    ]  # fmt: skip
    if mode == "swap":
        overrides.append("hardware.memory.swap_space=1GiB")
    plan = prepare(Path(options.spec), overrides).plan
    said: dict[str, list[int]] = {}
    with InprocEngine.from_plan(plan) as engine:
        for name in _streams(options):
            engine.send(request(name, options.prompt, options.answer, 0))
        began, step = time.perf_counter(), 0
        while engine.has_work:
            step += 1
            is_answering = any(len(said.get(name, ())) < options.answer for name in _streams(options))
            if step % URGENT_EVERY == 0 and is_answering:
                engine.send(request(f"urgent{step}", *URGENT_TOKENS, -1))
            for event in engine.receive():
                if isinstance(event, OutputBatch):
                    for output in event.outputs:
                        said.setdefault(output.request_id, []).extend(output.token_ids)
        seconds = time.perf_counter() - began
        return seconds, said, msgspec.msgpack.decode(engine.call("stats"), type=EngineStats)


def _streams(options: argparse.Namespace) -> list[str]:
    return [f"long{number}" for number in range(options.streams)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec")
    parser.add_argument("--prompt", type=int, default=1500)
    parser.add_argument("--answer", type=int, default=200)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    options = parser.parse_args()
    expected: dict[str, list[int]] = {}
    for _ in range(options.rounds):
        for mode in ("recompute", "swap"):
            seconds, said, stats = run(options, mode)
            expected = expected or said
            assert all(said[name] == expected[name] for name in _streams(options)), "an answer has changed"
            sys.stdout.write(f"{mode}: {seconds:.1f} s, {stats.step_tokens:,} tokens in {stats.num_steps:,} steps\n")
            sys.stdout.write(f"  {stats.num_preemptions} preempted; {stats.swap}\n")


if __name__ == "__main__":
    main()
