"""Prompts and arrival times. Everything is drawn from a seed, so two engines are given the same work."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from appliance.base.errors import ApplianceError
from appliance.base.texts import without_mark
from appliance.bench.scenario import Scenario

WORDS: Final = (
    *("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state"),
    *("family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week", "company", "system"),
    *("program", "work", "government", "number", "night", "point", "home", "water", "room", "mother", "area", "money"),
    *("story", "fact", "month", "lot", "right", "study", "book", "eye", "job", "word", "business", "issue", "side"),
    *("kind", "head", "house", "service", "friend", "father", "power", "hour", "game", "line", "end", "member", "law"),
    *("car", "city", "community", "name", "president", "team", "minute", "idea", "body", "back", "parent", "face"),
    *("others", "level", "office", "door", "health", "person", "art", "war", "history", "party", "result", "change"),
)
# Ids below this are often special or single bytes; a benchmark prompt stays clear of them.
FIRST_ORDINARY_ID = 1000


class WorkItem(msgspec.Struct, frozen=True, kw_only=True):
    """One request: token ids or text, how many tokens to generate, and when it arrives (seconds from the start)."""

    prompt: list[int] | str
    output_len: int
    arrival_s: float = 0.0


class TraceLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line of a trace: a prompt (text or ids) or only its length, the output length and the arrival time."""

    prompt: list[int] | str | None = None
    input_len: int | None = None
    output_len: int = 128
    arrival_s: float = 0.0


def make_workload(scenario: Scenario, vocab_size: int, round_index: int = 0) -> list[WorkItem]:
    """The prompts of one round. Rounds differ in their tokens, never in their lengths, so caches cannot help them.

    With `texts`, prompts are common English words, each about a token of most vocabularies. Raises ApplianceError for a
    trace that cannot be read, with the line.
    """
    lengths = random.Random(scenario.seed)
    tokens = random.Random(f"{scenario.seed}/{round_index}")
    if scenario.workload == "trace":
        return _trace(scenario, vocab_size, tokens)
    prompts = _PROMPTS[scenario.workload](scenario, vocab_size, lengths, tokens)
    arrivals = arrival_times(scenario, random.Random(scenario.seed + 1))
    return [
        WorkItem(prompt=_text(prompt) if scenario.texts else prompt, output_len=scenario.output_len, arrival_s=arrival)
        for prompt, arrival in zip(prompts, arrivals, strict=True)
    ]


def arrival_times(scenario: Scenario, rng: random.Random) -> list[float]:
    """Gaps drawn from a gamma distribution of shape `burstiness` and mean 1/rate; all zero without a rate."""
    if scenario.request_rate is None:
        return [0.0] * scenario.num_prompts
    scale = 1.0 / (scenario.request_rate * scenario.burstiness)
    times, now = [], 0.0
    for _ in range(scenario.num_prompts):
        times.append(now)
        now += rng.gammavariate(scenario.burstiness, scale)
    return times


def _own_len(scenario: Scenario, rng: random.Random) -> int:
    """Tokens of a prompt that are not shared. Raises ApplianceError when the prefix leaves none."""
    mean = scenario.input_len - (scenario.prefix_len if scenario.workload == "shared-prefix" else 0)
    if mean < 1:
        message = f"a shared prefix of {scenario.prefix_len} leaves nothing of {scenario.input_len} prompt tokens"
        raise ApplianceError(message, hint="input_len is the whole prompt")
    return rng.randint(max(1, round(mean * (1 - scenario.range_ratio))), round(mean * (1 + scenario.range_ratio)))


def _ids(count: int, vocab_size: int, rng: random.Random) -> list[int]:
    first = FIRST_ORDINARY_ID if vocab_size > 2 * FIRST_ORDINARY_ID else 0
    return [rng.randrange(first, vocab_size) for _ in range(count)]


def _text(token_ids: list[int]) -> str:
    return " ".join(WORDS[each % len(WORDS)] for each in token_ids)


def _random(scenario: Scenario, vocab_size: int, lengths: random.Random, tokens: random.Random) -> list[list[int]]:
    sizes = [_own_len(scenario, lengths) for _ in range(scenario.num_prompts)]
    return [_ids(size, vocab_size, tokens) for size in sizes]


def _fixed(scenario: Scenario, vocab_size: int, lengths: random.Random, tokens: random.Random) -> list[list[int]]:
    del lengths  # every prompt has the same length
    return [_ids(scenario.input_len, vocab_size, tokens) for _ in range(scenario.num_prompts)]


def _shared_prefix(
    scenario: Scenario, vocab_size: int, lengths: random.Random, tokens: random.Random
) -> list[list[int]]:
    prefixes = [_ids(scenario.prefix_len, vocab_size, tokens) for _ in range(scenario.num_prefixes)]
    own = _random(scenario, vocab_size, lengths, tokens)
    return [prefixes[i % len(prefixes)] + ids for i, ids in enumerate(own)]


_PROMPTS: dict[str, Callable[[Scenario, int, random.Random, random.Random], list[list[int]]]] = {
    "random": _random,
    "fixed": _fixed,
    "shared-prefix": _shared_prefix,
}


def _trace(scenario: Scenario, vocab_size: int, tokens: random.Random) -> list[WorkItem]:
    if scenario.trace_file is None:
        raise ApplianceError("the trace workload has no trace_file", hint="name a JSONL file of requests")
    data = without_mark(Path(scenario.trace_file).read_bytes(), scenario.trace_file)
    decoder = msgspec.json.Decoder(TraceLine)
    items = []
    for number, line in enumerate(data.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            entry = decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise ApplianceError(f"{scenario.trace_file}:{number}: {error}") from error
        items.append(_trace_item(entry, vocab_size, tokens, f"{scenario.trace_file}:{number}"))
    return items[: scenario.num_prompts]


def _trace_item(entry: TraceLine, vocab_size: int, tokens: random.Random, where: str) -> WorkItem:
    if (entry.prompt is None) == (entry.input_len is None):
        raise ApplianceError(f"{where}: give exactly one of prompt and input_len")
    prompt = entry.prompt if entry.prompt is not None else _ids(entry.input_len or 1, vocab_size, tokens)
    return WorkItem(prompt=prompt, output_len=entry.output_len, arrival_s=entry.arrival_s)
