"""What ranks cost or gain on one machine: one rank with all threads beside several with a share of them.

    python docs/benchmarks/ranks.py SPEC.yaml [--ranks 2] [--stages 1] [--rounds 3]

Both engines are in this process, with the ranks as its children, and take turns. For each number of streams: the tokens
a second after all have one, and how much sooner that is, as medians of rounds. The answers are compared: they are the
same to the token, half of them greedy and half at temperature 0.8.
"""

import argparse
import statistics
import sys
import time
from typing import NamedTuple

from appliance.engine.inproc import InprocEngine
from appliance.engine.messages import GenerateRequest, OutputBatch, SamplingParams
from appliance.plan.prepare import prepare


class Work(NamedTuple):
    streams: int
    prompt: int
    answer: int


class Ran(NamedTuple):
    tokens: dict[str, list[int]]
    first_s: float
    rate: float  # tokens a second after the first ones


WORKS = (Work(1, 512, 64), Work(4, 64, 32), Work(16, 100, 32))


def run(engine: InprocEngine, work: Work, number: int) -> Ran:
    """number: of the round; other rounds have other prompts, which no cache knows."""
    began, tokens, first_s = time.perf_counter(), dict[str, list[int]](), 0.0
    for stream in range(work.streams):
        prompt = [100 + (7 * stream + 13 * at + 101 * number) % 9000 for at in range(work.prompt)]
        sampling = SamplingParams(max_tokens=work.answer, temperature=0.8 * (stream % 2), seed=stream)
        name = f"{work.streams}/{stream}/{number}"
        engine.send(GenerateRequest(request_id=name, prompt_token_ids=prompt, sampling=sampling))
    num_open = work.streams
    while num_open:
        for event in engine.receive():
            for output in event.outputs if isinstance(event, OutputBatch) else ():
                tokens.setdefault(output.request_id, []).extend(output.token_ids)
                num_open -= output.finish_reason is not None
        if not first_s and len(tokens) == work.streams:
            first_s = time.perf_counter() - began
    count = sum(map(len, tokens.values())) - work.streams
    return Ran(tokens, first_s, count / (time.perf_counter() - began - first_s))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--with", dest="overrides", action="append", default=[], metavar="PATH=VALUE", help="for both")
    parser.add_argument("--stages", type=int, default=1, help="pipeline stages, of --ranks ranks each")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    one = InprocEngine.from_plan(prepare(given.spec, tuple(given.overrides)).plan)
    shape = (f"parallelism.tensor={given.ranks}", f"parallelism.pipeline={given.stages}")
    several = InprocEngine.from_plan(prepare(given.spec, (*given.overrides, *shape)).plan)
    for work in WORKS:
        pairs: list[tuple[Ran, Ran]] = []
        for number in range(given.rounds):
            pairs.append((run(one, work, number), run(several, work, number)))
            assert pairs[-1][0].tokens == pairs[-1][1].tokens, "ranks say what one rank says"
        first = statistics.median(alone.first_s / together.first_s for alone, together in pairs)
        rate = statistics.median(together.rate / alone.rate for alone, together in pairs)
        rates = [statistics.median(ran.rate for ran in side) for side in zip(*pairs, strict=True)]
        sys.stdout.write(
            f"{work.streams:2} streams after {work.prompt} tokens: {rates[0]:.1f} tok/s with one rank,"
            f" {rates[1]:.1f} with {given.ranks * given.stages} ({rate:.2f}); prompts {first:.2f} times as fast\n"
        )
    several.close()
    one.close()


if __name__ == "__main__":
    main()
