"""Runs the contests of aims.yaml and prints what was aimed at beside what was reached, as one Markdown table.

    python docs/benchmarks/aims.py RESULTS [--rounds 3] [--define NAME=VALUE ...] [--only CONTEST ...]

NAMEs: the commands APPLIANCE, LLAMA, VLLM and OPENVINO; the models FOLDER, FOLDER_W8A8, FOLDER_REAL, MODEL_BF16,
MODEL_Q8, MODEL_Q4_0, MODEL_05B, MODEL_15B and MODEL_GEMMA. Rows whose contest lacks one of them say that they were not
measured. What RESULTS holds already is not measured again, so a long run can be stopped and go on. With --rounds 0
nothing runs. RESULTS/run.json is then this run for pages.py.

Each figure is the median of the rounds (least-greatest). A ratio is that of the medians, ours to the best peer's, and
in brackets the range of the ratios of single rounds. Shares of the floor (`appliance doctor --measure`) are of one more
run of ours, and in brackets of what the machine gave around that run. Bold: short of the aim.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any, Self

import yaml
from contest import Contest, Figures, in_unit, ratio, ratios, read_contest, read_figures
from pages import COLUMNS, HEADS
from versus import add_run_options, definitions, run

from appliance.bench.result import load

HERE = Path(__file__).parent
# Whose share of the floor is told with a figure. Of others, all kinds whose steps take a tenth of the time.
STEPS_OF = {"prefill_throughput": "prefill", "ttft_p50": "prefill", "decode_throughput": "decode", "itl_p50": "decode"}
LEAST_PART = 0.1


@dataclass(frozen=True, slots=True)
class Value:
    """One figure of a workload, as `WORKLOAD FIGURE`."""

    workload: str
    figure: str

    @classmethod
    def read(cls, text: str) -> Self:
        return cls(*text.rsplit(" ", 1))

    def of(self, figures: Figures) -> dict[int, float]:
        return figures.of(self.workload, self.figure)

    def show(self, values: Mapping[int, float]) -> str:
        unit, told = in_unit(self.workload, self.figure, values.values())
        return f"{_digits(statistics.median(told))} {unit} ({_digits(min(told))}-{_digits(max(told))})"


@dataclass(frozen=True, slots=True)
class Bound:
    at_least: float | None
    at_most: float | None

    def is_kept(self, value: float) -> bool:
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)

    def __str__(self) -> str:
        return f"{self.at_least:g}" if self.at_least is not None else f"at most {self.at_most:g}"


@dataclass(frozen=True, slots=True)
class Aim:
    work: str
    contest: str
    value: Value
    bound: Bound
    against: tuple[str, ...]  # labels; all others when empty
    than: Value | None  # of our own
    is_absolute: bool
    floor: float | None  # the share of it that is the aim

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Self:
        return cls(
            work=raw["work"],
            contest=raw["contest"],
            value=Value.read(raw["value"]),
            bound=Bound(raw.get("at_least"), raw.get("at_most")),
            against=tuple(raw.get("against", ())),
            than=Value.read(raw["than"]) if "than" in raw else None,
            is_absolute=raw.get("absolute", False),
            floor=raw.get("floor"),
        )


def read_contests(raw: Mapping[str, Any], defined: Mapping[str, str]) -> dict[str, Contest]:
    """Those of which everything is defined."""
    found = {}
    for name, entry in raw.items():
        try:
            own = {key: Template(value).substitute(defined) for key, value in entry.get("define", {}).items()}
            found[name] = read_contest(HERE / entry["file"], {**defined, **own}, name)
        except KeyError as missing:
            sys.stderr.write(f"{name}: not measured, as {missing.args[0]} is not defined\n")
    return found


def row(aim: Aim, contest: Contest, figures: Mapping[str, Figures], folder: Path) -> Sequence[str]:
    ours, *others = (side.label for side in contest.sides)
    mine = aim.value.of(figures[ours])
    if not mine:
        return not_measured(aim)
    peer, theirs = _rival(aim, figures, ours, others)
    return (
        aim.work,
        str(aim.bound),
        str(len(mine)),
        _marked(aim.value.show(mine), aim.is_absolute and not aim.bound.is_kept(_median(mine))),
        f"{peer} {(aim.than or aim.value).show(theirs)}" if theirs else "",
        _ratio(aim, mine, theirs) if theirs and not aim.is_absolute else "",
        _share(aim, contest, folder),
    )


def run_record(
    title: str, aims: Sequence[Aim], figures: Mapping[str, Mapping[str, Figures]], rows: Sequence[Sequence[str]]
) -> dict[str, Any]:
    """What pages.py reads of a run: each row as it is printed, and the figures of each round and side behind it."""
    told = []
    for aim, cells in zip(aims, rows, strict=True):
        sides = figures.get(aim.contest, {})
        values = {label: list(aim.value.of(found).values()) for label, found in sides.items()}
        told.append({**dict(zip(COLUMNS, cells, strict=True)), "values": {k: v for k, v in values.items() if v}})
    machine = f"{os.cpu_count()} cores, {platform.platform()}."
    return {"title": title, "date": str(datetime.date.today()), "machine": machine, "notes": [], "rows": told}


def not_measured(aim: Aim) -> Sequence[str]:
    return aim.work, str(aim.bound), "0", "not measured", "", "", ""


def _rival(aim: Aim, figures: Mapping[str, Figures], ours: str, others: Sequence[str]) -> tuple[str, dict[int, float]]:
    """Whose value ours is compared with, and the value: the best one, which is the least where less is better."""
    if aim.than is not None:
        return "itself", aim.than.of(figures[ours])
    found = {label: aim.value.of(figures[label]) for label in aim.against or others}
    found = {label: values for label, values in found.items() if values}
    if not found:
        return "", {}
    best = (max if aim.bound.at_least is not None else min)(found, key=lambda label: _median(found[label]))
    return best, found[best]


def _ratio(aim: Aim, mine: Mapping[int, float], theirs: Mapping[int, float]) -> str:
    found = ratio(mine, theirs)
    single = ratios(mine, theirs)
    spread = f" ({min(single):.2f}-{max(single):.2f})" if len(single) > 1 else ""
    return _marked(f"{found:.2f}", not aim.bound.is_kept(found)) + spread


def _share(aim: Aim, contest: Contest, folder: Path) -> str:
    """The aim, what the figure's steps reached, and in brackets what they reached of what the machine gave."""
    files = [
        contest.result_file(folder, workload, contest.sides[0], "roofline")
        for workload in contest.workloads
        if workload.name == aim.value.workload
    ]
    if not files or not files[0].exists():
        return ""
    kinds = load(files[0]).rooflines
    told = [each for each in kinds if each.kind == STEPS_OF.get(aim.value.figure)]
    if not told:
        whole = sum(each.seconds * each.steps for each in kinds)
        told = [each for each in kinds if each.seconds * each.steps >= LEAST_PART * whole]
    least = aim.floor or 0.0
    shares = [
        f"{each.kind} {_marked(f'{each.achieved:.0%}', each.achieved < least)} ({each.achieved_of_given:.0%})"
        for each in told
    ]
    return (f"{least:.0%}: " if least else "") + ", ".join(shares)


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _marked(text: str, is_short: bool) -> str:
    return f"**{text}**" if is_short else text


