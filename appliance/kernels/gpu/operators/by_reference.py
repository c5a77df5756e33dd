"""Operators without an implementation of their own here: the oracle's function, on the device, in f32."""

from collections.abc import Mapping
from types import MappingProxyType

import torch

from appliance.kernels.expert_tables import ExpertTable
from appliance.kernels.gpu.step import DeviceStep
from appliance.kernels.interface import StatePieces, StepAdapters, WeightChange
from appliance.kernels.lockstep import RowsOfReplicas
from appliance.kernels.ranks import Exchange
from appliance.kernels.reference.attention import LayerCache
from appliance.kernels.reference.operators import RUN
from appliance.program.operators import Operator
from appliance.program.slots import Slot, Span


def by_reference(op: Operator, step: DeviceStep) -> None:
    """Runs an operator that reads no matrix and no cache. Its slots are widened to f32 and rounded again."""
    view = _FloatView(step)
    with step.bound.device.name:
        RUN[type(op)](op, view)
        view.write_back()


class _FloatView:
    """A step as the oracle's functions see it."""

    activation_groups: dict[str, int]
    caches: list[LayerCache]
    adapters: Mapping[int, Mapping[str, WeightChange]]
    step_adapters: StepAdapters | None
    embeds: tuple[torch.Tensor, torch.Tensor] | None = None  # which Embed alone reads, and it has functions of its own
    exchange: Exchange | None = None
    spread: RowsOfReplicas | None = None
    tables: Mapping[int, ExpertTable] = MappingProxyType({})  # torch finds the places of experts

    def __init__(self, step: DeviceStep) -> None:
        arrays, host = step.arrays, step.arrays.host
        self._step = step
        self._wide: dict[int, tuple[Slot, torch.Tensor]] = {}
        self.activation_groups, self.caches, self.adapters, self.step_adapters = {}, [], {}, None
        self.weights = step.bound.vectors
        self.groups = [cache.group for cache in step.bound.caches]
        self.token_ids, self.positions = arrays.token_ids.long(), arrays.positions.long()
        self.slot_mapping, self.block_tables = arrays.slot_mapping, arrays.block_tables
        self.query_start, self.seq_lens = host.query_start.tolist(), host.seq_lens.tolist()
        self.sampled_rows, self.token_types = arrays.sampled_rows.long(), arrays.token_types.long()
        self.states = step.bound.states
        if host.states is not None:
            self.pieces: StatePieces = host.states

    def slot(self, slot: Slot) -> torch.Tensor:
        own = self._step.slot(slot)
        if own.dtype in (torch.float32, torch.int32):
            return own
        if slot.index not in self._wide:
            self._wide[slot.index] = (slot, own.float())
        return self._wide[slot.index][1]

    def span(self, span: Span) -> torch.Tensor:
        return self.slot(span.slot)[:, span.start : span.start + span.width]

    def write_back(self) -> None:
        for slot, wide in self._wide.values():
            self._step.slot(slot).copy_(wide)
