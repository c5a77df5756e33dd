"""`appliance bench`: chooses the scenarios, the target, and the place of the results."""

import hashlib
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import msgspec

from appliance.base import environ
from appliance.base.errors import ApplianceError, ExitCode, SloMissedError
from appliance.base.settings import own_api_key
from appliance.bench.changes import parse_changes
from appliance.bench.html import render_html
from appliance.bench.record import missed_targets
from appliance.bench.result import BenchResult, compare, load, same_answers, save
from appliance.bench.run import DEFAULT_VOCAB_SIZE, BenchSubject, Depth, bench_in_process, bench_server
from appliance.bench.scaling import FIGURE, Reached, render_scaling, settings
from appliance.bench.scenario import PRESETS, Kind, Scenario
from appliance.bench.sse import BenchTarget
from appliance.bench.tasks import with_task
from appliance.bench.text import render, render_comparison, render_profile
from appliance.cli.arguments.bench import BenchArguments, BenchEmbedArguments, BenchServeArguments
from appliance.cli.own_logs import configure_own_logs
from appliance.cli.spec_target import spec_target
from appliance.cli.verb import UsageError
from appliance.deploy.pins.lockfile import lock_path
from appliance.deploy.probe import planned_url
from appliance.deploy.state import DeploymentState
from appliance.hardware import probe_machine
from appliance.plan.estimate import Workload, estimate
from appliance.plan.programs import program_of
from appliance.plan.types import EnginePlan

if TYPE_CHECKING:
    from appliance.plan.prepare import Prepared


def run_in_process(kind: Kind, arguments: BenchArguments, *, pools: bool = False) -> int:
    """Measures an engine in this process; `pools`: of a model that pools. Raises SloMissedError with --assert-slo if a
    target is missed."""
    if not arguments.spec:
        raise UsageError("nothing to measure", hint="name a spec or a deployment; bench serve --url takes any server")
    prepared = _prepared(arguments)
    configure_own_logs()

    def measure(scenario: Scenario) -> BenchResult:
        subject = _subject(scenario, prepared, "in process", arguments)
        vocab_size = _vocab_size(arguments, prepared)
        return bench_in_process(scenario, prepared.plan, subject, vocab_size, probe_machine(), _tick, _depth(arguments))

    return _run(arguments, _scenarios(kind, arguments, prepared.plan, pools=pools), measure, prepared.plan)


def run_scaling(arguments: BenchArguments) -> int:
    """Measures ranks of engines in this process, one after the other. Raises SloMissedError with --assert-slo if a
    target is missed."""
    if not arguments.spec:
        raise UsageError("nothing to measure", hint="name a spec or a deployment")
    configure_own_logs()
    facts, first = probe_machine(), _prepared(arguments)
    threads = first.inputs.spec.hardware.num_threads
    (scenario, *_) = _scenarios("throughput", arguments, first.plan, pools=False)
    results, found = [], list[Reached]()
    for setting in settings(facts.cpu.num_cores, None if threads == "auto" else threads):
        prepared = _prepared(arguments, setting.overrides)
        subject = msgspec.structs.replace(_subject(scenario, prepared, "in process", arguments), label=setting.label)
        vocab_size = _vocab_size(arguments, prepared)
        result = bench_in_process(scenario, prepared.plan, subject, vocab_size, facts, _tick)
        results.append(result)
        found.append(Reached(setting, result.figures[FIGURE].median))
    print(f"{scenario.name} ({scenario.kind}), {results[0].model}: tokens of output a second, medians of rounds")
    print(render_scaling(found))
    _write(results, arguments, _output_folder(arguments, first.plan))
    return int(ExitCode.OK)


def run_embed(arguments: BenchEmbedArguments) -> int:
    """Measures a model that pools, as a server or in this process. Raises SloMissedError with --assert-slo if a target
    is missed."""
    if arguments.kind == "serve":
        return run_serve(arguments, pools=True)
    if arguments.url:
        raise UsageError(f"--kind {arguments.kind} measures an engine in this process", hint="name a spec, not a URL")
    return run_in_process(arguments.kind, arguments, pools=True)


