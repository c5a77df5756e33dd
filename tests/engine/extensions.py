"""Worker extensions as an operator would write them, and some that do what they should not."""

import time
from typing import Any

from appliance.base.plugin_types import Worker


class Reports:
    worker: Worker

    def where(self) -> dict[str, int]:
        return {"rank": self.worker.rank, "of": self.worker.num_ranks}

    def bytes_by_purpose(self) -> dict[str, int]:
        return dict(self.worker.executable.memory_bytes)  # type: ignore[attr-defined] # an Executable

    def add(self, first: int, second: int = 0) -> int:
        return first + second

    def thing(self) -> object:
        return Reports

    def fails(self) -> None:
        raise LookupError("no idea")

    def fails_on_the_last(self) -> None:
        if self.worker.rank == self.worker.num_ranks - 1:
            raise LookupError("the last one")

    async def waits(self) -> int:
        return 1

    def exits(self) -> None:
        raise SystemExit(3)

    def hangs(self) -> None:
        while True:
            time.sleep(0.01)

    def large(self) -> list[Any]:
        return ["x" * (1 << 20)] * 17

    def _hidden(self) -> int:
        return 1


class CannotBeMade:
    def __init__(self, name: str) -> None:
        raise AssertionError("it is constructed without arguments")


def function() -> None:
    """It is no class."""
