"""Low-rank matrices that a layer adds to those of a block that it shares with others."""

from collections.abc import Mapping
from typing import NamedTuple

from appliance.layers.program import ProgramBuilder, Projection
from appliance.program.slots import Slot, Span


class Adapter(NamedTuple):
    """The matrices of one layer, under `<prefix>.adapter.`."""

    prefix: str
    rank: int

    def emit(self, builder: ProgramBuilder, low: str, x: Slot, outs: Mapping[str, Span]) -> None:
        """Emits out += up(low(x)) for each of `outs`, which lie side by side, by the names of their matrices."""
        name, inner = f"{self.prefix}.adapter", builder.slot("adapter", self.rank, x.extent)
        builder.project(x, [Projection(f"{name}.{low}", self.rank)], inner)
        spans = list(outs.values())
        out = Span(spans[0].slot, spans[0].start, sum(span.width for span in spans))
        parts = [Projection(f"{name}.{each}", span.width) for each, span in outs.items()]
        builder.project(inner, parts, out, accumulate=True)
