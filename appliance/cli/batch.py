"""`appliance batch`: runs an OpenAI batch file on the planned engine, in this process or on a Ray cluster."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from starlette.types import ASGIApp

from appliance.base.errors import ExitCode
from appliance.batch.command import batch_files, batch_options
from appliance.cli.arguments.work import BatchArguments
from appliance.cli.own_logs import configure_own_logs
from appliance.cli.progress import ProgressBar
from appliance.cli.spec_target import SpecTarget, spec_target
from appliance.engine.messages import BootPhase
from appliance.jobs.answerer import Answerer, asgi_answerer
from appliance.jobs.progress import BatchProgress
from appliance.jobs.runner import BatchFiles, run_batch
from appliance.plan.ledger import AUTO
from appliance.plan.prepare import prepare
from appliance.plan.types import EnginePlan
from appliance.server.process.inproc_api import inproc_api
from appliance.server.process.metrics_listener import metrics_listener
from appliance.spec import LoadedSpec, load_spec
from appliance.spec.data import as_data

TERMINAL_EVERY_S, LOG_EVERY_S = 0.2, 10.0


class _Engines(NamedTuple):
    """answer: answers a line. num_engines: among which lines are divided."""

    answer: Answerer
    plan: EnginePlan
    num_engines: int = 1


def run(arguments: BatchArguments) -> int:
    """Returns 0 if every line has an answer or an error; the files hold both."""
    target = spec_target(arguments.spec, arguments.overrides)
    loaded = load_spec(target.path, target.overrides)
    files = batch_files(
        as_data(loaded.spec.batch),
        Path(target.path).parent,
        input_file=arguments.input_file,
        output_file=arguments.output_file,
        error_file=arguments.error_file,
    )
    shown = _ProgressLine(quiet=arguments.as_json)
    configure_own_logs()
    engines = _on_cluster(loaded, target, shown) if loaded.spec.batch.backend == "ray" else _here(target, shown)
    progress = asyncio.run(_run(engines, arguments, files, shown))
    shown.end(progress)
    if arguments.as_json:
        print(msgspec.json.encode(_summary(progress, files)).decode())
    return ExitCode.OK


async def _run(
    running: AbstractAsyncContextManager[_Engines],
    arguments: BatchArguments,
    files: BatchFiles,
    shown: "_ProgressLine",
) -> BatchProgress:
    async with running as engines:
        planned = engines.plan.batch
        options = batch_options(
            planned,
            order=arguments.order,
            resume=arguments.resume,
            max_concurrency=arguments.max_concurrency or planned["max_concurrency"] * engines.num_engines,
        )
        return await run_batch(files, options, engines.answer, shown.tick)


@asynccontextmanager
async def _here(target: SpecTarget, shown: "_ProgressLine") -> AsyncIterator[_Engines]:
    """Loads the engine in this process, or starts replicas."""
    with ProgressBar() as bar:
        plan = prepare(target.path, target.overrides, progress=bar).plan
    async with inproc_api(plan, shown.boot) as api, _metrics(api, plan):
        yield _Engines(asgi_answerer(api), plan, plan.parallel.replicas)


def _metrics(api: ASGIApp, plan: EnginePlan) -> AbstractAsyncContextManager[None]:
    """Returns the listener that the plan asks for."""
    wanted = plan.batch["metrics"]
    if not wanted["enabled"]:
        return nullcontext()
    return metrics_listener(api, plan.serving, wanted["host"], wanted["port"])


@asynccontextmanager
async def _on_cluster(loaded: LoadedSpec, target: SpecTarget, shown: "_ProgressLine") -> AsyncIterator[_Engines]:
    """Has engines of a Ray cluster answer."""
    from appliance.ray.batch import cluster_engines
    from appliance.ray.node import NodeWork

    wanted = loaded.spec.batch.num_replicas
    work = NodeWork(text=loaded.text, file=str(Path(target.path).resolve()), overrides=target.overrides)
    async with cluster_engines(work, None if wanted == AUTO else int(wanted)) as engines:
        shown.say(f"{engines.num_engines} engines on {engines.num_nodes} nodes")
        yield _Engines(engines.answer, engines.plan, engines.num_engines)


def _summary(progress: BatchProgress, files: BatchFiles) -> dict[str, Any]:
    return {
        "output": str(files.output),
        "errors": str(files.errors) if progress.failed else None,
        "requests": progress.total,
        "failed": progress.failed,
        "resumed": progress.resumed,
        "seconds": round(progress.seconds, 3),
        "prompt_tokens": progress.prompt_tokens,
        "completion_tokens": progress.completion_tokens,
    }


@dataclass(slots=True)
class _ProgressLine:
    """Prints progress on stderr: one line that changes on a terminal, else a line at intervals."""

    quiet: bool
    is_terminal: bool = field(default_factory=sys.stderr.isatty)
    shown_at: float = 0.0

    def say(self, text: str) -> None:
        """Shows a line that stays."""
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def boot(self, phase: BootPhase) -> None:
        if self.is_terminal and phase.total:
            self._show(f"{phase.name} {100 * phase.done // phase.total} %")

    def tick(self, progress: BatchProgress) -> None:
        every = TERMINAL_EVERY_S if self.is_terminal else LOG_EVERY_S
        if time.monotonic() - self.shown_at >= every:
            self.shown_at = time.monotonic()
            self._show(str(progress))

    def end(self, progress: BatchProgress) -> None:
        self._show(str(progress))
        if self.is_terminal and not self.quiet:
            print(file=sys.stderr)

    def _show(self, text: str) -> None:
        if not self.quiet:
            start, end = ("\r\x1b[K", "") if self.is_terminal else ("", "\n")
            print(f"{start}{text}", end=end, file=sys.stderr, flush=True)
