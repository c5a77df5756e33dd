"""A progress bar for fetches: rich on a terminal, plain lines elsewhere."""

import sys
from types import TracebackType
from typing import Literal, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text


class _Amount(ProgressColumn):
    """Shows bytes with a speed, or a count of files."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes, self._speed, self._files = (
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            MofNCompleteColumn(),
        )

    def render(self, task: Task) -> Text:
        if task.fields["unit"] == "files":
            return self._files.render(task)
        return Text.assemble(self._bytes.render(task), "  ", self._speed.render(task))


class ProgressBar:
    """Implements `appliance.checkpoint.Progress` on stderr. Use it as a context manager."""

    def __init__(self) -> None:
        console = Console(file=sys.stderr, highlight=False, markup=False)
        self._is_terminal = console.is_terminal
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), _Amount(), TimeRemainingColumn())
        self._bars = Progress(*columns, console=console, disable=not self._is_terminal)
        self._task: TaskID | None = None

    def start(self, label: str, total: int | None, unit: Literal["bytes", "files"]) -> None:
        if not self._is_terminal:
            print(label, file=sys.stderr, flush=True)
        if self._task is not None:
            self._bars.stop_task(self._task)
        self._task = self._bars.add_task(label, total=total, unit=unit)

    def advance(self, amount: int) -> None:
        if self._task is not None:
            self._bars.advance(self._task, amount)

    def note(self, text: str) -> None:
        if self._is_terminal:
            self._bars.console.print(text)
        else:
            print(text, file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()
