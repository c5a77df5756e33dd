"""Where a step finds the recurrent states of its sequences, and where it leaves them."""

from collections.abc import Iterator

import numpy as np

from appliance.engine.rows import Int32
from appliance.engine.step import Chunk
from appliance.kernels.interface import StatePieces
from appliance.program.state_slots import spare_slot

FRESH = -1  # as a source: states of zeros


def state_pieces(chunks: tuple[Chunk, ...], row_ids: Int32, starts: Int32, query_start: Int32) -> StatePieces:
    """Returns the pieces of a step: a chunk begins with the states of its row, or of a snapshot, or anew, and leaves
    its own in its row and in the snapshots that it was told to leave."""
    if any(chunk.states is not None for chunk in chunks):
        return _with_snapshots(chunks, query_start)
    source = np.where(starts == 0, np.int32(FRESH), row_ids)
    return StatePieces(np.arange(len(chunks) + 1, dtype=np.int32), query_start.copy(), source, row_ids.copy())


def into_spare(pieces: StatePieces, num_rows: int) -> StatePieces:
    """Returns pieces that change nothing that a later step reads."""
    pieces.target[:] = spare_slot(num_rows)
    return pieces


def _with_snapshots(chunks: tuple[Chunk, ...], query_start: Int32) -> StatePieces:
    first, start, source, target = [0], [0], [], []
    for chunk, begin in zip(chunks, query_start.tolist(), strict=False):
        for come_from, end, left_in in _pieces(chunk):
            source.append(come_from)
            start.append(begin + end - chunk.start)
            target.append(left_in)
        first.append(len(source))
    return StatePieces(*(np.array(each, np.int32) for each in (first, start, source, target)))


def _pieces(chunk: Chunk) -> Iterator[tuple[int, int, int]]:
    """Yields source, end (as a number of tokens of the sequence) and target of each piece of a chunk."""
    moves = chunk.states
    come_from = FRESH if chunk.start == 0 else chunk.row
    if moves is not None and moves.resumes_from is not None:
        come_from = moves.resumes_from
    for position, slot in moves.leaves if moves is not None else ():
        yield come_from, position, slot
        come_from = slot
    yield come_from, chunk.start + chunk.length, chunk.row
