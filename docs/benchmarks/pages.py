"""Writes the result pages from the runs that are kept in runs/: one page for each machine, and the table of all.

    python docs/benchmarks/pages.py [--check]

A run is the file `run.json` that `aims.py` leaves; copy it to runs/MACHINE.json to make it that machine's latest. With
--check nothing is written, and the exit code is 2 where a page is not what its run says.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
HEADS = ("work", "aim", "rounds", "appliance", "best peer", "ratio", "of the floor")
COLUMNS = ("work", "aim", "rounds", "ours", "peer", "ratio", "floor")
Run = dict[str, Any]
_HEAD = """# Results

Generated from the runs in [runs/](runs) by `python docs/benchmarks/pages.py`. Do not edit.

How this engine compares with the best other server for the same work, on two cores of each machine. All sides run in
turn on the same model in the same precision, asked by the same client. A ratio is ours to the best peer's; **bold** is
short of the aim. [How it is measured](README.md), [accuracy](results/accuracy.md), [starting and
HTTP](results/parts.md). What was tried, and what each change brought, is in the commits.

"""


def page(name: str, run: Run) -> str:
    """The page of one machine: its latest run."""
    lines = [
        f"# {run['title']}",
        "",
        f"Generated from [runs/{name}.json](../runs/{name}.json) by `python docs/benchmarks/pages.py`. Do not edit.",
        "",
        f"{run['date']}. {run['machine']}",
        "",
        *run["notes"],
        *([""] if run["notes"] else []),
        "Medians of the rounds (least-greatest); **bold** is short of the aim.",
        "[Command and workloads](../README.md#against-other-servers).",
        "",
        *_table(HEADS, ([_text(row[column]) for column in COLUMNS] for row in run["rows"])),
    ]
    return "\n".join(lines) + "\n"


def overview(runs: dict[str, Run]) -> str:
    """The ratios of every machine beside each other, in the order of the run that has most."""
    longest_first = sorted(runs.values(), key=lambda run: -len(run["rows"]))
    works = list(dict.fromkeys(row["work"] for run in longest_first for row in run["rows"]))
    cells = {(name, row["work"]): row for name, run in runs.items() for row in run["rows"]}
    heads = ("work", "aim", *(f"[{run['title']}](results/{name}.md)" for name, run in runs.items()))
    rows = [[work, _aim(work, runs), *(_told(cells.get((name, work))) for name in runs)] for work in works]
    return _HEAD + "\n".join(_table(heads, rows)) + "\n"


def pages() -> dict[Path, str]:
    """Text of each generated page, by its path."""
    runs = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted((HERE / "runs").glob("*.json"))}
    runs = dict(sorted(runs.items(), key=lambda item: str(item[1]["date"]), reverse=True))
    own = {HERE / "results" / f"{name}.md": page(name, run) for name, run in runs.items()}
    return {**own, HERE / "results.md": overview(runs)}


def _aim(work: str, runs: dict[str, Run]) -> str:
    return next(_text(row["aim"]) for run in runs.values() for row in run["rows"] if row["work"] == work)


def _told(row: dict[str, Any] | None) -> str:
    """The ratio where there is one; the figure itself where it stands alone."""
    return "" if row is None else _text(row["ratio"] or row["ours"])


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _table(heads: tuple[str, ...], rows: Any) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for cells in rows:
        yield f"| {' | '.join(cells)} |"


def main() -> int:
    """Writes the pages, or compares them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = [path for path, text in pages().items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        if check:
            sys.stderr.write(f"{path.relative_to(HERE)} is stale: run `python docs/benchmarks/pages.py`\n")
        else:
            path.write_text(pages()[path], encoding="utf-8")
    return 2 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
