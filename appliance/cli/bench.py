"""`appliance bench`: which scenarios, against what, and where the results go."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import msgspec

from appliance.base import environ
from appliance.base.errors import ApplianceError, ExitCode, SloMissedError
from appliance.bench.html import render_html
from appliance.bench.record import missed_targets
from appliance.bench.result import BenchResult, compare, load, save
from appliance.bench.run import DEFAULT_VOCAB_SIZE, Depth, Subject, bench_in_process, bench_server
from appliance.bench.scenario import PRESETS, Kind, Scenario
from appliance.bench.sse import Target
from appliance.bench.text import render, render_comparison, render_profile
from appliance.deploy.probe import planned_url
from appliance.deploy.state import DeploymentState
from appliance.hardware import probe_machine
from appliance.plan.estimate import Workload, estimate
from appliance.plan.types import EnginePlan

if TYPE_CHECKING:
    from appliance.plan.prepare import Prepared


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What the command line said. `changes` are fields of the scenario that it set."""

    kind: Kind
    spec: str | None
    overrides: Sequence[str]
    scenario: str | None
    preset: str | None
    changes: dict[str, Any]
    url: str | None
    model: str | None
    api_key: str | None
    label: str | None
    vocab_size: int | None
    output: Path | None
    html: Path | None
    assert_slo: bool
    depth: Depth = "figures"


def run(options: BenchOptions) -> int:
    """Raises SloMissedError with --assert-slo when a target is missed."""
    prepared = _prepared(options)
    plan = prepared.plan if prepared is not None else None
    results = []
    for scenario in _scenarios(options, plan):
        result = _measure(scenario, options, prepared)
        print(render(result), end="\n\n")
        if result.profile is not None:
            print(render_profile(result.rooflines, result.profile, result.measured, result.given), end="\n\n")
        results.append(result)
    _write(results, options, _output_folder(options, plan))
    return int(ExitCode.OK)


def run_compare(ours: Path, theirs: Path) -> int:
    first, second = load(ours), load(theirs)
    print(render_comparison(first.label, second.label, compare(first, second)))
    return int(ExitCode.OK)


def run_report(files: Sequence[Path], html: Path) -> int:
    html.write_text(render_html([load(path) for path in files]), encoding="utf-8")
    print(html)
    return int(ExitCode.OK)


def _prepared(options: BenchOptions) -> "Prepared | None":
    """What the spec becomes; None when a URL alone is measured."""
    if options.spec is None:
        if options.url is None or options.kind != "serve":
            raise ApplianceError("nothing to measure", hint="name a spec, or use bench serve with --url")
        return None
    from appliance.plan.prepare import prepare

    return prepare(Path(options.spec), tuple(options.overrides))


def _scenarios(options: BenchOptions, plan: EnginePlan | None) -> list[Scenario]:
    """The named preset or scenario, the spec's scenarios of this kind, or one made of the defaults."""
    if options.preset is not None:
        chosen = [_named(PRESETS, options.preset, "preset")]
    else:
        declared = _declared(plan)
        if options.scenario is not None:
            chosen = [_named(declared, options.scenario, "scenario")]
        else:
            chosen = [scenario for scenario in declared.values() if scenario.kind == options.kind]
    chosen = chosen or [Scenario(name=options.kind)]
    return [msgspec.structs.replace(scenario, kind=options.kind, **options.changes) for scenario in chosen]


def _declared(plan: EnginePlan | None) -> dict[str, Scenario]:
    entries = plan.bench.get("scenarios", []) if plan is not None else []
    scenarios = msgspec.convert(entries, list[Scenario])
    return {scenario.name: scenario for scenario in scenarios}


def _named(table: dict[str, Scenario], name: str, what: str) -> Scenario:
    if name not in table:
        raise ApplianceError(f"no {what} named {name!r}", hint=f"known: {', '.join(sorted(table)) or 'none'}")
    return table[name]


