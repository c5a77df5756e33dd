"""The search on made-up figures, and the whole verb on the scripted engine."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from appliance.base.errors import ApplianceError
from appliance.bench.record import MeasuredRequest, RoundFigures, summarize
from appliance.bench.tune import LADDERS, Settings, Tuned, tune
from appliance.cli import tune as verb
from appliance.cli.arguments.bench import TuneArguments
from appliance.engine.scripted import Script
from appliance.plan.types import EnginePlan
from appliance.spec import load_text
from tests.engine.plans import scripted_plan

SEQS, TOKENS = "scheduler.max_num_seqs", "scheduler.max_num_batched_tokens"


def with_settings(plan: EnginePlan, settings: Settings) -> EnginePlan | None:
    """Returns the plan; None if a step could not hold one token per sequence, which the planner refuses."""
    fields = {path.partition(".")[2]: value for path, value in settings.items()}
    scheduler = msgspec.structs.replace(plan.scheduler, **fields)
    if scheduler.max_num_batched_tokens < scheduler.max_num_seqs:
        return None
    return msgspec.structs.replace(plan, scheduler=scheduler)


def figures(tokens_per_s: float, ttft_s: float, slo: dict[str, float]) -> RoundFigures:
    record = MeasuredRequest(
        started=0.0, finished=1.0, token_times=[ttft_s, 1.0], token_counts=[1, 1], input_tokens=1,
        output_tokens=round(1000 * tokens_per_s),
    )  # fmt: skip
    return summarize([record], slo)


class Search:
    """`speed` and `first` of a plan's max_num_seqs; each trial takes ten seconds of a clock."""

    def __init__(
        self, folder: Path, speed: Callable[[int], float], first: Callable[[int], float], **slo: float
    ) -> None:
        self.now = 0.0
        self._plan = msgspec.structs.replace(scripted_plan(folder, max_num_batched_tokens=256), slo=slo)
        self._speed = speed
        self._first = first

    def run(self, budget_s: float = 1e6) -> Tuned:
        return tune(lambda settings: with_settings(self._plan, settings), self.measure, lambda: self.now, budget_s)

    def measure(self, plan: EnginePlan) -> RoundFigures:
        self.now += 10.0
        seqs = plan.scheduler.max_num_seqs
        return figures(self._speed(seqs), self._first(seqs), plan.slo)


def test_the_fastest_is_found_and_nothing_is_measured_twice(tmp_path: Path) -> None:
    found = Search(tmp_path, lambda seqs: 100 - abs(seqs - 64), lambda seqs: 0.1).run()
    assert found.trials[0].settings[SEQS] == 8
    assert found.best.settings == {**found.trials[0].settings, SEQS: 64}
    assert found.is_complete
    settings = [tuple(trial.settings.items()) for trial in found.trials]
    assert len(set(settings)) == len(settings)


def test_a_kept_target_goes_before_speed(tmp_path: Path) -> None:
    found = Search(tmp_path, float, lambda seqs: seqs / 100, ttft_p95=0.2).run()
    assert (found.best.settings[SEQS], found.best.missed) == (16, [])


def test_a_noisy_gain_changes_nothing(tmp_path: Path) -> None:
    found = Search(tmp_path, lambda seqs: 100 + seqs / 1000, lambda seqs: 0.1).run()
    assert found.best is found.trials[0]
    assert verb.changed(found) == {}


def test_the_search_ends_in_time(tmp_path: Path) -> None:
    search = Search(tmp_path, float, lambda seqs: 0.1)
    found = search.run(budget_s=25.0)
    assert (len(found.trials), found.is_complete) == (2, False)
    assert search.now <= 25.0


def test_what_cannot_be_planned_is_passed_over(tmp_path: Path) -> None:
    found = Search(tmp_path, float, lambda seqs: 0.1).run()
    assert found.best.settings[SEQS] == 256  # 512 sequences would not fit in a step of 256 tokens
    assert all(trial.settings[TOKENS] >= trial.settings[SEQS] for trial in found.trials)


SPEC = """\
# a spec with a comment
api_version: appliance/v1
kind: Deployment
name: tuned
model: {source: hf://a/b}
scheduler:
  max_num_seqs: 1  # too few
"""


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spec whose plan is a scripted engine of slow steps, so that more at once are faster."""
    spec = tmp_path / "deployment.yaml"
    spec.write_text(SPEC)
    base = scripted_plan(tmp_path, Script(step_seconds=0.002), max_num_seqs=1)

    def prepare(path: str, overrides: list[str]) -> Any:
        settings = {name: int(value) for name, value in (each.split("=") for each in overrides)}
        plan = with_settings(base, settings)
        if plan is None:
            raise ApplianceError("does not fit")
        return SimpleNamespace(plan=plan, model=SimpleNamespace(geometry=SimpleNamespace(vocab_size=512)))

    monkeypatch.setattr(verb, "prepare", prepare)
    monkeypatch.setitem(LADDERS, TOKENS, (64, 128))
    monkeypatch.setitem(LADDERS, SEQS, (1, 2, 4))
    return spec


def test_the_verb_writes_the_best_spec_with_the_evidence(scripted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work = ("num_prompts=8", "input_len=16", "output_len=8", "max_concurrency=4", "range_ratio=0.0")
    assert verb.run(TuneArguments(spec=str(scripted), changes=work, seconds=60.0)) == 0
    out = capsys.readouterr().out
    target = scripted.with_suffix(".tuned.yaml")
    text = target.read_text()
    assert scripted.read_text() == SPEC
    assert "# a spec with a comment\n" in text
    assert "max_num_seqs: 4  # too few\n" in text
    assert load_text(text, "tuned.yaml", (), {}).spec.scheduler.max_num_seqs == 4
    assert "# before: max_num_seqs=1 " in text
    assert "scheduler.max_num_seqs 1 -> 4" in out
    evidence = json.loads(target.with_suffix(".trials.json").read_text())
    assert evidence["workload"]["num_prompts"] == 8
    assert evidence["trials"][0]["settings"][SEQS] == 1
    assert len(evidence["trials"]) >= 3


def test_a_preset_that_is_not_there_is_named(scripted: Path) -> None:
    with pytest.raises(ApplianceError, match="no preset named 'x'"):
        verb.run(TuneArguments(spec=str(scripted), preset="x", seconds=1.0))
