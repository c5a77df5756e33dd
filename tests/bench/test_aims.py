"""The contests of docs/benchmarks: every aim can be judged, and is judged by the figures that rounds left."""

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
import yaml

from appliance.bench.result import FIGURES, save
from appliance.bench.roofline import Roofline

from .test_result import result

BENCHMARKS = Path(__file__).parents[2] / "docs" / "benchmarks"
NAMES = (
    *("APPLIANCE", "LLAMA", "VLLM", "OPENVINO", "FOLDER", "FOLDER_W8A8", "FOLDER_REAL"),
    *("MODEL_BF16", "MODEL_Q8", "MODEL_Q4_0", "MODEL_05B", "MODEL_15B", "MODEL_GEMMA"),
)
CONTEST = """\
workloads: [single num_prompts=2, offline64]
sides:
  - {label: ours, command: ours, url: "http://127.0.0.1:1"}
  - {label: slow, command: slow, url: "http://127.0.0.1:2"}
  - {label: quick, command: quick, url: "http://127.0.0.1:3"}
"""
# Seconds a token, of two rounds each.
STEPS = {"ours": (0.1, 0.11), "slow": (0.4, 0.4), "quick": (0.2, 0.2)}


@pytest.fixture(scope="module")
def benchmarks() -> Iterator[Mapping[str, ModuleType]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield {name: importlib.import_module(name) for name in ("contest", "versus", "pages", "aims")}


@pytest.fixture
def results(benchmarks: Mapping[str, ModuleType], tmp_path: Path) -> Path:
    """A folder as two rounds of CONTEST leave it, and a roofline of ours."""
    (tmp_path / "c.yaml").write_text(CONTEST)
    contest = benchmarks["contest"].read_contest(tmp_path / "c.yaml", {})
    folder = tmp_path / "c"
    folder.mkdir()
    for side in contest.sides:
        for number, step in enumerate(STEPS[side.label]):
            for workload in contest.workloads:
                save(result(side.label, step), contest.result_file(folder, workload, side, number))
            own = {"start": {"start_s": 2.0 + number, "idle_mib": 9.0}, "machine": {"read_bandwidth": 30.0}}
            contest.round_file(folder, side, number).write_text(json.dumps(own))
    decodes = Roofline(kind="decode", steps=9, tokens=1.0, seconds=2.0, floor_s=1.0, parts=(), given_floor_s=1.5)
    others = [msgspec.structs.replace(decodes, kind=kind, given_floor_s=1.0) for kind in ("mixed", "prefill")]
    mixed, prefill = (
        msgspec.structs.replace(each, seconds=4.0, steps=n) for each, n in zip(others, (9, 1), strict=True)
    )
    profiled = msgspec.structs.replace(result("ours", 0.1), rooflines=(mixed, decodes, prefill))
    save(profiled, contest.result_file(folder, contest.workloads[0], contest.sides[0], "roofline"))
    return tmp_path


def judged(benchmarks: Mapping[str, ModuleType], results: Path, **fields: object) -> list[str]:
    """Returns the cells after work, aim and rounds: ours, the peer's, ratio, share."""
    contest = benchmarks["contest"].read_contest(results / "c.yaml", {})
    raw = {"work": "w", "contest": "c", "value": "single num_prompts=2 decode_throughput", **fields}
    folder = results / "c"
    figures = benchmarks["contest"].read_figures(contest, folder)
    work, _, rounds, *cells = benchmarks["aims"].row(benchmarks["aims"].Aim.read(raw), contest, figures, folder)
    assert (work, rounds) == ("w", "2")
    return cells


def test_every_aim_names_figures_that_its_contest_measures(benchmarks: Mapping[str, ModuleType]) -> None:
    raw = yaml.safe_load((BENCHMARKS / "aims.yaml").read_text())
    contests = benchmarks["aims"].read_contests(raw["contests"], dict.fromkeys(NAMES, "x"))
    assert contests.keys() == raw["contests"].keys()
    own = {(what, figure) for what, figures in benchmarks["contest"].UNITS.items() for figure in figures}
    for entry in raw["aims"]:
        aim, contest = benchmarks["aims"].Aim.read(entry), contests[entry["contest"]]
        measured = own | {(workload.name, figure) for workload in contest.workloads for figure, _ in FIGURES}
        for value in filter(None, (aim.value, aim.than)):
            assert (value.workload, value.figure) in measured, entry
        assert set(aim.against) <= {side.label for side in contest.sides[1:]}, entry
        assert len(contest.sides) > 1 or aim.than or aim.is_absolute, entry
        assert [aim.bound.at_least, aim.bound.at_most].count(None) == 1, entry


def test_a_ratio_is_to_the_best_peer_and_bold_where_it_is_short(
    benchmarks: Mapping[str, ModuleType], results: Path
) -> None:
    ours, peer, ratio, _ = judged(benchmarks, results, at_least=1.5)
    assert ours == "12.7 tok/s (12.1-13.3)"
    assert peer == "quick 6.67 tok/s (6.67-6.67)"
    assert ratio == "1.91 (1.82-2.00)"
    assert judged(benchmarks, results, at_least=2.0)[2] == "**1.91** (1.82-2.00)"
    assert judged(benchmarks, results, at_least=2.0, against=["slow"])[2] == "3.82 (3.64-4.00)"


def test_a_time_is_kept_from_above(benchmarks: Mapping[str, ModuleType], results: Path) -> None:
    fields = {"value": "offline64 itl_p50"}
    assert judged(benchmarks, results, at_most=0.6, **fields)[1].startswith("quick")
    assert judged(benchmarks, results, at_most=0.6, **fields)[2].startswith("0.5")
    assert judged(benchmarks, results, at_most=0.5, **fields)[2].startswith("**0.5")


def test_a_value_may_stand_alone_or_beside_another_of_ours(benchmarks: Mapping[str, ModuleType], results: Path) -> None:
    start = {"value": "start start_s", "absolute": True}
    assert judged(benchmarks, results, at_most=2.5, **start)[0] == "2.5 s (2-3)"
    assert judged(benchmarks, results, at_most=2.4, **start)[0] == "**2.5 s (2-3)**"
    beside = judged(benchmarks, results, than="offline64 decode_throughput", at_least=1.0)
    assert beside[1].startswith("itself")
    assert beside[2] == "1.00 (1.00-1.00)"


def test_a_share_of_the_floor_is_of_the_profiled_run(benchmarks: Mapping[str, ModuleType], results: Path) -> None:
    assert judged(benchmarks, results, at_least=1.0, floor=0.5)[3] == "50%: decode 50% (75%)"
    assert judged(benchmarks, results, at_least=1.0, floor=0.6)[3] == "60%: decode **50%** (75%)"
    assert judged(benchmarks, results, at_least=1.0)[3] == "decode 50% (75%)"
    crowd = {"value": "single num_prompts=2 total_throughput"}
    assert judged(benchmarks, results, at_least=1.0, **crowd)[3] == "mixed 25% (25%), decode 50% (75%)"
    assert judged(benchmarks, results, at_least=1.0, value="offline64 decode_throughput")[3] == ""


def test_only_rounds_that_are_missing_run(
    benchmarks: Mapping[str, ModuleType], results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contest = benchmarks["contest"].read_contest(results / "c.yaml", {})
    measured: list[tuple[str, int]] = []
    monkeypatch.setattr(
        benchmarks["versus"], "measure", lambda side, _, __, number: measured.append((side.label, number))
    )
    table = benchmarks["versus"].run(contest, results / "c", 3, with_roofline=False)
    assert measured == [("ours", 2), ("slow", 2), ("quick", 2)]
    assert "n=2" in table
    (results / "c" / "single-num_prompts2-slow-0.json").unlink()
    measured.clear()
    benchmarks["versus"].run(contest, results / "c", 2, with_roofline=False)
    assert measured == [("slow", 0)]


def test_a_contest_that_lacks_a_definition_is_left_out(
    benchmarks: Mapping[str, ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    raw = yaml.safe_load((BENCHMARKS / "aims.yaml").read_text())
    defined = dict.fromkeys(set(NAMES) - {"OPENVINO"}, "x")
    assert "q8" not in benchmarks["aims"].read_contests(raw["contests"], defined)
    assert "q8: not measured, as OPENVINO is not defined" in capsys.readouterr().err


def test_mapped_model_files_are_told_from_memory_of_its_own(
    benchmarks: Mapping[str, ModuleType], tmp_path: Path
) -> None:
    size = 80 << 20
    with (tmp_path / "weights.bin").open("wb") as file:
        file.truncate(size)
    code = (
        "import mmap, sys\n"
        "file = open(sys.argv[1], 'rb')\n"
        "weights = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)\n"
        "touched = sum(weights[::4096])\n"
        "own = bytearray(b'x') * (40 << 20)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "weights.bin")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        whole = benchmarks["versus"].tree_pss(process.pid)
        mapped = benchmarks["versus"].model_files_pss(process.pid)
        process.communicate("")
    assert mapped == size
    assert whole - mapped > 40 << 20


def test_pages_say_what_their_runs_say(benchmarks: Mapping[str, ModuleType]) -> None:
    pages = benchmarks["pages"].pages()
    assert len(pages) > 2
    for path, text in pages.items():
        assert path.read_text() == text, f"{path.name} is stale: run python docs/benchmarks/pages.py"
        assert len(text.splitlines()) <= 60, f"{path.name} is too long to read"


def test_a_run_keeps_every_round_behind_its_rows(benchmarks: Mapping[str, ModuleType], results: Path) -> None:
    contest = benchmarks["contest"].read_contest(results / "c.yaml", {})
    figures = {"c": benchmarks["contest"].read_figures(contest, results / "c")}
    raw = {"work": "w", "contest": "c", "value": "single num_prompts=2 decode_throughput", "at_least": 1.5}
    aim = benchmarks["aims"].Aim.read(raw)
    cells = benchmarks["aims"].row(aim, contest, figures["c"], results / "c")
    record = benchmarks["aims"].run_record("Here", [aim], figures, [cells])
    (row,) = record["rows"]
    assert row["ratio"] == "1.91 (1.82-2.00)"
    assert {label: len(values) for label, values in row["values"].items()} == {"ours": 2, "slow": 2, "quick": 2}
    assert "| w | 1.5 | 2 | 12.7 tok/s (12.1-13.3) |" in benchmarks["pages"].page("here", record)