def run_serve(arguments: BenchServeArguments, *, pools: bool = False) -> int:
    """Measures a running server; `pools`: of a model that pools. Raises SloMissedError with --assert-slo if a target is
    missed."""
    if not arguments.spec and not arguments.url:
        raise UsageError("nothing to measure", hint="name a spec or a deployment, or a server with --url")
    prepared = _prepared(arguments) if arguments.spec else None
    plan = prepared.plan if prepared is not None else None

    def measure(scenario: Scenario) -> BenchResult:
        target = _target(arguments, plan)
        if prepared is not None:
            subject = _subject(scenario, prepared, target.url, arguments)
        else:
            subject = BenchSubject(label=arguments.label or target.url, target=target.url, model=target.model)
        vocab_size = _vocab_size(arguments, prepared)
        return bench_server(scenario, target, subject, vocab_size, probe_machine(), _tick, _depth(arguments))

    return _run(arguments, _scenarios("serve", arguments, plan, pools=pools), measure, plan)


def _run(
    arguments: BenchArguments,
    scenarios: Sequence[Scenario],
    measure: Callable[[Scenario], BenchResult],
    plan: EnginePlan | None,
) -> int:
    results = []
    for scenario in scenarios:
        result = measure(scenario)
        print(render(result), end="\n\n")
        if result.profile is not None:
            print(render_profile(result.rooflines, result.profile, result.measured, result.given), end="\n\n")
        results.append(result)
    _write(results, arguments, _output_folder(arguments, plan))
    return int(ExitCode.OK)


def run_compare(ours: Path, theirs: Path) -> int:
    first, second = load(ours), load(theirs)
    print(render_comparison(first.label, second.label, compare(first, second), same_answers(first, second)))
    return int(ExitCode.OK)


def run_report(files: Sequence[Path], html: Path) -> int:
    html.write_text(render_html([load(path) for path in files]), encoding="utf-8")
    print(html)
    return int(ExitCode.OK)


def _prepared(arguments: BenchArguments, further: Sequence[str] = ()) -> "Prepared":
    from appliance.plan.prepare import prepare

    path, overrides = spec_target(arguments.spec, arguments.overrides)
    return prepare(Path(path), (*overrides, *further))


def _scenarios(kind: Kind, arguments: BenchArguments, plan: EnginePlan | None, *, pools: bool) -> list[Scenario]:
    """Returns the named preset or scenario, the spec's scenarios of this kind, or one made of the defaults."""
    if arguments.preset is not None:
        chosen = [_named(PRESETS, arguments.preset, "preset")]
    else:
        declared = _declared(plan)
        if arguments.scenario is not None:
            chosen = [_named(declared, arguments.scenario, "scenario")]
        else:
            chosen = [scenario for scenario in declared.values() if scenario.kind == kind]
    chosen = chosen or [Scenario(name=kind)]
    changes = parse_changes(arguments.changes)
    return [
        with_task(msgspec.structs.replace(scenario, kind=kind, **changes), plan, pools=pools) for scenario in chosen
    ]


def _declared(plan: EnginePlan | None) -> dict[str, Scenario]:
    entries = plan.bench.get("scenarios", []) if plan is not None else []
    scenarios = msgspec.convert(entries, list[Scenario])
    return {scenario.name: scenario for scenario in scenarios}


def _named(table: dict[str, Scenario], name: str, what: str) -> Scenario:
    if name not in table:
        raise ApplianceError(f"no {what} named {name!r}", hint=f"known: {', '.join(sorted(table)) or 'none'}")
    return table[name]


def _subject(scenario: Scenario, prepared: "Prepared", where: str, arguments: BenchArguments) -> BenchSubject:
    lock = lock_path(Path(spec_target(arguments.spec).path))
    digest = hashlib.sha256(lock.read_bytes()).hexdigest() if lock.is_file() else None
    floor = estimated(scenario, prepared)
    return BenchSubject.of_plan(prepared.plan, where, arguments.label or "appliance", floor, digest)


