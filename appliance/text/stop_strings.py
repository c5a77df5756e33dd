"""Finds stop strings in text that comes in pieces, with constant work per character (Aho and Corasick, 1975)."""

import re
from collections import deque
from dataclasses import dataclass, field

MAX_STOP_STRINGS = 64
MAX_STOP_CHARACTERS = 16_384  # of all stop strings of a request together


@dataclass(slots=True)
class _Node:
    depth: int
    next: dict[str, int] = field(default_factory=dict)
    fallback: int = 0
    match: int = 0  # length of the longest stop string that ends here; 0 is none


class StopStrings:
    """The stop strings of one request. Immutable; each sequence has its own StopScan."""

    def __init__(self, strings: tuple[str, ...]) -> None:
        """`strings` must not be empty texts."""
        self._nodes = [_Node(0)]
        for string in strings:
            self._insert(string)
        self._link()
        starts = "".join(re.escape(string[0]) for string in strings)
        self._start = re.compile(f"[{starts}]")

    def _insert(self, string: str) -> None:
        at = 0
        for character in string:
            following = self._nodes[at].next.get(character)
            if following is None:
                following = self._nodes[at].next[character] = len(self._nodes)
                self._nodes.append(_Node(self._nodes[at].depth + 1))
            at = following
        self._nodes[at].match = len(string)

    def _link(self) -> None:
        waiting = deque(self._nodes[0].next.values())
        while waiting:
            node = self._nodes[waiting.popleft()]
            for character, child in node.next.items():
                self._nodes[child].fallback = self.step(node.fallback, character)
                longest = self._nodes[self._nodes[child].fallback].match
                self._nodes[child].match = self._nodes[child].match or longest
                waiting.append(child)

    def step(self, state: int, character: str) -> int:
        nodes = self._nodes
        while True:
            following = nodes[state].next.get(character)
            if following is not None:
                return following
            if state == 0:
                return 0
            state = nodes[state].fallback

    def depth(self, state: int) -> int:
        """Returns how many of the last characters may begin a stop string."""
        return self._nodes[state].depth

    def match(self, state: int) -> int:
        return self._nodes[state].match

    def first_start(self, text: str, start: int) -> int:
        """Returns the first place from `start` where a stop string may begin, or the length of the text."""
        found = self._start.search(text, start)
        return found.start() if found else len(text)


class StopScan:
    """Scans one sequence's text. The stop string that is complete first wins; of several, the longest."""

    def __init__(self, strings: StopStrings, *, include: bool) -> None:
        """include: the stop string stays in the output."""
        self._strings = strings
        self._include = include
        self._state = 0
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """Takes text, and returns the text that may be shown now. Once `matched` is set, the output is complete."""
        strings, state, place = self._strings, self._state, 0
        while place < len(text):
            if state == 0:
                place = strings.first_start(text, place)
                if place == len(text):
                    break
            state = strings.step(state, text[place])
            place += 1
            if length := strings.match(state):
                return self._stop(self._held + text[:place], length)
        self._state = state
        shown = self._held + text
        kept = strings.depth(state)
        self._held = shown[len(shown) - kept :]
        return shown[: len(shown) - kept]

    def finish(self) -> str:
        """Returns the text held back, when the sequence ended for another reason."""
        held, self._held, self._state = self._held, "", 0
        return held

    def _stop(self, text: str, length: int) -> str:
        self.matched = text[len(text) - length :]
        self._held, self._state = "", 0
        return text if self._include else text[: len(text) - length]
