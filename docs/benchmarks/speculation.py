"""Speculation measured against its absence, on tasks that edit and rewrite code, and where it should gain nothing.

    python docs/benchmarks/speculation.py SPEC.yaml [--methods ngram suffix] [--rounds 3] [--tokens 384]
    python docs/benchmarks/speculation.py SPEC.yaml --methods draft_model --draft-model SMALL.gguf

`SPEC` names a model with a ChatML template, and has no `speculative`. For each method an engine of its own is loaded
into this process; they take turns at each task, so that a busy machine disturbs all alike. The tasks are those of
speculation.yaml, at temperature 0 and in one stream. Then prose at temperature 1.5, in as many streams as --streams
says. All answers have to be those without speculation. Figures are medians of rounds: tokens a second from the first
token on, the ratio to off, and tokens a step. Rounds repeat the tasks, so that `suffix` looks finished answers up only
with --history.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import yaml

from appliance.base.environ import cache_dir
from appliance.engine.inproc import InprocEngine
from appliance.engine.messages import EngineStats, GenerateRequest, OutputBatch, SamplingParams
from appliance.plan.prepare import prepare
from appliance.service.text_side import TextSide, load_text_side

TASKS = Path(__file__).with_name("speculation.yaml")
OFF = "off"
PROSE = "Write a long story about a lighthouse keeper who collects other people's letters."


class Task(msgspec.Struct):
    """A text, and what to do with it."""

    name: str
    kind: str
    instruction: str
    text: str

    @property
    def prompt(self) -> str:
        return f"{self.instruction}\n\n```python\n{self.text}```"


@dataclass
class Figures:
    """Measurements by round of one method at one kind of work."""

    rates: list[float] = field(default_factory=list)  # tokens a second
    tokens_a_step: list[float] = field(default_factory=list)


def chat(text: TextSide, message: str) -> list[int]:
    system = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    turns = f"{system}<|im_start|>user\n{message}<|im_end|>\n<|im_start|>assistant\n"
    return text.tokenizer.encode(turns, add_special_tokens=False)


def run(engine: InprocEngine, requests: Sequence[GenerateRequest]) -> tuple[dict[str, list[int]], float, float]:
    """Returns the tokens of each request, tokens a second from the first token on, and tokens a step of each stream."""
    said: dict[str, list[int]] = {request.request_id: [] for request in requests}
    for request in requests:
        engine.send(request)
    num_open, began, steps = len(requests), 0.0, 0
    first: dict[str, int] = {}
    while num_open:
        events = engine.receive()
        steps += len(first) == len(requests)
        for event in events:
            for output in event.outputs if isinstance(event, OutputBatch) else ():
                said[output.request_id] += output.token_ids
                first.setdefault(output.request_id, len(output.token_ids))
                num_open -= output.finish_reason is not None
        if not began and len(first) == len(requests):
            began, before = time.perf_counter(), sum(map(len, said.values()))
    count = sum(map(len, said.values())) - before
    return said, count / (time.perf_counter() - began), count / max(1, steps) / len(requests)


def request(name: str, prompt: list[int], eos: tuple[int, ...], max_tokens: int, **sampling: float) -> GenerateRequest:
    values = SamplingParams(max_tokens=max_tokens, **sampling)  # type: ignore[arg-type] # free keywords
    return GenerateRequest(request_id=name, prompt_token_ids=prompt, sampling=values, eos_token_ids=eos)


def _overrides(method: str, draft_model: str, *, has_history: bool) -> tuple[str, ...]:
    chosen = f"speculative.method={method}"
    if method == "draft_model":
        return (chosen, f"speculative.model={draft_model}")
    return (chosen,) if has_history else (chosen, "speculative.suffix_decoding_max_cached_requests=0")


def compare(engines: dict[str, InprocEngine], requests: list[GenerateRequest], figures: dict[str, Figures]) -> None:
    """Gives each engine the requests in turn; another one begins each time. Raises AssertionError if an answer differs
    from the one without."""
    order = list(engines)
    first = len(figures[OFF].rates) % len(order)
    answers: dict[str, dict[str, list[int]]] = {}
    for method in order[first:] + order[:first]:
        answers[method], rate, tokens_a_step = run(engines[method], requests)
        figures[method].rates.append(rate)
        figures[method].tokens_a_step.append(tokens_a_step)
    for method, said in answers.items():
        assert said == answers[OFF], f"{method} changed an answer"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec")
    parser.add_argument("--methods", nargs="+", default=["ngram", "suffix"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=384)
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 64])
    parser.add_argument("--draft-model", default="")
    parser.add_argument("--history", action="store_true")
    parser.add_argument("--kinds", nargs="*", default=["edit", "rewrite"])
    given = parser.parse_args()
    overrides = {method: _overrides(method, given.draft_model, has_history=given.history) for method in given.methods}
    plans = {OFF: prepare(given.spec).plan}
    plans |= {method: prepare(given.spec, changes).plan for method, changes in overrides.items()}
    text = load_text_side(plans[OFF], cache_dir())
    tasks = msgspec.convert(yaml.safe_load(TASKS.read_text()), list[Task])
    engines = {method: InprocEngine.from_plan(plan) for method, plan in plans.items()}
    eos = text.eos_token_ids
    for kind in given.kinds:
        figures = {method: Figures() for method in engines}
        for number in range(given.rounds):
            for task in (each for each in tasks if each.kind == kind):
                prompt = chat(text, task.prompt)
                wish = request(f"{task.name}/{number}", prompt, eos, given.tokens, temperature=0.0)
                compare(engines, [wish], figures)
        show(f"{kind}, 1 stream", figures)
    for num_streams in given.streams:
        figures = {method: Figures() for method in engines}
        for number in range(given.rounds):
            prompt = chat(text, PROSE)
            wishes = [
                request(f"prose/{number}/{at}", prompt, (), 64, temperature=1.5, seed=at + 100 * number)
                for at in range(num_streams)
            ]
            compare(engines, wishes, figures)
        show(f"prose at 1.5, {num_streams} streams", figures)
    for method, engine in engines.items():
        stats = msgspec.msgpack.decode(engine.call("stats"), type=EngineStats)
        if stats.speculation is not None:
            sys.stdout.write(f"{method}: {msgspec.json.encode(stats.speculation).decode()}\n")
        engine.close()


def show(title: str, figures: dict[str, Figures]) -> None:
    """Prints a line a method; ratios are of the same task and round."""
    sys.stdout.write(f"{title}\n")
    base = figures[OFF].rates
    for method, each in figures.items():
        ratio = statistics.median(rate / off for rate, off in zip(each.rates, base, strict=True))
        rate, steps = statistics.median(each.rates), statistics.median(each.tokens_a_step)
        sys.stdout.write(f"  {method:8} {rate:7.1f} tok/s   {ratio:5.2f} of off   {steps:5.2f} tokens a step\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
