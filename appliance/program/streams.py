"""Several residual streams beside one another (AltUp, arXiv:2301.13310), as Gemma 3n has them, and its sparse gates.

A token has n streams of D columns. A layer computes with the first, which is the active one: it is the residual stream
of other models.
"""

from appliance.program.record import Record
from appliance.program.slots import Slot, Span


class MixStreams(Record, frozen=True):
    """Adds to each stream its own mixture of all: stream j += sum over i of coefficients[t, j * n + i] * stream i,
    where the streams on the right are those before the operator.

    streams: n slots [rows, D]. coefficients: [rows, n * n].
    """

    doc = "mix residual streams by coefficients of each row"

    streams: tuple[Slot, ...]
    coefficients: Slot


class CorrectStreams(Record, frozen=True):
    """Moves every stream along with the first: stream j += (1 + coefficients[t, j]) * (target - stream 0), where stream
    0 is the one before the operator.

    streams: n slots [rows, D]. target: [rows, D]. coefficients: [rows, n].
    """

    doc = "correct residual streams by what became of the first"

    streams: tuple[Slot, ...]
    target: Slot
    coefficients: Slot


class MatchMagnitude(Record, frozen=True):
    """x *= sqrt(mean(reference^2) / max(mean(x^2), least)) in place, by row: x gets the magnitude of `reference`."""

    doc = "give a row the magnitude of another"

    x: Slot
    reference: Slot
    least: float


class GaussianTopK(Record, frozen=True):
    """x = max(0, x - (mean(x) + num_deviations * std(x))) in place, by row; std is that of the row as it is.

    If x is normally distributed, a share of it stays above zero that the number of deviations states.
    """

    doc = "keep what is far above the mean of its row"

    x: Span
    num_deviations: float
