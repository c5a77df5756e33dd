"""Runs one scenario against an engine in this process or a server, and makes its result."""

import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from appliance import __version__
from appliance.base.environ import cache_dir
from appliance.base.errors import ApplianceError
from appliance.bench.machine import mean_rates, rates_now
from appliance.bench.online import Tick, run_online
from appliance.bench.record import MeasuredRequest, summarize
from appliance.bench.remote_profile import start_profile, stop_profile
from appliance.bench.replicas import EngineCounts, counts_of, shares_between
from appliance.bench.result import BenchResult, spread_of
from appliance.bench.roofline import measured_or_refuse, rooflines
from appliance.bench.scenario import Scenario
from appliance.bench.sse import BenchTarget
from appliance.engine.profile import EngineProfile
from appliance.hardware.facts import HardwareFacts, MeasuredFacts
from appliance.plan.types import EnginePlan

# Prompts are drawn from the first ids only, so that one scenario is the same work for models of any vocabulary.
DEFAULT_VOCAB_SIZE = 30_000


class BenchSubject(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured, in words and digests."""

    label: str
    target: str
    model: str
    spec_sha256: str | None = None
    engine_sha256: str | None = None
    lock_sha256: str | None = None
    slo: dict[str, float] = {}
    floor: dict[str, float] = {}  # the most that the plan's estimate allows, by figure

    @classmethod
    def of_plan(
        cls,
        plan: EnginePlan,
        target: str,
        label: str,
        floor: dict[str, float] | None = None,
        lock_sha256: str | None = None,
    ) -> "BenchSubject":
        return cls(
            label=label,
            target=target,
            model=plan.model.served_names[0],
            spec_sha256=plan.spec_sha256,
            engine_sha256=plan.engine_sha256,
            lock_sha256=lock_sha256,
            slo=plan.slo,
            floor=floor or {},
        )


Depth = Literal["figures", "profile", "roofline"]  # how much is asked about where the time goes


def bench_server(
    scenario: Scenario,
    target: BenchTarget,
    subject: BenchSubject,
    vocab_size: int,
    facts: HardwareFacts,
    tick: Tick,
    depth: Depth = "figures",
) -> BenchResult:
    """Measures a server over HTTP. Raises ApplianceError when no request at all was answered, when a profile is asked
    of a server without debug routes, and for a roofline of a machine that was not measured."""
    before = counts_of(target)
    if depth == "figures":
        records = run_online(scenario, target, vocab_size, tick)
        return _by_replica(_result(scenario, subject, facts, records), target, before)
    rates = _Rates.of(facts) if depth == "roofline" else None
    records = run_online(scenario, target, vocab_size, tick, lambda: start_profile(target))
    result = _by_replica(_result(scenario, subject, facts, records), target, before)
    return _profiled(result, stop_profile(target), rates)


def _by_replica(result: BenchResult, target: BenchTarget, before: EngineCounts) -> BenchResult:
    return msgspec.structs.replace(result, replicas=shares_between(before, counts_of(target)))


def bench_in_process(
    scenario: Scenario,
    plan: EnginePlan,
    subject: BenchSubject,
    vocab_size: int,
    facts: HardwareFacts,
    tick: Tick,
    depth: Depth = "figures",
) -> BenchResult:
    """Loads the planned model here and measures the engine without HTTP. Raises ApplianceError for a roofline of a
    machine that was not measured."""
    from appliance.bench.offline import run_offline, run_profiled  # noqa: PLC0415 - loaded only where it is measured
    from appliance.engine.inproc import InprocEngine  # noqa: PLC0415 - as above
    from appliance.service.text_side import load_text_side  # noqa: PLC0415 - as above

    rates = _Rates.of(facts) if depth == "roofline" else None
    eos_token_ids = () if scenario.ignore_eos else load_text_side(plan, cache_dir()).eos_token_ids
    with InprocEngine.from_plan(plan) as engine:
        if depth == "figures":
            return _result(scenario, subject, facts, run_offline(scenario, engine, eos_token_ids, vocab_size, tick))
        rounds, profile = run_profiled(scenario, engine, eos_token_ids, vocab_size, tick)
    return _profiled(_result(scenario, subject, facts, rounds), profile, rates)


class _Rates(msgspec.Struct, frozen=True):
    """The machine's rates at its best, and as they are before a run."""

    facts: HardwareFacts
    measured: MeasuredFacts
    before: MeasuredFacts

    @classmethod
    def of(cls, facts: HardwareFacts) -> "_Rates":
        """Raises ApplianceError when this machine was not measured."""
        return cls(facts, measured_or_refuse(facts), rates_now(facts))

    def given(self) -> MeasuredFacts:
        """Around the run, which has just ended."""
        return mean_rates(self.before, rates_now(self.facts))


def _profiled(result: BenchResult, profile: EngineProfile, rates: _Rates | None) -> BenchResult:
    if rates is None:
        return msgspec.structs.replace(result, profile=profile, rooflines=rooflines(profile, None))
    measured, given = rates.measured, rates.given()
    found = rooflines(profile, measured, given)
    return msgspec.structs.replace(result, profile=profile, rooflines=found, measured=measured, given=given)


def _result(
    scenario: Scenario, subject: BenchSubject, facts: HardwareFacts, records: Sequence[Sequence[MeasuredRequest]]
) -> BenchResult:
    rounds = tuple(summarize(one, subject.slo) for one in records)
    if not any(figures.completed for figures in rounds):
        errors = sorted({record.error or "no answer" for one in records for record in one})
        raise ApplianceError(f"{scenario.name}: no request was answered: {'; '.join(errors[:3])}")
    return BenchResult(
        label=subject.label,
        scenario=scenario,
        target=subject.target,
        model=subject.model,
        spec_sha256=subject.spec_sha256,
        engine_sha256=subject.engine_sha256,
        lock_sha256=subject.lock_sha256,
        machine=_machine(facts),
        appliance_version=__version__,
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        figures=spread_of(rounds),
        rounds=rounds,
        records=tuple(records[-1]),
        slo=subject.slo,
        floor=subject.floor,
    )


def _machine(facts: HardwareFacts) -> dict[str, Any]:
    return {
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cpu": facts.cpu.model_name,
        "cores": facts.cpu.num_cores,
        "memory_bytes": facts.memory.limit_bytes,
        "l3_bytes": facts.cpu.l3_bytes,
        "accelerators": [accelerator.name for accelerator in facts.accelerators],
    }
