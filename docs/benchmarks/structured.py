"""What a constraint costs: 16 requests at once, free and under one schema.

    python docs/benchmarks/structured.py SPEC.yaml [--tokens 32] [--seconds 180]

Rounds take turns, so that a busy machine disturbs all alike, until the seconds are spent; every answer has the
same length. `sampled` asks for log-probabilities, as `free` does, so each token takes a step: the difference is what
masks cost, and the last line says whether it is within the aim. `schema` lets the engine skip steps where the schema
forces tokens.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import msgspec

from appliance.base.environ import cache_dir
from appliance.engine.inproc import InprocEngine
from appliance.engine.messages import Constraint, GenerateRequest, OutputBatch, SamplingParams
from appliance.plan.prepare import prepare
from appliance.service.text_side import TextSide, load_text_side

CONCURRENCY = 16
SCHEMA = {
    "type": "array",
    "minItems": 100,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 24},
            "kind": {"enum": ["person", "place", "thing"]},
            "count": {"type": "integer", "minimum": 0, "maximum": 999},
            "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{2,8}$"}, "maxItems": 3},
            "seen": {"type": "string", "format": "date"},
        },
        "required": ["name", "kind", "count", "tags", "seen"],
        "additionalProperties": False,
    },
}
KINDS = ("free", "sampled", "schema")
AIM = 0.05  # of the throughput that masks may cost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec", type=Path)
    parser.add_argument("--tokens", type=int, default=32, help="of each answer")
    parser.add_argument("--seconds", type=int, default=180)
    given = parser.parse_args()
    report(rounds(given.spec, given.tokens, given.seconds))


def rounds(spec: Path, num_tokens: int, seconds: int) -> dict[str, list[tuple[float, float]]]:
    """What `measure` gave in each round, by kind."""
    end = time.monotonic() + seconds
    plan = prepare(spec).plan
    text = load_text_side(plan, cache_dir())
    with InprocEngine.from_plan(plan) as engine:
        engine.send(text.vocabulary())
        for kind in KINDS:
            measure(engine, text, kind, 2, "warm")
        found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
        longest = 0.0
        while not found["free"] or time.monotonic() + longest < end:
            started, number = time.monotonic(), len(found["free"])
            for kind in KINDS if number % 2 == 0 else reversed(KINDS):
                found[kind].append(measure(engine, text, kind, num_tokens, f"{kind}{number}"))
            longest = max(longest, time.monotonic() - started)
    return found


def measure(engine: InprocEngine, text: TextSide, kind: str, num_tokens: int, label: str) -> tuple[float, float]:
    """(tokens a second, CPU milliseconds a token)"""
    wish = None
    if kind != "free":
        source = msgspec.json.encode(SCHEMA).decode()
        wish = Constraint(kind="json_schema", source=source, field="schema")
    sampling = SamplingParams(
        max_tokens=num_tokens, temperature=0.7, ignore_eos=True, logprobs=None if kind == "schema" else 0
    )
    prompt = text.tokenizer.encode("A list of things in JSON, as an array of objects:\n", add_special_tokens=False)
    wall, cpu, count = time.perf_counter(), time.process_time(), 0
    for number in range(CONCURRENCY):
        request = GenerateRequest(
            request_id=f"{label}/{number}",
            prompt_token_ids=prompt,
            sampling=msgspec.structs.replace(sampling, seed=number),
            constraint=wish,
            eos_token_ids=text.eos_token_ids,
        )
        engine.send(request)
    while engine.has_work:
        for event in engine.receive():
            for output in event.outputs if isinstance(event, OutputBatch) else ():
                assert output.error is None, output.error
                count += len(output.token_ids)
    return count / (time.perf_counter() - wall), 1000 * (time.process_time() - cpu) / count


def report(found: dict[str, list[tuple[float, float]]]) -> None:
    lines = [f"{'':10}{'tokens/s':>12}{'CPU ms/token':>14}{'against free':>14}"]
    free = statistics.median(rate for rate, _ in found["free"])
    for kind, values in found.items():
        rate = statistics.median(rate for rate, _ in values)
        cpu = statistics.median(cpu for _, cpu in values)
        lines.append(f"{kind:10}{rate:12.1f}{cpu:14.2f}{rate / free - 1:+14.1%}")
    pairs = zip(found["free"], found["sampled"], strict=True)
    costs = sorted(1 - sampled / unconstrained for (unconstrained, _), (sampled, _) in pairs)
    cost, verdict = statistics.median(costs), "within" if statistics.median(costs) <= AIM else "beyond"
    each = ", ".join(f"{cost:+.1%}" for cost in costs)
    lines.append(f"masks cost {cost:+.1%} of throughput, {verdict} the aim of {AIM:.0%} (rounds: {each})")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
