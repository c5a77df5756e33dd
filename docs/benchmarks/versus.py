"""Measures several servers on the same model and work, in turn, round by round, and prints medians, spread and ratios.

    python docs/benchmarks/versus.py RESULTS CONTEST.yaml ... [--rounds 3] [--define NAME=VALUE ...] [--only LABEL ...]
        [--roofline]

A contest names the sides (a command that serves in the foreground, and its URL) and the workloads.
Every round starts each side, waits for its first token, measures every workload once, and ends it: a slow minute of a
shared machine then hurts one round of one side, not one side. `${NAME}` in a command comes from --define. Needs an idle
machine.

Start is the time from the command to the first token of a one-token completion. Memory is PSS of the process tree: idle
after the first token, and the peak of samples a second while the workloads run. The rows `machine` say what bandwidth
and peaks were there before each side's workloads, when its memory had stopped growing (or after a minute): on a shared
machine a side may have had more of it than another.

--roofline runs the first side once more behind the rounds, profiled: for each kind of step, how much of this machine's
floor (`appliance doctor --measure`) it reached, and how much of what the machine gave around the run. That side must
serve its debug routes.
"""

import argparse
import os
import shlex
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

import httpx
import yaml

from appliance.bench.machine import rates_now
from appliance.bench.result import FIGURES, load
from appliance.bench.text import unit_of
from appliance.hardware import probe_machine

START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 20.0
SETTLE_STEP_S, SETTLE_TIMEOUT_S = 2.0, 60.0
SETTLED_BYTES = 16 << 20  # that a settled engine grows by at most in a step
MIB = 1 << 20
PROCESS_UNITS = {"start_s": "s", "idle_mib": "MiB", "peak_mib": "MiB"}
MACHINE_UNITS = {"read_bandwidth": "GB/s", "f32_peak": "Gop/s", "int8_peak": "Gop/s"}
OURS_FIRST = "the first side of a contest is the one whose ratios are printed"


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


@dataclass(slots=True)
class Samples:
    """Of one side: one value a round under (what, figure)."""

    values: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def add(self, what: str, figure: str, value: float) -> None:
        self.values.setdefault((what, figure), []).append(value)


def read_contest(path: Path, defined: dict[str, str]) -> Contest:
    raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    sides = tuple(
        Side(side["label"], tuple(shlex.split(Template(side["command"]).substitute(defined))), side["url"])
        for side in raw["sides"]
    )
    parted = [line.split() for line in raw["workloads"]]
    return Contest(path.stem, sides, tuple(Workload(preset, tuple(changes)) for preset, *changes in parted))


class MemoryWatch(threading.Thread):
    """Peak PSS of a process tree. PSS counts a page shared by n processes as 1/n in each.

    To sum it up the system walks all pages, some 12 ms a GiB of small ones: so it is sampled seldom enough to take a
    hundredth of a core.
    """

    def __init__(self, root_pid: int) -> None:
        super().__init__(daemon=True)
        self._root_pid = root_pid
        self._done = threading.Event()
        self.peak_bytes = 0

    def run(self) -> None:
        pause_s = 1.0
        while not self._done.wait(pause_s):
            started = time.thread_time()
            self._look()
            pause_s = max(1.0, 100 * (time.thread_time() - started))

    def stop(self) -> int:
        self._done.set()
        self.join()
        self._look()
        return self.peak_bytes

    def _look(self) -> None:
        self.peak_bytes = max(self.peak_bytes, tree_pss(self._root_pid))


def tree_pss(root_pid: int) -> int:
    return sum(_pss(pid) for pid in _tree(root_pid))


def _tree(root_pid: int) -> Iterator[int]:
    yield root_pid
    try:
        children = Path(f"/proc/{root_pid}/task/{root_pid}/children").read_text(encoding="ascii").split()
    except OSError:
        return
    for child in children:
        yield from _tree(int(child))