def _vocab_size(arguments: BenchArguments, prepared: "Prepared | None") -> int:
    known = prepared.model.geometry.vocab_size if prepared is not None else DEFAULT_VOCAB_SIZE
    return arguments.vocab_size or min(known, DEFAULT_VOCAB_SIZE)


def _depth(arguments: BenchArguments) -> Depth:
    return "roofline" if arguments.roofline else "profile" if arguments.profile else "figures"


def estimated(scenario: Scenario, prepared: "Prepared") -> dict[str, float]:
    """Returns the best figures of a scenario that the plan's estimate allows; none on a machine that was not measured.

    Work that a prefix cache saves is not counted. Latencies are estimated only if there is a single stream. Replicas
    are estimated while all of them are busy.
    """
    speed, plan = prepared.inputs.speed, prepared.plan
    if speed is None or scenario.workload == "trace":
        return {}
    wanted = scenario.max_concurrency or (scenario.batch_size if scenario.kind == "latency" else scenario.num_prompts)
    replicas = plan.parallel.replicas
    streams = min(wanted, scenario.num_prompts, replicas * plan.scheduler.max_num_seqs)
    if streams < replicas:
        return {}
    prompt = max(1, scenario.input_len - scenario.prefix_len)
    work = Workload(streams=math.ceil(streams / replicas), prompt=prompt, answer=scenario.output_len)
    found = estimate(plan, program_of(plan, prepared.model, prepared.inputs.programs), speed, work)
    if found is None:
        return {}
    floor = {"output_throughput": replicas * found.answer_tokens_per_s}
    if streams == 1:
        floor |= {"prefill_throughput": found.prefill_tokens_per_s, "decode_throughput": found.decode_tokens_per_s}
    return floor


def _target(arguments: BenchServeArguments, plan: EnginePlan | None) -> BenchTarget:
    """Returns the server to measure. Raises ApplianceError if no server answers there."""
    url = arguments.url or (_deployed_url(plan) if plan is not None else "")
    root = url.rstrip("/").removesuffix("/v1")
    api_key = arguments.api_key or own_api_key()
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        answer = httpx.get(f"{root}/v1/models", headers=headers, timeout=10)
        answer.raise_for_status()
        listed = [entry["id"] for entry in answer.json()["data"]]
    except (httpx.HTTPError, KeyError, ValueError) as error:
        hint = f"start it with: appliance apply {arguments.spec}" if arguments.spec else "is it running?"
        raise ApplianceError(f"no OpenAI server answers at {root}: {error}", hint=hint) from error
    model = arguments.model or (listed[0] if listed else "")
    return BenchTarget(url=root, model=model, api_key=api_key)


def _deployed_url(plan: EnginePlan) -> str:
    """Returns the URL of the running deployment; the planned URL if `apply` did not start it."""
    current = DeploymentState(environ.state_dir(), plan.name).current()
    return current.url if current is not None else planned_url(plan.serving.listen)


def _tick(done: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\r  {done}/{total} requests", end="" if done < total else "\r\x1b[K", file=sys.stderr, flush=True)


def _output_folder(arguments: BenchArguments, plan: EnginePlan | None) -> Path | None:
    """Returns the spec's `bench.output_dir`; None if the command line names a file."""
    planned = plan.bench.get("output_dir") if plan is not None else None
    if arguments.output is not None or planned is None:
        return None
    return Path(spec_target(arguments.spec).path).parent / str(planned)


def _write(results: Sequence[BenchResult], arguments: BenchArguments, folder: Path | None) -> None:
    for result in results:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            save(result, folder / f"{result.scenario.name}.json")
        elif arguments.output is not None:
            path = arguments.output
            save(result, path if len(results) == 1 else path.with_name(f"{path.stem}-{result.scenario.name}.json"))
    if arguments.html is not None:
        arguments.html.write_text(render_html(results), encoding="utf-8")
    missed = [
        f"{result.scenario.name}: {line}" for result in results for line in missed_targets(result.rounds, result.slo)
    ]
    if arguments.assert_slo and missed:
        raise SloMissedError("the SLO was missed: " + "; ".join(missed))