def _measure(scenario: Scenario, options: BenchOptions, prepared: "Prepared | None") -> BenchResult:
    facts = probe_machine()
    plan = prepared.plan if prepared is not None else None
    known = prepared.model.geometry.vocab_size if prepared is not None else DEFAULT_VOCAB_SIZE
    vocab_size = options.vocab_size or min(known, DEFAULT_VOCAB_SIZE)
    floor = estimated(scenario, prepared) if prepared is not None else {}
    if options.kind != "serve":
        assert plan is not None, "only serve runs without a plan"
        subject = Subject.of_plan(plan, "in process", options.label or "appliance", floor)
        return bench_in_process(scenario, plan, subject, vocab_size, facts, _tick, options.depth)
    target = _target(options, plan)
    if plan is not None:
        subject = Subject.of_plan(plan, target.url, options.label or "appliance", floor)
    else:
        subject = Subject(label=options.label or target.url, target=target.url, model=target.model)
    return bench_server(scenario, target, subject, vocab_size, facts, _tick, options.depth)


def estimated(scenario: Scenario, prepared: "Prepared") -> dict[str, float]:
    """The most that the plan's estimate allows of a scenario's figures; nothing on a machine that was not measured.

    What a prefix cache saves is left out of the work. Latencies of one stream are estimated where there is one.
    """
    measured, plan = prepared.inputs.facts.measured, prepared.plan
    if measured is None or scenario.workload == "trace":
        return {}
    wanted = scenario.max_concurrency or (scenario.batch_size if scenario.kind == "latency" else scenario.num_prompts)
    streams = min(wanted, scenario.num_prompts, plan.scheduler.max_num_seqs)
    prompt = max(1, scenario.input_len - scenario.prefix_len)
    work = Workload(streams=streams, prompt=prompt, answer=scenario.output_len)
    found = estimate(plan, prepared.model, measured, work)
    if found is None:
        return {}
    floor = {"output_throughput": found.answer_tokens_per_s}
    if streams == 1:
        floor |= {"prefill_throughput": found.prefill_tokens_per_s, "decode_throughput": found.decode_tokens_per_s}
    return floor


def _target(options: BenchOptions, plan: EnginePlan | None) -> Target:
    """Raises ApplianceError when no server answers there."""
    url = options.url or (_deployed_url(plan) if plan is not None else "")
    root = url.rstrip("/").removesuffix("/v1")
    headers = {"Authorization": f"Bearer {options.api_key}"} if options.api_key else {}
    try:
        answer = httpx.get(f"{root}/v1/models", headers=headers, timeout=10)
        answer.raise_for_status()
        listed = [entry["id"] for entry in answer.json()["data"]]
    except (httpx.HTTPError, KeyError, ValueError) as error:
        hint = f"start it with: appliance apply {options.spec}" if options.spec else "is it running?"
        raise ApplianceError(f"no OpenAI server answers at {root}: {error}", hint=hint) from error
    model = options.model or (listed[0] if listed else "")
    return Target(url=root, model=model, api_key=options.api_key)


def _deployed_url(plan: EnginePlan) -> str:
    """Where the deployment of this name runs; where the plan would have it when it was started by other means."""
    current = DeploymentState(environ.state_dir(), plan.name).current()
    return current.url if current is not None else planned_url(plan.serving)


def _tick(done: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\r  {done}/{total} requests", end="" if done < total else "\r\x1b[K", file=sys.stderr, flush=True)


def _output_folder(options: BenchOptions, plan: EnginePlan | None) -> Path | None:
    """The spec's `bench.output_dir`, where the command line names no file."""
    planned = plan.bench.get("output_dir") if plan is not None else None
    if options.output is not None or planned is None or options.spec is None:
        return None
    return Path(options.spec).parent / str(planned)


def _write(results: Sequence[BenchResult], options: BenchOptions, folder: Path | None) -> None:
    for result in results:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            save(result, folder / f"{result.scenario.name}.json")
        elif options.output is not None:
            path = options.output
            save(result, path if len(results) == 1 else path.with_name(f"{path.stem}-{result.scenario.name}.json"))
    if options.html is not None:
        options.html.write_text(render_html(results), encoding="utf-8")
    missed = [
        f"{result.scenario.name}: {line}" for result in results for line in missed_targets(result.rounds, result.slo)
    ]
    if options.assert_slo and missed:
        raise SloMissedError("the SLO was missed: " + "; ".join(missed))
