"""The native struct of a step, and the checks of its arrays."""

import ctypes

import numpy as np

from appliance.kernels.cpu import abi
from appliance.kernels.cpu.memory import has_gaps
from appliance.kernels.errors import StepError
from appliance.kernels.interface import PastTokens, StatePieces, StepAdapters, StepInputs


class NativeStep:
    """The struct that the library is called with. Inputs of the same revision keep their addresses, because asking
    numpy for an address is slow."""

    def __init__(self) -> None:
        self._step = abi.Step()
        self._inputs: StepInputs | None = None  # kept alive: the struct points to its arrays
        self.reference = ctypes.byref(self._step)

    def point_to(self, inputs: StepInputs) -> None:
        """Points to the arrays. Raises StepError if their sizes do not match; the native call checks the values."""
        if self._inputs is not None and inputs.revision == self._inputs.revision:
            return
        self._inputs = None
        _check(inputs)
        self._put(inputs)
        self._inputs = inputs

    def _put(self, inputs: StepInputs) -> None:
        step = self._step
        step.num_tokens = inputs.token_ids.shape[0]
        step.num_seqs = inputs.seq_lens.shape[0]
        step.num_sampled = inputs.sampled_rows.shape[0]
        step.num_groups, _, step.block_table_stride = inputs.block_tables.shape
        for name in abi.STEP_ARRAYS:
            setattr(step, name, getattr(inputs, name).ctypes.data)
        step.num_largest = None if inputs.num_largest is None else inputs.num_largest.ctypes.data
        step.token_types = None if inputs.token_types is None else inputs.token_types.ctypes.data
        adapters = inputs.adapters
        step.adapter_slots = None if adapters is None else adapters.slots.ctypes.data
        step.adapter_scales = None if adapters is None else adapters.scales.ctypes.data
        embeds = inputs.embeds
        step.embeds = None if embeds is None else embeds.rows.ctypes.data
        step.embed_of = None if embeds is None else embeds.row_of.ctypes.data
        step.num_embeds, step.embeds_width = (0, 0) if embeds is None else embeds.rows.shape
        self._put_past(inputs.past)
        self._put_pieces(inputs.states)

    def _put_past(self, past: PastTokens | None) -> None:
        step = self._step
        if past is None:
            step.num_past = None
            return
        step.past_rows, step.past_stride = past.table.shape
        step.past_table = past.table.ctypes.data
        step.past_row = past.row.ctypes.data
        step.num_past = past.count.ctypes.data

    def _put_pieces(self, pieces: StatePieces | None) -> None:
        self._step.num_pieces = 0 if pieces is None else pieces.source.shape[0]
        for name in abi.PIECE_ARRAYS:
            setattr(self._step, f"piece_{name}", None if pieces is None else getattr(pieces, name).ctypes.data)


def _check(inputs: StepInputs) -> None:
    """Checks the element types and lengths of arrays, which the native check cannot see. Raises StepError."""
    tokens, sequences = inputs.token_ids.shape[0], inputs.seq_lens.shape[0]
    fits = (
        inputs.block_tables.ndim == 3
        and inputs.positions.shape[0] == tokens
        and inputs.slot_mapping.shape == (inputs.block_tables.shape[0], tokens)
        and inputs.query_start.shape[0] == sequences + 1
        and inputs.block_tables.shape[1:2] == (sequences,)
        and (inputs.token_types is None or inputs.token_types.shape[0] == tokens)
        and (inputs.num_largest is None or inputs.num_largest.shape == inputs.sampled_rows.shape)
    )
    if not fits:
        raise StepError("the arrays of a step differ in length")
    for name in abi.STEP_ARRAYS:
        _check_array(name, getattr(inputs, name))
    for name in ("slot_mapping", "block_tables"):
        if not getattr(inputs, name).flags.c_contiguous:
            raise StepError(f"{name} is not an array of int32 without gaps")
    if inputs.token_types is not None:
        _check_array("token_types", inputs.token_types)
    if inputs.num_largest is not None:
        _check_array("num_largest", inputs.num_largest)
    if inputs.embeds is not None:  # the native check sees whether the program takes them
        inputs.embeds.check(tokens, inputs.embeds.rows.shape[-1])
    if inputs.past is not None:
        _check_past(inputs.past, inputs.sampled_rows.shape)
    if inputs.adapters is not None:
        _check_adapters(inputs.adapters, sequences)
    if inputs.states is not None:
        _check_pieces(inputs.states, sequences)


def _check_adapters(adapters: StepAdapters, sequences: int) -> None:
    slots, scales = adapters.slots, adapters.scales
    if slots.shape != (sequences,) or scales.shape != (sequences,) or scales.dtype != np.float32 or has_gaps(scales):
        raise StepError("the slots and scales of a step's adapters are not one of each sequence")
    _check_array("adapters.slots", slots)


def _check_pieces(pieces: StatePieces, sequences: int) -> None:
    count = pieces.source.shape[0]
    shapes = [getattr(pieces, name).shape for name in abi.PIECE_ARRAYS]
    if shapes != [(sequences + 1,), (count + 1,), (count,), (count,)]:
        raise StepError("the arrays of a step's pieces differ in length")
    for name in abi.PIECE_ARRAYS:
        _check_array(f"states.{name}", getattr(pieces, name))


def _check_past(past: PastTokens, shape: tuple[int, ...]) -> None:
    if (
        past.table.ndim != 2
        or not past.table.flags.c_contiguous
        or past.row.shape != shape
        or past.count.shape != shape
    ):
        raise StepError("past tokens are no table, or their arrays differ in length")
    for name in ("table", "row", "count"):
        _check_array(f"past.{name}", getattr(past, name))


def _check_array(name: str, array: np.ndarray) -> None:
    if array.dtype != np.int32 or has_gaps(array):
        raise StepError(f"{name} is not an array of int32 without gaps")
