"""The start of an engine: plan -> loop, phase by phase, with seconds and bytes."""

import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from appliance.base.environ import cache_dir, set_default
from appliance.base.errors import ApplianceError
from appliance.engine.adapter_changes import AdapterChanges
from appliance.engine.adapter_messages import AdapterSet
from appliance.engine.backend import Backend, load_backend
from appliance.engine.core.config import SchedulerConfig
from appliance.engine.core.ordering import AskPolicy
from appliance.engine.core.scheduler import Scheduler
from appliance.engine.drafting.build import make_drafters
from appliance.engine.drafting.load import LoadedDraftModel, load_draft_model
from appliance.engine.extension import extension_calls
from appliance.engine.faults import row_fault
from appliance.engine.grammar.backends import DEFAULT_BACKEND, backend_loader
from appliance.engine.grammar.compiler import GrammarCompiler
from appliance.engine.grammar.gate import GrammarGate
from appliance.engine.grammar.sandbox.client import Sandbox
from appliance.engine.loop import EngineLoop
from appliance.engine.messages import BootPhase, UtilityResult
from appliance.engine.policy_plugin import load_policy
from appliance.engine.processors import planned_calls
from appliance.engine.rounds import Rounds
from appliance.engine.runner import Runner
from appliance.engine.sleep import Sleep, Sleeper, SleepingExecutable, SleepsTogether
from appliance.engine.swap_memory import Swap
from appliance.engine.validation import SamplingLimits
from appliance.engine.weight_changes import WeightChanges
from appliance.engine.weight_staging import OwnStaging, StagesTogether, Staging
from appliance.engine.wire import raw
from appliance.kernels.cpu.locking import locked_bytes
from appliance.kernels.interface import Executable
from appliance.kernels.kernel_cache import KERNELS_FOLDER, keep_kernels
from appliance.kernels.lockstep import Lockstep
from appliance.plan.boot import BootReport, KernelsOrigin, WeightsOrigin
from appliance.plan.types import AdapterPlan, EnginePlan

REPORT_EVERY_S = 0.1  # between two announcements of one phase


class AdapterRefusedError(ApplianceError):
    """An adapter that the plan lists cannot be served."""


Announce = Callable[[BootPhase], None]


def boot(
    plan: EnginePlan, announce: Announce, *, interpreter_s: float | None = None, lockstep: Lockstep | None = None
) -> EngineLoop:
    """Loads the plan's model and builds the loop: scheduler, runner, limits. Raises like SchedulerConfig, load_backend.

    `interpreter_s` is how long the process took to get here; it becomes the first phase. `lockstep`: the other replicas
    with which it runs its steps; it waits until they have loaded.
    """
    phases = Phases(announce)
    if interpreter_s is not None:
        phases.record("interpreter", interpreter_s)
    config = SchedulerConfig.from_plan(plan)
    kernels = _kept_kernels(plan)
    backend = load_backend(plan, config, phases.progress, lockstep)
    draft = load_draft_model(plan, config, backend, phases.progress)
    phases.progress("runner", 0, 0)
    runner = Runner(
        backend.executable,
        config,
        backend.vocab_size,
        plan.model.logprobs_mode,
        make_drafters(plan.speculation),
        backend.adapters,
        None if draft is None else draft.drafter,
        planned_calls(plan.model.logits_processors),
        plan.model.logits_processor_timeout_s,
    )
    scheduler = Scheduler(config, time.monotonic, row_fault, _policy(plan))
    phases.end()
    drafted = {} if draft is None else draft.memory_bytes
    memory_bytes = {**backend.executable.memory_bytes, **runner.memory_bytes, **drafted}
    report = BootReport(
        seconds=phases.seconds,
        memory_bytes=memory_bytes,
        num_blocks=config.num_blocks,
        weights=None if backend.weights is None else WeightsOrigin(**asdict(backend.weights)),
        kernels=kernels,
        locked_bytes=locked_bytes() if plan.kernels.lock_memory else None,
    )
    limits = SamplingLimits(plan.serving.limits.max_n, plan.model.max_logprobs, plan.model.logits_processor_pattern)
    grammars = _grammars(backend.vocab_size)
    loop = EngineLoop(
        scheduler,
        runner,
        limits,
        boot_report=raw(report),
        grammars=grammars,
        adapters=_adapters(backend, scheduler, runner),
        prefault_blocks=plan.cache.prefault_blocks,
        sleep=_sleep(plan, backend, draft, runner.swap),
        ask_ranks=extension_calls(plan, backend.executable),
        weights=_weights(backend, scheduler, grammars, runner),
        collects_parts=plan.serving.has_detailed_traces,
        rounds=_rounds(lockstep, backend, config),
    )
    _wait_for_replicas(lockstep, phases)
    if plan.adapters is not None:
        serve_adapters(loop, plan.adapters.served)  # their checks are steps
    return loop


