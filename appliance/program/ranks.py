"""Operators of a program that several ranks run together, each with the columns of its own."""

from appliance.program.record import Record
from appliance.program.slots import Slot, Span

MAX_RANKS = 63  # that share memory; kernels/include/appliance_abi.h has the same


class Gather(Record, frozen=True):
    """Makes all columns of x known to every rank. Before it, rank r has computed the columns starts[r] to
    starts[r + 1] - 1 of the span, and no others.

    Nothing is added: a number that one rank computed whole is what a rank alone computes, so tokens do not depend on
    the number of ranks. In a kernel set whose ranks share the memory of x, all ranks wait until each is here.

    experts: int32 [rows, k]; with it, x is [rows, k * D], and in each row rank r has computed the columns
    of the choices whose expert is one of starts[r] to starts[r + 1] - 1.

    by_token: x is [T, D], and rank r has computed the rows of the tokens starts[r] to starts[r + 1] - 1. missing_row:
    the token in whose place those beyond the last one are looked up; None: there are none.
    """

    doc = "make the columns of all ranks known to each"

    x: Span
    starts: tuple[int, ...]  # of each rank's columns, from the start of the span, and its width; or of its experts
    experts: Slot | None = None
    by_token: bool = False
    missing_row: int | None = None


class Meet(Record, frozen=True):
    """Waits for all ranks. It stands before one writes shared columns that others may still be reading; a set whose
    ranks share no memory does nothing."""

    doc = "wait for all ranks"
