"""Loads a planned model whose modelling code is not ours: checks that the code is that of the plan, and binds it."""

import time
from pathlib import Path

from appliance.base.errors import ApplianceError
from appliance.base.log import fields, logger
from appliance.checkpoint.facts import ModelFacts
from appliance.checkpoint.modelling import ModellingCode, find_modelling
from appliance.kernels.execution import Execution
from appliance.kernels.model_source import ModelKernelSet, ModelSource
from appliance.kernels.reports import WeightsReport
from appliance.loading.model import LoadedModel
from appliance.models.outline import outline
from appliance.plan.types import EnginePlan, ModellingPlan

_log = logger("loading")


class CodeError(ApplianceError):
    """The modelling code on this machine is not the code that was planned."""


def load_modelled(
    plan: EnginePlan, modelling: ModellingPlan, facts: ModelFacts, kernel_set: ModelKernelSet, execution: Execution
) -> LoadedModel:
    """Loads a model with the code that the plan names, and logs the digest of each of its files.

    Raises CodeError, before any of it runs, if a file has other content than was planned; BindError if it cannot run.
    """
    code = _planned_code(modelling, facts)
    for file in code.files:
        _log.info("modelling code", extra=fields(origin=code.origin, file=file.name, sha256=file.sha256))
    source = ModelSource(
        folder=Path(facts.root),
        config=facts.config,
        dtype=plan.precision.activations,
        model_class=modelling.model_class,
        config_class=modelling.config_class,
        code_folder=None if modelling.code_path is None else Path(modelling.code_path),
    )
    started = time.monotonic()
    executable = kernel_set.bind_model(source, outline(facts).compiled.program, execution)
    seconds, size = time.monotonic() - started, executable.memory_bytes.get("weights", 0)
    reason = "modelling code that is not ours keeps no packed weights"
    return LoadedModel(executable, WeightsReport(origin="checkpoint", seconds=seconds, size_bytes=size, reason=reason))


def _planned_code(modelling: ModellingPlan, facts: ModelFacts) -> ModellingCode:
    folder = Path(modelling.code_path or facts.root)
    found = find_modelling(facts.architecture, facts.config, folder)
    code = found.of_checkpoint if modelling.origin == "checkpoint" else found.of_transformers
    here = {} if code is None else {file.name: file.sha256 for file in code.files}
    planned = {file.name: file.sha256 for file in modelling.files}
    if code is None or here != planned:
        changed = sorted(name for name in here.keys() | planned.keys() if here.get(name) != planned.get(name))
        message = f"the modelling code is not what was planned: {', '.join(changed)}"
        raise CodeError(message, hint="read what changed, then plan again: appliance plan")
    return code
