"""`appliance tune`: measures settings of the scheduler, and writes the best into a copy of the spec."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from appliance.base.environ import cache_dir
from appliance.base.errors import ApplianceError, ExitCode
from appliance.bench.changes import parse_changes
from appliance.bench.offline import run_closed
from appliance.bench.record import RoundFigures, summarize
from appliance.bench.run import DEFAULT_VOCAB_SIZE
from appliance.bench.scenario import PRESETS, Scenario
from appliance.bench.tune import Settings, Trial, Tuned, tune
from appliance.cli.arguments.bench import TuneArguments
from appliance.cli.own_logs import configure_own_logs
from appliance.cli.spec_target import SpecTarget, spec_target
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


def run(arguments: TuneArguments) -> int:
    """Runs the trials. Raises ApplianceError if the spec cannot be planned, or its text has no place for a value."""
    work, spec = _work(arguments), spec_target(arguments.spec, arguments.overrides)
    configure_own_logs()
    prepared = prepare(*spec)
    if prepared.plan.model.pooling is not None:
        hint = "compare settings of scheduler.max_num_batched_tokens by bench embed"
        raise ApplianceError("trials count generated tokens, and this model pools", hint=hint)
    vocab_size = min(prepared.model.geometry.vocab_size, DEFAULT_VOCAB_SIZE)
    tell: Callable[[Trial], None] = (lambda trial: None) if arguments.as_json else (lambda trial: print(_line(trial)))
    found = tune(
        lambda settings: _planned(spec, settings),
        lambda plan: measured(plan, work, vocab_size),
        time.monotonic,
        arguments.seconds,
        tell,
    )
    target = arguments.output or Path(spec.path).with_suffix(".tuned.yaml")
    changes = changed(found)
    text = tuned_text(read_text(Path(spec.path), spec.path), found, work)
    evidence = target.with_suffix(".trials.json")
    evidence.write_bytes(msgspec.json.format(msgspec.json.encode({"workload": work, "trials": found.trials}), indent=1))
    target.write_text(text, encoding="utf-8")
    if arguments.as_json:
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
    """Returns the values in which the best setting differs from the spec."""
    before = found.trials[0].settings
    return {path: value for path, value in found.best.settings.items() if value != before[path]}


def tuned_text(text: str, found: Tuned, work: Scenario) -> str:
    """Returns the spec with the best values, and below it the evidence as comments. Raises ApplianceError."""
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


def _work(arguments: TuneArguments) -> Scenario:
    if arguments.preset is None:
        work = WORK
    elif arguments.preset in PRESETS:
        work = msgspec.structs.replace(PRESETS[arguments.preset], repeats=1)
    else:
        raise ApplianceError(f"no preset named {arguments.preset!r}", hint=f"known: {', '.join(sorted(PRESETS))}")
    return msgspec.structs.replace(work, **parse_changes(arguments.changes))


def _planned(spec: SpecTarget, settings: Settings) -> EnginePlan | None:
    """Plans a setting; None if it does not fit. Raises ApplianceError if the spec itself is wrong."""
    wanted = [f"{path}={value}" for path, value in settings.items()]
    try:
        return prepare(spec.path, [*spec.overrides, *wanted]).plan
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
