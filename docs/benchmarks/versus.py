"""Measures several servers on the same model and work, in turn, round by round, and prints medians, spread and ratios.

    python docs/benchmarks/versus.py RESULTS CONTEST.yaml ... [--rounds 3] [--define NAME=VALUE ...] [--only LABEL ...]
        [--roofline]

A contest names the sides (a command that serves in the foreground, and its URL) and the workloads.
Every round starts each side, waits for its first token, measures every workload once, and ends it: a slow minute of a
shared machine then hurts one round of one side, not one side. `${NAME}` in a command comes from --define. Needs an idle
machine.

Start is the time from the command to the first token of a one-token completion. Memory is PSS of the process tree: idle
after the first token, with and without the model files that it maps, and the peak while the workloads run. The rows
`machine` say what bandwidth and peaks were there before each side's workloads, when its memory had stopped growing (or
after a minute): on a shared machine a side may have had more of it than another.

--roofline runs the first side once more behind the rounds, profiled: for each kind of step, how much of this machine's
floor (`appliance doctor --measure`) it reached, and how much of what the machine gave around the run. That side must
serve its debug routes.

What RESULTS holds already is not measured again: the same command goes on where it was stopped, and with more --rounds
it adds some.
"""

import argparse
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
from contest import MACHINE, START, UNITS, Contest, Figures, Side, Workload, in_unit, ratio, read_contest, read_figures

from appliance.bench.machine import rates_now
from appliance.bench.result import FIGURES, load
from appliance.hardware import probe_machine

START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 20.0
SETTLE_STEP_S, SETTLE_TIMEOUT_S = 2.0, 60.0
SETTLED_BYTES = 16 << 20  # that a settled engine grows by at most in a step
MODEL_FILE_BYTES = 64 << 20  # a mapped file of as much that is no library holds weights
MIB = 1 << 20
OURS_FIRST = "the first side of a contest is the one whose ratios are printed"


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
    return sum(size for _, size in _pss_of(pid, "smaps_rollup"))


def model_files_pss(root_pid: int) -> int:
    """What of the tree's PSS are weights that it maps from files, rather than memory of its own."""
    found: dict[str, int] = {}
    for pid in _tree(root_pid):
        for path, size in _pss_of(pid, "smaps"):
            if path.startswith("/") and ".so" not in Path(path).name:
                found[path] = found.get(path, 0) + size
    return sum(size for size in found.values() if size >= MODEL_FILE_BYTES)


def _pss_of(pid: int, name: str) -> Iterator[tuple[str, int]]:
    """What a mapping is of, and its bytes, by proc_pid_smaps(5)."""
    try:
        lines = Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # it ended between the listing and the reading
        return
    path = ""
    for line in lines:
        first, *rest = line.split(maxsplit=5)
        if not first.endswith(":"):
            path = rest[4] if len(rest) == 5 else ""
        elif first == "Pss:":
            yield path, int(rest[0]) * 1024


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


def measure(side: Side, contest: Contest, folder: Path, number: int) -> None:
    """One round of one side, whose figures it leaves in the folder."""
    with running(side, folder / f"{side.label}.log") as (pid, start_s):
        idle = tree_pss(pid)
        beyond = (idle - model_files_pss(pid)) / MIB
        start = {"start_s": start_s, "idle_mib": idle / MIB, "beyond_weights_mib": beyond}
        watch = MemoryWatch(pid)
        watch.start()
        settle(pid)
        rates = rates_now(probe_machine())
        for workload in contest.workloads:
            bench(side, workload, contest.result_file(folder, workload, side, number))
        start["peak_mib"] = watch.stop() / MIB
    machine = {figure: getattr(rates, figure) / 1e9 for figure in UNITS[MACHINE]}
    text = json.dumps({START: start, MACHINE: machine}, indent=1)
    contest.round_file(folder, side, number).write_text(text, encoding="utf-8")