def _pss(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:  # it ended between the listing and the reading
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


@contextmanager
def running(side: Side, log: Path) -> Iterator[tuple[int, float]]:
    """Starts the side and ends it. Yields its pid and the seconds to its first token."""
    with log.open("ab") as out:
        started = time.monotonic()
        process = subprocess.Popen(side.command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            first_token(side, process, started + START_TIMEOUT_S, log)
            yield process.pid, time.monotonic() - started
        finally:
            end(process)


def first_token(side: Side, process: subprocess.Popen[bytes], deadline: float, log: Path) -> None:
    """Asks for one token until it comes. Raises SystemExit when the side ends or the deadline passes."""
    with httpx.Client(base_url=side.url, timeout=START_TIMEOUT_S) as client:
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise SystemExit(f"{side.label} ended before its first token; see {log}")
            try:
                model = client.get("/v1/models").raise_for_status().json()["data"][0]["id"]
                body = {"model": model, "prompt": [1000, 1001, 1002], "max_tokens": 1, "temperature": 0}
                client.post("/v1/completions", json=body).raise_for_status()
                return
            except (httpx.HTTPError, LookupError):
                time.sleep(0.05)
    raise SystemExit(f"{side.label} gave no token within {START_TIMEOUT_S:.0f} s; see {log}")


def end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            continue


def settle(pid: int) -> None:
    """Waits while an idle engine makes a part of its cache resident, which would take a core from what follows."""
    before, deadline = tree_pss(pid), time.monotonic() + SETTLE_TIMEOUT_S
    while time.monotonic() < deadline:
        time.sleep(SETTLE_STEP_S)
        now = tree_pss(pid)
        if now - before <= SETTLED_BYTES:
            return
        before = now


def measure(side: Side, contest: Contest, folder: Path, number: int, samples: Samples) -> None:
    """One round of one side."""
    with running(side, folder / f"{side.label}.log") as (pid, start_s):
        samples.add("start", "start_s", start_s)
        samples.add("start", "idle_mib", tree_pss(pid) / MIB)
        watch = MemoryWatch(pid)
        watch.start()
        settle(pid)
        rates = rates_now(probe_machine())
        for figure in MACHINE_UNITS:
            samples.add("machine", figure, getattr(rates, figure) / 1e9)
        for workload in contest.workloads:
            output = folder / f"{workload.file_name}-{side.label}-{number}.json"
            bench(side, workload, output)
            for figure, spread in load(output).figures.items():
                samples.add(workload.name, figure, spread.median)
        samples.add("start", "peak_mib", watch.stop() / MIB)


def profile(side: Side, contest: Contest, folder: Path) -> str:
    """Markdown: how near the steps of every workload came to this machine's floor."""
    heads = ("workload", "steps", "tokens a step", "ms a step", "floor, ms", "reached", "of what the machine gave")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    with running(side, folder / f"{side.label}.log") as (pid, _):
        settle(pid)
        for workload in contest.workloads:
            output = folder / f"{workload.file_name}-{side.label}-roofline.json"
            bench(side, workload, output, "--roofline")
            for kind in load(output).rooflines:
                times = f"{kind.seconds * 1e3:.2f} | {kind.floor_s * 1e3:.2f}"
                shares = f"{kind.achieved:.0%} | {kind.achieved_of_given:.0%}"
                lines.append(f"| {workload.name} | {kind.steps} {kind.kind} | {kind.tokens:.1f} | {times} | {shares} |")
    return "\n".join(lines)


def bench(side: Side, workload: Workload, output: Path, *options: str) -> None:
    command = [
        str(Path(sys.executable).with_name("appliance")),
        "bench",
        "serve",
        "--url",
        side.url,
        "--preset",
        workload.preset,
    ]
    command += [part for change in workload.changes for part in ("--with", change)]
    command += ["--with", "repeats=1", "--label", side.label, "--output", str(output), *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def table(contest: Contest, found: dict[str, Samples]) -> str:
    """Markdown: a row a figure, a column a side; others than the first get the ratio (above 1: the first wins)."""
    first, *others = contest.sides
    heads = [first.label] + [cell for side in others for cell in (side.label, "ratio")]
    lines = [f"| workload | figure | {' | '.join(heads)} |", "|---" * (2 + len(heads)) + "|"]
    for what, figure, higher in _rows(contest):
        mine = found[first.label].values.get((what, figure))
        if mine is None:
            continue
        cells = [_cell(figure, mine)]
        for side in others:
            theirs = found[side.label].values.get((what, figure))
            cells += [_cell(figure, theirs), _ratio(mine, theirs, higher)] if theirs else ["-", "-"]
        lines.append(f"| {what} | {figure} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _rows(contest: Contest) -> Iterator[tuple[str, str, bool]]:
    yield from (("start", figure, False) for figure in PROCESS_UNITS)
    yield from (("machine", figure, True) for figure in MACHINE_UNITS)
    for workload in contest.workloads:
        yield from ((workload.name, figure, higher) for figure, higher in FIGURES)


def _cell(figure: str, values: Sequence[float]) -> str:
    known = PROCESS_UNITS | MACHINE_UNITS
    unit, factor = (known[figure], 1.0) if figure in known else unit_of(figure)
    low, middle, high = (factor * value for value in (min(values), statistics.median(values), max(values)))
    return f"{middle:.4g} {unit} ({low:.4g}-{high:.4g}, n={len(values)})"


def _ratio(mine: Sequence[float], theirs: Sequence[float], higher: bool) -> str:
    top, bottom = statistics.median(mine), statistics.median(theirs)
    if not higher:
        top, bottom = bottom, top
    return f"{top / bottom:.2f}" if bottom else "-"


def run(contest: Contest, folder: Path, rounds: int, with_roofline: bool) -> None:
    """Writes and prints the contest's tables; those of the rounds so far are in the file after each."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {side.label: Samples() for side in contest.sides}
    report = folder.with_suffix(".md")
    for number in range(rounds):
        for side in contest.sides:
            measure(side, contest, folder, number, found[side.label])
            sys.stderr.write(f"{contest.name}, round {number + 1}/{rounds}: {side.label} measured\n")
        report.write_text(table(contest, found) + "\n", encoding="utf-8")
    if with_roofline:
        with report.open("a", encoding="utf-8") as file:
            file.write(f"\n{profile(contest.sides[0], contest, folder)}\n")
    sys.stdout.write(f"## {contest.name}\n\n{report.read_text(encoding='utf-8')}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("contests", type=Path, nargs="+", metavar="CONTEST.yaml")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--define", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--only", nargs="+", metavar="LABEL", help=OURS_FIRST)
    parser.add_argument("--roofline", action="store_true")
    given = parser.parse_args()
    defined = dict(pair.split("=", 1) for pair in given.define)
    contests = [read_contest(path, defined) for path in given.contests]
    for contest in contests:
        sides = tuple(side for side in contest.sides if not given.only or side.label in given.only)
        kept = Contest(contest.name, sides, contest.workloads)
        run(kept, given.results / contest.name, given.rounds, given.roofline)


if __name__ == "__main__":
    main()
