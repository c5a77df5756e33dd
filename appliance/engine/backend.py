"""From a plan to something that runs: an executable, a sampler and the size of the vocabulary."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from appliance.engine.core.config import SchedulerConfig
from appliance.kernels.interface import Executable
from appliance.kernels.sampling import Sampler
from appliance.plan.types import EnginePlan

SCRIPTED = "scripted"

Progress = Callable[[str, int, int], None]  # (phase, done, total)


@dataclass(frozen=True, slots=True)
class Backend:
    executable: Executable
    sampler: Sampler
    vocab_size: int


def load_backend(plan: EnginePlan, config: SchedulerConfig, progress: Progress) -> Backend:
    """Loads the planned model. Raises ApplianceError with words for the user when the checkpoint is not as planned."""
    if plan.kernels.kernel_set == SCRIPTED:
        return _scripted(plan, config, progress)
    raise NotImplementedError(plan.kernels.kernel_set)


def _scripted(plan: EnginePlan, config: SchedulerConfig, progress: Progress) -> Backend:
    from appliance.engine.scripted import ArgmaxSampler, Script, ScriptedExecutable, scripted_model  # noqa: PLC0415 - tests only

    script = Script.read(Path(plan.model.path))
    progress("load", 0, 1)
    time.sleep(script.load_seconds)
    progress("load", 1, 1)
    executable = ScriptedExecutable(
        scripted_model(script), script.vocab_size, config.num_blocks, config.block_size, script
    )
    return Backend(executable, ArgmaxSampler(), script.vocab_size)
