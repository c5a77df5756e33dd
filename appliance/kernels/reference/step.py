"""What an operator of the reference set reads and writes."""

from collections.abc import Mapping
from typing import Protocol

import torch

from appliance.kernels.expert_tables import ExpertTable
from appliance.kernels.interface import StatePieces, StepAdapters, WeightChange
from appliance.kernels.lockstep import RowsOfReplicas
from appliance.kernels.ranks import Exchange
from appliance.kernels.reference import states
from appliance.kernels.reference.attention import LayerCache
from appliance.program.slots import Slot, Span


class Step(Protocol):
    """The live rows of every slot, and a step's inputs as tensors."""

    weights: dict[str, torch.Tensor]
    activation_groups: dict[str, int]  # by weight whose Linear quantizes its input: the group size
    caches: list[LayerCache]
    groups: list[int]  # of each cache
    token_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    query_start: list[int]
    seq_lens: list[int]
    block_tables: torch.Tensor
    sampled_rows: torch.Tensor
    states: states.StateSlots
    pieces: StatePieces
    token_types: torch.Tensor
    embeds: tuple[torch.Tensor, torch.Tensor] | None  # rows and row_of, as in StepEmbeds
    adapters: Mapping[int, Mapping[str, WeightChange]]  # by slot
    step_adapters: StepAdapters | None
    exchange: Exchange | None  # None: the program is of one rank
    spread: RowsOfReplicas | None  # None: the program has all experts
    tables: Mapping[int, ExpertTable]  # of the mixtures whose experts have places

    def slot(self, slot: Slot) -> torch.Tensor: ...

    def span(self, span: Span) -> torch.Tensor: ...
