"""The kernel set `transformers`: modelling code of transformers or of the checkpoint, over our cache and sampler.

A step is one call of the model with all tokens of the step as one sequence [1, T]; only attention, which is ours,
knows where sequences begin. So a step costs the Python and torch of every layer, and its rows round by their
neighbours, as torch's products do.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from appliance.kernels.errors import BindError, StepError
from appliance.kernels.execution import Execution
from appliance.kernels.interface import StepInputs
from appliance.kernels.logits import HostLogits, Logits
from appliance.kernels.model_source import ModelSource
from appliance.kernels.modelling.attention import LISTENER, PagedLayer, PagedStep
from appliance.kernels.modelling.build import build_model, takes
from appliance.kernels.modelling.probe import check_model
from appliance.kernels.modelling.sampling import HostSampler
from appliance.kernels.reference.caches import kv_caches
from appliance.kernels.reference.moving import TensorMover
from appliance.kernels.sampling import SampledBatch, SamplingBatch
from appliance.program.operators import StepProgram


class ModellingExecutable:
    """A torch module with our attention in it."""

    def __init__(self, model: Any, program: StepProgram, execution: Execution) -> None:
        """Raises BindError if the model does not run as the program says."""
        self._model = model
        self._limits = execution.limits
        self._vocab_size = program.logits.width
        self._chooses_rows = takes(model.forward, "logits_to_keep")
        with torch.inference_mode():
            check_model(self._logits, program.caches, self._vocab_size, execution.limits.max_model_len)
        self._lanes, caches, groups = kv_caches(program, execution)
        self._layers = [
            PagedLayer(cache, group, shape.window)
            for cache, group, shape in zip(caches, groups, program.caches, strict=True)
        ]
        self._sampler = HostSampler(execution.placement.num_threads)

    @torch.inference_mode()
    def run(self, inputs: StepInputs) -> HostLogits:
        """Runs one step. Raises StepError for a token, position, slot or block that is not there."""
        self._check(inputs)
        tokens, positions, rows = (
            torch.from_numpy(each).long() for each in (inputs.token_ids, inputs.positions, inputs.sampled_rows)
        )
        context = LISTENER.set(PagedStep(self._layers, inputs))
        try:
            logits = self._logits(tokens[None], positions[None], rows)
        finally:
            LISTENER.reset(context)
        return HostLogits(logits.float().contiguous().numpy())

    def sample(self, logits: Logits, batch: SamplingBatch) -> SampledBatch:
        assert isinstance(logits, HostLogits), "logits are those of this executable"
        return self._sampler.sample(logits, batch)

    @torch.inference_mode()
    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        for source, destination in pairs:
            for lane in self._lanes:
                lane[destination] = lane[source]

    def mover(self) -> TensorMover:
        return TensorMover(self._lanes, [])

    @torch.inference_mode()
    def prefault(self, block: int) -> None:
        for lane in self._lanes:
            lane[block] = lane[block].clone()  # a write is what makes pages resident

    @property
    def memory_bytes(self) -> Mapping[str, int]:
        """What is kept; torch allocates activations as it goes."""
        kept = {} if self._model is None else dict(self._model.named_parameters()) | dict(self._model.named_buffers())
        weights = {tensor.data_ptr(): tensor.nbytes for tensor in kept.values()}
        return {"weights": sum(weights.values()), "kv_cache": sum(lane.nbytes for lane in self._lanes)}

    def close(self) -> None:
        self._sampler.close()
        self._model, self._lanes, self._layers = None, [], []

    def _logits(self, tokens: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Returns [R, V]. Code that cannot choose rows computes the logits of all T."""
        keep = {"logits_to_keep": rows} if self._chooses_rows else {}
        logits: torch.Tensor = self._model(input_ids=tokens, position_ids=positions, use_cache=False, **keep).logits[0]
        return logits if len(logits) == len(rows) else logits[rows]

    def _check(self, inputs: StepInputs) -> None:
        limits = self._limits
        for what, values, first, end in (
            ("token", inputs.token_ids, 0, self._vocab_size),
            ("position", inputs.positions, 0, limits.max_model_len),
            ("slot", inputs.slot_mapping, -1, limits.num_blocks * limits.block_size),  # -1 stores nothing
            ("block", inputs.block_tables, 0, limits.num_blocks),
        ):
            if values.size and not (values.min() >= first and values.max() < end):
                wrong = values[(values < first) | (values >= end)][0]
                raise StepError(f"{what} {int(wrong)} is out of bounds; there are {end:,}")


class ModellingKernelSet:
    name = "transformers"

    def bind_model(self, source: ModelSource, program: StepProgram, execution: Execution) -> ModellingExecutable:
        """Builds the model on the CPU. Raises BindError, with a reason, if it cannot run so."""
        if execution.placement.device != "cpu":
            raise BindError(f"kernel set {self.name} runs on cpu, not on {execution.placement.device}")
        torch.set_num_threads(execution.placement.num_threads)
        return ModellingExecutable(build_model(source), program, execution)


def load(name: str) -> ModellingKernelSet:
    """Returns the one set of this module."""
    return ModellingKernelSet()