def profile(side: Side, contest: Contest, folder: Path) -> None:
    """Measures each workload once more, with the floor of its steps, where that is not done."""
    files = {workload: contest.result_file(folder, workload, side, "roofline") for workload in contest.workloads}
    if all(file.exists() for file in files.values()):
        return
    with running(side, folder / f"{side.label}.log") as (pid, _):
        settle(pid)
        for workload, file in files.items():
            bench(side, workload, file, "--roofline")


def profile_table(side: Side, contest: Contest, folder: Path) -> str:
    """Markdown: how near the steps of every workload came to this machine's floor."""
    heads = ("workload", "steps", "tokens a step", "ms a step", "floor, ms", "reached", "of what the machine gave")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for workload in contest.workloads:
        for kind in load(contest.result_file(folder, workload, side, "roofline")).rooflines:
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


def table(contest: Contest, found: Mapping[str, Figures]) -> str:
    """Markdown: a row a figure, a column a side; others than the first get the ratio (above 1: the first wins)."""
    first, *others = contest.sides
    heads = [first.label] + [cell for side in others for cell in (side.label, "ratio")]
    lines = [f"| workload | figure | {' | '.join(heads)} |", "|---" * (2 + len(heads)) + "|"]
    for what, figure, higher in _rows(contest):
        mine = found[first.label].of(what, figure)
        if not mine:
            continue
        cells = [_cell(what, figure, mine.values())]
        for side in others:
            theirs = found[side.label].of(what, figure)
            won = (ratio(mine, theirs) if higher else ratio(theirs, mine)) if theirs else None
            cells += (
                [_cell(what, figure, theirs.values()), f"{won:.2f}" if math.isfinite(won) else "-"]
                if won is not None
                else ["-", "-"]
            )
        lines.append(f"| {what} | {figure} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _rows(contest: Contest) -> Iterator[tuple[str, str, bool]]:
    yield from ((START, figure, False) for figure in UNITS[START])
    yield from ((MACHINE, figure, True) for figure in UNITS[MACHINE])
    for workload in contest.workloads:
        yield from ((workload.name, figure, higher) for figure, higher in FIGURES)


def _cell(what: str, figure: str, values: Iterable[float]) -> str:
    unit, scaled = in_unit(what, figure, values)
    return f"{statistics.median(scaled):.4g} {unit} ({min(scaled):.4g}-{max(scaled):.4g}, n={len(scaled)})"


def run(contest: Contest, folder: Path, rounds: int, *, with_roofline: bool) -> str:
    """Measures what the folder lacks. Gives the contest's tables, which are beside it as Markdown after each round."""
    folder.mkdir(parents=True, exist_ok=True)
    report = folder.parent / f"{folder.name}.md"
    for number in range(rounds):
        for side in contest.sides:
            if not contest.is_measured(folder, side, number):
                measure(side, contest, folder, number)
                sys.stderr.write(f"{contest.name}, round {number + 1}/{rounds}: {side.label} measured\n")
        report.write_text(table(contest, read_figures(contest, folder)) + "\n", encoding="utf-8")
    if with_roofline:
        profile(contest.sides[0], contest, folder)
        with report.open("a", encoding="utf-8") as file:
            file.write(f"\n{profile_table(contest.sides[0], contest, folder)}\n")
    return f"## {contest.name}\n\n{report.read_text(encoding='utf-8')}\n"


def add_run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--define", action="append", default=[], metavar="NAME=VALUE")


def definitions(pairs: Iterable[str]) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("contests", type=Path, nargs="+", metavar="CONTEST.yaml")
    parser.add_argument("--only", nargs="+", metavar="LABEL", help=OURS_FIRST)
    parser.add_argument("--roofline", action="store_true")
    add_run_options(parser)
    given = parser.parse_args()
    contests = [read_contest(path, definitions(given.define)) for path in given.contests]
    for contest in contests:
        sides = tuple(side for side in contest.sides if not given.only or side.label in given.only)
        kept = Contest(contest.name, sides, contest.workloads)
        sys.stdout.write(run(kept, given.results / contest.name, given.rounds, with_roofline=given.roofline))


if __name__ == "__main__":
    main()
