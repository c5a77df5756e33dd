"""What several ranks reach of the ideal, which is so many times what one of them reaches."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

COUNTS = (1, 2, 4)
FIGURE = "output_throughput"


class Setting(NamedTuple):
    """A number of ranks, and of threads that each has."""

    ranks: int
    threads: int

    @property
    def overrides(self) -> tuple[str, ...]:
        """Returns what it changes of a spec."""
        return (f"parallelism.tensor={self.ranks}", f"hardware.num_threads={self.threads}")

    @property
    def label(self) -> str:
        return f"{self.ranks} x {self.threads}"


class Reached(NamedTuple):
    setting: Setting
    throughput: float  # tokens of output a second


def settings(num_cores: int, threads: int | None = None) -> Iterator[Setting]:
    """Yields what is measured on so many cores: one rank, several with as many threads each, and one rank with all
    threads of the most ranks. threads: of a rank; None for so many that each count of ranks has room."""
    fitting = [count for count in COUNTS if count * (threads or 1) <= num_cores]
    each = threads or num_cores // fitting[-1]
    yield from (Setting(count, each) for count in fitting)
    if fitting[-1] > 1:
        yield Setting(1, fitting[-1] * each)


def render_scaling(found: Sequence[Reached]) -> str:
    """Returns a table. The ideal is that each thread reaches what those of the first setting do."""
    first = found[0]
    lines = [f"  {'ranks':>5}{'threads each':>14}{'tok/s':>12}{'times':>9}{'of the ideal':>14}"]
    for setting, throughput in found:
        times = throughput / first.throughput
        ideal = setting.ranks * setting.threads / (first.setting.ranks * first.setting.threads)
        lines.append(f"  {setting.ranks:>5}{setting.threads:>14}{throughput:>12.1f}{times:>9.2f}{times / ideal:>14.0%}")
    return "\n".join(lines)
