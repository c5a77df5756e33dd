"""Traces of conversations over several replicas: the router's own parts, and engines that are a cache and a clock."""

import heapq
import random
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from appliance.engine.messages import SamplingParams
from appliance.service.replicas.prefixes import KnownPrefixes, chain_of
from appliance.service.replicas.routing import Candidate, choose
from appliance.service.requests import TextRequest

BLOCK = 16
_PROMPT_S, _TOKEN_S = 0.001, 0.004  # of one token, alone
_SLOWER = 0.3  # by which each further sequence slows the tokens of all


def request(tokens: Sequence[int], adapter: str | None = None, salt: str | None = None) -> TextRequest:
    return TextRequest(
        request_id="r", prompt_token_ids=list(tokens), sampling=SamplingParams(), adapter=adapter, cache_salt=salt
    )


@dataclass
class Engine:
    """A replica: its prefix cache of blocks, what the router knows of it, and what is open."""

    max_tokens: int
    blocks: "OrderedDict[int, None]" = field(default_factory=OrderedDict)
    num_sequences: int = 0
    num_waiting: int = 0
    free_at: float = 0.0
    last_used: int = 0

    def __post_init__(self) -> None:
        self.known = KnownPrefixes(self.max_tokens)

    def cached(self, tokens: Sequence[int]) -> int:
        found = 0
        for name in _names(tokens):
            if name not in self.blocks:
                break
            found += BLOCK
        return min(found, len(tokens) - 1)

    def store(self, tokens: Sequence[int]) -> None:
        for name in reversed(_names(tokens)):
            self.blocks[name] = None
            self.blocks.move_to_end(name)
        while len(self.blocks) > self.max_tokens // BLOCK:
            self.blocks.popitem(last=False)


def _names(tokens: Sequence[int]) -> list[int]:
    name, names = 0, []
    for begin in range(0, len(tokens) // BLOCK * BLOCK, BLOCK):
        name = hash((name, *tokens[begin : begin + BLOCK]))
        names.append(name)
    return names


@dataclass(frozen=True)
class Conversations:
    """So many conversations of so many turns, `at_once` of which are open; lengths in tokens, about so."""

    at_once: int
    shared: int = 200
    question: int = 60
    answer: int = 80
    count: int = 48
    turns: int = 6


@dataclass
class Outcome:
    """most: sequences of one replica, beyond its share of those that were open."""

    num_cached: int = 0
    num_tokens: int = 0
    num_requests: list[int] = field(default_factory=list)
    most: float = 0.0

    @property
    def hit_rate(self) -> float:
        return self.num_cached / self.num_tokens


class Trace:
    def __init__(self, work: Conversations, num_engines: int, max_tokens: int = 200_000) -> None:
        self._work = work
        self._random = random.Random(0)
        self._engines = [Engine(max_tokens // num_engines) for _ in range(num_engines)]
        shared = self._tokens(work.shared, exactly=True)
        self._texts = [list(shared) for _ in range(work.count)]
        self._left = [work.turns] * work.count
        self._ready = self._random.sample(range(work.count), work.count)
        self._events: list[tuple[float, bool, int, int, int]] = []  # time, is the end, conversation, engine, tokens
        self._outcome = Outcome(num_requests=[0] * num_engines)

    def run(self) -> Outcome:
        for _ in range(self._work.at_once):
            self._begin(0.0)
        while self._events:
            now, is_end, talk, number, num_new = heapq.heappop(self._events)
            engine = self._engines[number]
            if not is_end:
                engine.num_waiting -= num_new
                answer = self._tokens(self._work.answer)
                self._texts[talk] += answer
                pace = len(self._engines) * _TOKEN_S * (1 + _SLOWER * engine.num_sequences)
                heapq.heappush(self._events, (now + len(answer) * pace, True, talk, number, 0))
                continue
            engine.num_sequences -= 1
            engine.store(self._texts[talk])
            self._left[talk] -= 1
            if self._left[talk]:
                self._ready.insert(self._random.randrange(len(self._ready) + 1), talk)
            self._begin(now)
        return self._outcome

    def _begin(self, now: float) -> None:
        if not self._ready:
            return
        talk, found = self._ready.pop(0), self._outcome
        text = self._texts[talk]
        text += self._tokens(self._work.question)
        chain = chain_of(request(text))
        number = choose([self._candidate(engine, chain) for engine in self._engines])
        engine = self._engines[number]
        found.num_requests[number] += 1
        engine.last_used = sum(found.num_requests)
        num_cached, num_new = engine.cached(text), len(text) - engine.known.find(chain).num_tokens
        found.num_cached += num_cached
        found.num_tokens += len(text)
        engine.known.note(chain)
        engine.num_sequences += 1
        engine.num_waiting += num_new
        num_open = sum(each.num_sequences for each in self._engines)
        found.most = max(found.most, engine.num_sequences - num_open / len(self._engines))
        engine.free_at = max(now, engine.free_at) + (len(text) - num_cached) * _PROMPT_S * len(self._engines)
        engine.store(text)
        heapq.heappush(self._events, (engine.free_at, False, talk, number, num_new))

    def _candidate(self, engine: Engine, chain: Sequence[int]) -> Candidate:
        return Candidate(
            worth=engine.known.find(chain).worth,
            num_waiting=engine.num_waiting,
            num_sequences=engine.num_sequences,
            last_used=engine.last_used,
        )

    def _tokens(self, about: int, *, exactly: bool = False) -> list[int]:
        count = about if exactly else self._random.randrange(about // 2, about * 3 // 2)
        return [self._random.randrange(1000) for _ in range(count)]