def _median(values: Mapping[int, float]) -> float:
    return statistics.median(values.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--only", nargs="+", metavar="CONTEST", help="run these alone")
    parser.add_argument("--title", default=platform.machine(), help="what the machine is called on its page")
    add_run_options(parser)
    given = parser.parse_args()
    raw = yaml.safe_load((HERE / "aims.yaml").read_text(encoding="utf-8"))
    contests = read_contests(raw["contests"], definitions(given.define))
    for name, contest in contests.items():
        if given.rounds and (not given.only or name in given.only):
            run(contest, given.results / name, given.rounds, with_roofline=True)
    aims = [Aim.read(each) for each in raw["aims"]]
    figures = {name: read_figures(contest, given.results / name) for name, contest in contests.items()}
    rows = [
        row(aim, contests[aim.contest], figures[aim.contest], given.results / aim.contest)
        if aim.contest in contests
        else not_measured(aim)
        for aim in aims
    ]
    given.results.mkdir(parents=True, exist_ok=True)
    record = run_record(given.title, aims, figures, rows)
    (given.results / "run.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    heads = [HEADS, ("---",) * len(HEADS)]
    sys.stdout.write("\n".join(f"| {' | '.join(cells)} |" for cells in [*heads, *rows]) + "\n")


if __name__ == "__main__":
    main()
