"""What attention needs beside its own operator: temperatures, and a matrix for each head.

Widths beside those of program/operators.py: K the columns of a head before its matrix, M those after it.
"""

from appliance.program.record import Record
from appliance.program.slots import Slot, Span
from appliance.program.work import Forms, OperatorWork


class ScaleByPosition(Record, frozen=True):
    """x[t] *= 1 + scale * ln(1 + floor((positions[t] + offset) / length)) in place, a temperature for long contexts."""

    doc = "a factor that grows with the position"

    x: Span
    scale: float
    length: int
    offset: int = 0


class HeadLinear(Record, frozen=True):
    """out of head h = concat(weight_h @ x_h, tail_h): a matrix for each head, as latent attention has them.

    x: [rows, H * K]. weight: for each head M rows, a multiple of 16. tail: [rows, H * R], or None for none.
    out: [rows, H * (M + R)].
    """

    doc = "a matrix for each head"
    matrices = ("weight",)

    x: Span
    weight: str
    out: Slot
    num_heads: int
    tail: Span | None = None

    def work(self, forms: Forms) -> OperatorWork:
        size_bytes, layout = forms.weight(self.weight)
        rows = self.out.width - (self.tail.width if self.tail else 0)
        return OperatorWork(
            label=f"head_linear {self.weight.rpartition('.')[2]}",
            unit=forms.unit(layout),
            kernel=forms.kernel(layout),
            weight_bytes=size_bytes,
            row_operations=2 * rows * self.x.width // self.num_heads,
            extent=self.x.slot.extent,
        )
