"""Holds what several ranks answer against what one rank answers, on a real model, with everything that a request may
have:

    python -m tests.e2e.equal_ranks SPEC.yaml --shape tensor=2 --shape pipeline=2 [--with path=value ...]

Requests are greedy and drawn, with log-probabilities, penalties, a JSON schema, prompts that begin alike, and aborts.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence

from appliance.base.environ import cache_dir
from appliance.engine.messages import Constraint, SamplingParams
from appliance.plan.prepare import prepare
from appliance.service.in_process import InProcessEngine
from appliance.service.requests import TextRequest
from appliance.service.text_side import TextSide, load_text_side

TEXTS = (
    "def fibonacci(n):", "The three largest cities of Italy are", "def fibonacci(n, memo):",
    "import json\n\n\nclass Store:", "In the beginning", "SELECT name FROM users WHERE", "A recipe for bread:",
    "The three largest cities of Spain are",
)  # fmt: skip
SCHEMA = '{"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"}},"required":["name","age"]}'


def requests(text: TextSide, adapters: Sequence[str]) -> list[TextRequest]:
    made = []
    for number in range(24):
        sampling = SamplingParams(
            max_tokens=24,
            temperature=(0.0, 0.8, 1.2)[number % 3],
            seed=number,
            logprobs=(None, 3)[number % 2],
            frequency_penalty=(0.0, 0.0, 0.4)[number % 3],
        )
        schema = Constraint(kind="json_schema", source=SCHEMA, field="schema") if number % 6 == 5 else None
        made.append(
            TextRequest(
                request_id=f"r{number}",
                prompt_token_ids=text.tokenizer.encode(
                    TEXTS[number % len(TEXTS)] * (1 + number % 4), add_special_tokens=False
                ),
                sampling=sampling,
                constraint=schema,
                adapter=adapters[number % len(adapters)] if adapters and number % 2 else None,
            )
        )
    return made


async def answers(spec: str, overrides: Sequence[str]) -> list[str]:
    """Returns what each request was answered, but for those that are aborted."""
    prepared = prepare(spec, tuple(overrides))
    text = load_text_side(prepared.plan, cache_dir())
    engine = InProcessEngine(prepared.plan, text)
    adapters = [] if prepared.plan.adapters is None else [each.name for each in prepared.plan.adapters.served]

    async def ask(number: int, request: TextRequest) -> str:
        tokens: list[int] = []
        logprobs: list[object] = []
        with engine.client.generate(request) as stream:
            async for outputs in stream:
                for output in outputs:
                    tokens += output.token_ids
                    logprobs += output.logprobs or []
                if number % 8 == 3:  # its client goes away
                    return ""
        return f"{tokens} {logprobs}"

    try:
        return list(await asyncio.gather(*(ask(*each) for each in enumerate(requests(text, adapters)))))
    finally:
        engine.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec")
    parser.add_argument("--shape", action="append", default=[], help="tensor=2, or pipeline=2, or both with a comma")
    parser.add_argument("--with", dest="overrides", action="append", default=[], metavar="PATH=VALUE")
    given = parser.parse_args()
    expected = asyncio.run(answers(given.spec, given.overrides))
    wrong = 0
    for shape in given.shape:
        ranks = [f"parallelism.{each}" for each in shape.split(",")]
        found = asyncio.run(answers(given.spec, (*given.overrides, *ranks)))
        num_equal = sum(one == other for one, other in zip(expected, found, strict=True))
        wrong += len(found) - num_equal
        sys.stdout.write(f"{shape}: {num_equal} of {len(found)} answers are those of one rank\n")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