def _policy(plan: EnginePlan) -> AskPolicy | None:
    """Returns the operator's own policy, if the plan has one."""
    return None if plan.scheduler.scheduler_cls is None else load_policy(plan.scheduler.scheduler_cls)


def _adapters(backend: Backend, scheduler: Scheduler, runner: Runner) -> AdapterChanges | None:
    if backend.adapters is None:
        return None
    return AdapterChanges(backend.adapters, scheduler, backend.vocab_size, runner.drop_adapters)


def _grammars(vocab_size: int) -> GrammarGate:
    trials = Sandbox(DEFAULT_BACKEND, vocab_size)
    return GrammarGate(GrammarCompiler(backend_loader(DEFAULT_BACKEND, vocab_size), trials))


def _sleep(plan: EnginePlan, backend: Backend, draft: LoadedDraftModel | None, swap: Swap | None) -> Sleep | None:
    """Returns what lets the engine sleep, if the plan says that it may: the model, and then what drafts for it."""
    if not plan.model.sleep_mode:
        return None
    assert backend.read_weights is not None, "a planned model has a checkpoint"
    read = backend.read_weights

    def own(executable: Executable) -> Sleeper:
        return SleepingExecutable(executable, read, backend.experts, swap)

    whole = backend.executable
    parts = [whole.sleeper(own) if isinstance(whole, SleepsTogether) else own(whole)]
    parts += [] if draft is None else [SleepingExecutable(*each) for each in draft.executables]
    return Sleep(parts)


def _wait_for_replicas(lockstep: Lockstep | None, phases: "Phases") -> None:
    if lockstep is None:
        return
    phases.progress("replicas", 0, 0)
    lockstep.wait_loaded()
    phases.end()


def _rounds(lockstep: Lockstep | None, backend: Backend, config: SchedulerConfig) -> Rounds | None:
    if lockstep is None:
        return None
    return Rounds(lockstep, backend.executable, len(config.windows), has_states=config.num_snapshots is not None)


def _weights(backend: Backend, scheduler: Scheduler, gate: GrammarGate, runner: Runner) -> WeightChanges | None:
    """Returns what replaces weights; None where that cannot be."""
    whole, source = backend.executable, backend.source
    if source is None:
        return None

    def own(executable: Executable) -> Staging:
        return OwnStaging(executable, source)

    staging = whole.staging(own) if isinstance(whole, StagesTogether) else own(whole)
    return WeightChanges(staging, source, scheduler, gate, runner.rest)


def _kept_kernels(plan: EnginePlan) -> KernelsOrigin | None:
    """Names the folder of compiled kernels before anything imports Triton. None for a set that compiles none."""
    if plan.device == "cpu":
        return None
    set_default(
        "CUDA_DEVICE_ORDER", "PCI_BUS_ID"
    )  # as in the facts of the machine; without it the fastest is the first
    found = keep_kernels(cache_dir() / KERNELS_FOLDER, plan.profile, plan.kernels.cache_dir)
    return KernelsOrigin(folder=found.path.name, num_kept=found.num_kept)


def serve_adapters(loop: EngineLoop, adapters: tuple[AdapterPlan, ...]) -> None:
    """Checks and serves adapters before any request. Raises AdapterRefusedError."""
    events = loop.handle(b"", AdapterSet(call_id="", adapters=adapters))
    while loop.has_work:
        events += loop.step()
    result = next(event for _, event in events if isinstance(event, UtilityResult))
    if result.error is not None:
        raise AdapterRefusedError(result.error)


class Phases:
    """Times named phases that follow one another, and announces them."""

    def __init__(self, announce: Announce, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds: dict[str, float] = {}
        self._announce = announce
        self._clock = clock
        self._name = ""
        self._started = 0.0
        self._announced = 0.0

    def progress(self, name: str, done: int, total: int) -> None:
        """Reports that the phase `name` runs; a new name ends the phase before it."""
        now = self._clock()
        if name != self._name:
            self.end()
            self._name, self._started, self._announced = name, now, -math.inf
        if now - self._announced >= REPORT_EVERY_S:
            self._announced = now
            self._announce(BootPhase(name=name, seconds=now - self._started, done=done, total=total))

    def end(self) -> None:
        if self._name:
            self.record(self._name, self._clock() - self._started)
            self._name = ""

    def record(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        self._announce(BootPhase(name=name, seconds=seconds, ended=True))


def process_age_s() -> float | None:
    """Returns the seconds since this process was created (proc(5), starttime, in clock ticks); None if unknown."""
    try:
        after_name = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    started = int(after_name[19]) / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)
