"""Scheduling policies as an operator would write them, and some that do what they should not."""

import time
from collections.abc import Sequence

from appliance.base.plugin_types import OpenSequence


class ShortestFirst:
    """Short prompts start first; what has said least is preempted first."""

    def order(self, sequences: Sequence[OpenSequence]) -> list[int]:
        def key(each: OpenSequence) -> tuple[int, int]:
            return (-each.num_output, each.id) if each.is_running else (each.num_prompt, each.id)

        return [each.id for each in sorted(sequences, key=key)]


class Raises:
    def order(self, sequences: Sequence[OpenSequence]) -> list[int]:
        raise LookupError("no idea")


class Hangs:
    def order(self, sequences: Sequence[OpenSequence]) -> list[int]:
        while True:
            time.sleep(0.01)


class LeavesOneOut:
    def order(self, sequences: Sequence[OpenSequence]) -> list[int]:
        return [each.id for each in sequences[1:]]


class Repeats:
    def order(self, sequences: Sequence[OpenSequence]) -> list[int]:
        return [sequences[0].id] * len(sequences)


class SaysWords:
    def order(self, sequences: Sequence[OpenSequence]) -> list[str]:
        return ["first"] * len(sequences)


class SaysNothing:
    def order(self, sequences: Sequence[OpenSequence]) -> None:
        return None


class CannotBeMade:
    def __init__(self, name: str) -> None:
        raise AssertionError("it is constructed without arguments")


shortest = ShortestFirst()
NOT_A_POLICY = 3
