"""The seam to kernel sets that run a model's own modelling code, in place of a step program."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from appliance.kernels.execution import Execution
from appliance.kernels.interface import Executable
from appliance.program.operators import StepProgram


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A checkpoint and the code that runs it.

    folder: config, weights as safetensors. config: what config.json says, with the plan's overrides. dtype: of all
    floating weights and activations: f32, bf16 or f16. model_class: the name of a class of transformers; with
    `code_folder`, `module.Class` of a Python file there. config_class: like that, None for transformers' own.
    """

    folder: Path
    config: Mapping[str, Any]
    dtype: str
    model_class: str
    config_class: str | None = None
    code_folder: Path | None = None


class ModelKernelSet(Protocol):
    """A kernel set that runs modelling code, with its attention over our cache."""

    name: str

    def bind_model(self, source: ModelSource, program: StepProgram, execution: Execution) -> Executable:
        """Builds the model and loads its weights. program: its caches, one for each attention layer, in order, and its
        logits slot; its operators are not run.

        Raises BindError, with a reason, if the code or the checkpoint cannot run so.
        """
