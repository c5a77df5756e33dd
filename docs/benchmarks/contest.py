"""What a contest is, and the figures that its rounds left: for versus.py, which runs them, and aims.py."""

import json
import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

import yaml

from appliance.bench.result import load
from appliance.bench.text import unit_of

# Figures of a side itself rather than of a workload, by what they are of, with their units.
START, MACHINE = "start", "machine"
UNITS = {
    START: {"start_s": "s", "idle_mib": "MiB", "beyond_weights_mib": "MiB", "peak_mib": "MiB"},
    MACHINE: {"read_bandwidth": "GB/s", "f32_peak": "Gop/s", "int8_peak": "Gop/s"},
}


@dataclass(frozen=True, slots=True)
class Side:
    label: str
    command: tuple[str, ...]
    url: str


@dataclass(frozen=True, slots=True)
class Workload:
    """A preset of `appliance bench`, with fields changed where the contest says so: `online16 num_prompts=16`."""

    preset: str
    changes: tuple[str, ...]

    @property
    def name(self) -> str:
        return " ".join([self.preset, *self.changes])

    @property
    def file_name(self) -> str:
        return "-".join([self.preset, *self.changes]).replace("=", "")


@dataclass(frozen=True, slots=True)
class Contest:
    name: str
    sides: tuple[Side, ...]
    workloads: tuple[Workload, ...]

    def result_file(self, folder: Path, workload: Workload, side: Side, which: int | str) -> Path:
        return folder / f"{workload.file_name}-{side.label}-{which}.json"

    def round_file(self, folder: Path, side: Side, number: int) -> Path:
        """A side's own figures of a round, of START and MACHINE. Written last."""
        return folder / f"{side.label}-{number}.json"

    def is_measured(self, folder: Path, side: Side, number: int) -> bool:
        """Also false where the contest has got another workload since."""
        files = [self.result_file(folder, workload, side, number) for workload in self.workloads]
        return all(file.exists() for file in [*files, self.round_file(folder, side, number)])


@dataclass(slots=True)
class Figures:
    """Of one side: values by round number under (workload, START or MACHINE; figure)."""

    values: dict[tuple[str, str], dict[int, float]] = field(default_factory=dict)

    def of(self, what: str, figure: str) -> dict[int, float]:
        return self.values.get((what, figure), {})

    def add(self, what: str, figure: str, number: int, value: float) -> None:
        self.values.setdefault((what, figure), {})[number] = value


def read_contest(path: Path, defined: Mapping[str, str], name: str | None = None) -> Contest:
    """Raises KeyError for a `${NAME}` that is not defined."""
    raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    sides = tuple(
        Side(side["label"], tuple(shlex.split(Template(side["command"]).substitute(defined))), side["url"])
        for side in raw["sides"]
    )
    parted = [line.split() for line in raw["workloads"]]
    return Contest(name or path.stem, sides, tuple(Workload(preset, tuple(changes)) for preset, *changes in parted))


def read_figures(contest: Contest, folder: Path) -> dict[str, Figures]:
    """By label, of the rounds that are complete."""
    found = {side.label: Figures() for side in contest.sides}
    for side in contest.sides:
        for number in sorted(int(file.stem.rsplit("-", 1)[1]) for file in folder.glob(f"{side.label}-[0-9]*.json")):
            if not contest.is_measured(folder, side, number):
                continue
            own = json.loads(contest.round_file(folder, side, number).read_text(encoding="utf-8"))
            for what, figures in own.items():
                for figure, value in figures.items():
                    found[side.label].add(what, figure, number, value)
            for workload in contest.workloads:
                result = load(contest.result_file(folder, workload, side, number))
                for figure, spread in result.figures.items():
                    found[side.label].add(workload.name, figure, number, spread.median)
    return found


def in_unit(what: str, figure: str, values: Iterable[float]) -> tuple[str, list[float]]:
    """The unit in which a figure is told, and its values in that."""
    unit, factor = (UNITS[what][figure], 1.0) if what in UNITS else unit_of(figure)
    return unit, [factor * value for value in values]


def ratio(mine: Mapping[int, float], theirs: Mapping[int, float]) -> float:
    """Of the medians."""
    bottom = statistics.median(theirs.values())
    return statistics.median(mine.values()) / bottom if bottom else float("inf")


def ratios(mine: Mapping[int, float], theirs: Mapping[int, float]) -> Sequence[float]:
    """Of the rounds that both sides have."""
    return [mine[number] / theirs[number] for number in mine if theirs.get(number)]
