"""`appliance tune`: measures settings of the scheduler, and writes the best into a copy of the spec."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from appliance.base.environ import cache_dir
from appliance.base.errors import ApplianceError, ExitCode
from appliance.bench.offline import run_closed
from appliance.bench.record import RoundFigures, summarize
from appliance.bench.run import DEFAULT_VOCAB_SIZE
from appliance.bench.scenario import PRESETS, Scenario
from appliance.bench.tune import Settings, Trial, Tuned, tune
from appliance.engine.boot import boot
from appliance.engine.inproc import InprocEngine
from appliance.plan.prepare import prepare
from appliance.plan.types import EnginePlan
from appliance.service.text_side import load_text_side
from appliance.spec.edit import EditError, with_values
from appliance.spec.reading import read_text

WORK = Scenario(
    name="tune", num_prompts=24, input_len=256, range_ratio=0.5, output_len=64, max_concurrency=16, num_warmups=1
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """What the command line said. `changes` are fields of the workload that it set."""

    spec: str
    overrides: Sequence[str] = ()
    preset: str | None = None
    changes: dict[str, Any]
    seconds: float
    output: Path | None = None
    as_json: bool = False


def run(options: TuneOptions) -> int:
    """Raises ApplianceError when the spec cannot be planned, or is written so that a value has no place."""
    work = _work(options)
    vocab_size = min(prepare(options.spec, options.overrides).model.geometry.vocab_size, DEFAULT_VOCAB_SIZE)
    tell: Callable[[Trial], None] = (lambda trial: None) if options.as_json else (lambda trial: print(_line(trial)))
    found = tune(
        lambda settings: _planned(options, settings),
        lambda plan: measured(plan, work, vocab_size),
        time.monotonic,
        options.seconds,
        tell,
    )
    target = options.output or Path(options.spec).with_suffix(".tuned.yaml")
    changes = changed(found)
    text = tuned_text(read_text(Path(options.spec), options.spec), found, work)
    evidence = target.with_suffix(".trials.json")
    evidence.write_bytes(msgspec.json.format(msgspec.json.encode({"workload": work, "trials": found.trials}), indent=1))
    target.write_text(text, encoding="utf-8")
    if options.as_json:
        shown = {"spec": str(target), "evidence": str(evidence), "changes": changes, "best": found.best}
        print(msgspec.json.encode(shown).decode())
    else:
        print(f"{target}: {_changes_text(found)}; every trial is in {evidence}")
    return int(ExitCode.OK)


def measured(plan: EnginePlan, work: Scenario, vocab_size: int) -> RoundFigures:
    """Measures one round on an engine in this process, whose steps are paced as in a server."""
    eos_token_ids = () if work.ignore_eos else load_text_side(plan, cache_dir()).eos_token_ids
    with InprocEngine(boot(plan, lambda phase: None)) as engine:
        return summarize(run_closed(work, engine, eos_token_ids, vocab_size), plan.slo)


def changed(found: Tuned) -> dict[str, int]:
    """What the best setting has other than the spec."""
    before = found.trials[0].settings
    return {path: value for path, value in found.best.settings.items() if value != before[path]}


def tuned_text(text: str, found: Tuned, work: Scenario) -> str:
    """The spec with the best values, and below it the evidence as comments. Raises ApplianceError."""
    try:
        edited = with_values(text, changed(found))
    except EditError as error:
        raise ApplianceError(f"the spec cannot be edited: {error}", hint="write the section as a mapping") from error
    first = found.trials[0]
    why = "each neighbour was tried" if found.is_complete else "the time was up before each neighbour was tried"
    lines = [
        f"appliance tune, {datetime.now(UTC).date().isoformat()}: {len(found.trials)} trials; {why}.",
        f"{work.num_prompts} prompts of {work.input_len} tokens, {work.output_len} out,"
        f" {work.max_concurrency or work.num_prompts} at once.",
        f"before: {_line(first)}",
        f"after:  {_line(found.best)}",
    ]
    return f"{edited.rstrip()}\n\n" + "".join(f"# {line.rstrip()}\n" for line in lines)


def _work(options: TuneOptions) -> Scenario:
    if options.preset is None:
        work = WORK
    elif options.preset in PRESETS:
        work = msgspec.structs.replace(PRESETS[options.preset], repeats=1)
    else:
        raise ApplianceError(f"no preset named {options.preset!r}", hint=f"known: {', '.join(sorted(PRESETS))}")
    return msgspec.structs.replace(work, **options.changes)


def _planned(options: TuneOptions, settings: Settings) -> EnginePlan | None:
    """Plans a setting; None when it does not fit. Raises what is wrong with the spec itself."""
    wanted = [f"{path}={value}" for path, value in settings.items()]
    try:
        return prepare(options.spec, [*options.overrides, *wanted]).plan
    except ApplianceError:
        if not settings:
            raise
        return None


def _changes_text(found: Tuned) -> str:
    before = found.trials[0].settings
    named = [f"{path} {before[path]} -> {value}" for path, value in changed(found).items()]
    return ", ".join(named) or "nothing better was found"


def _line(trial: Trial) -> str:
    settings = " ".join(f"{path.partition('.')[2]}={value}" for path, value in trial.settings.items())
    times = ", ".join(
        f"{name} p95 {value * 1e3:.0f} ms"
        for name, value in (("ttft", trial.ttft_p95), ("itl", trial.itl_p95))
        if value
    )
    missed = f", misses {len(trial.missed)} targets" if trial.missed else ""
    return f"{settings}: {trial.output_throughput:.1f} tok/s, {times}{missed}"
