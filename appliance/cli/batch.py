"""`appliance batch`: runs an OpenAI batch file on the planned engine, in this process."""

import asyncio
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from appliance.base.errors import ExitCode
from appliance.batch.command import batch_files, batch_options
from appliance.cli.arguments.work import BatchArguments
from appliance.cli.own_logs import configure_own_logs
from appliance.cli.progress import ProgressBar
from appliance.cli.spec_target import spec_target
from appliance.engine.messages import BootPhase
from appliance.jobs.answerer import asgi_answerer
from appliance.jobs.progress import BatchProgress
from appliance.jobs.runner import BatchFiles, BatchOptions, run_batch
from appliance.plan.prepare import prepare
from appliance.plan.types import EnginePlan
from appliance.server.process.inproc_api import inproc_api

TERMINAL_EVERY_S, LOG_EVERY_S = 0.2, 10.0


def run(arguments: BatchArguments) -> int:
    """Returns 0 if every line has an answer or an error; the files hold both."""
    spec, overrides = spec_target(arguments.spec, arguments.overrides)
    with ProgressBar() as bar:
        prepared = prepare(spec, overrides, progress=bar)
    plan = prepared.plan
    configure_own_logs()
    files = batch_files(
        plan.batch,
        Path(spec).parent,
        input_file=arguments.input_file,
        output_file=arguments.output_file,
        error_file=arguments.error_file,
    )
    options = batch_options(
        plan.batch,
        order=arguments.order,
        resume=arguments.resume,
        max_concurrency=arguments.max_concurrency,
    )
    shown = _ProgressLine(quiet=arguments.as_json)
    progress = asyncio.run(_run(plan, files, options, shown))
    shown.end(progress)
    if arguments.as_json:
        print(msgspec.json.encode(_summary(progress, files)).decode())
    return ExitCode.OK


async def _run(plan: EnginePlan, files: BatchFiles, options: BatchOptions, shown: "_ProgressLine") -> BatchProgress:
    async with inproc_api(plan, shown.boot) as api:
        return await run_batch(files, options, asgi_answerer(api), shown.tick)


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
