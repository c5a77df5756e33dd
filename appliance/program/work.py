"""The least work of an operator in a step: bytes to read and operations to compute."""

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple

import msgspec

from appliance.catalog.formats import CODED_LAYOUTS, ROUNDED_INPUT_LAYOUTS
from appliance.program.caches import KV_BYTES, kv_scale_bytes
from appliance.program.slots import Extent

Unit = Literal["f32", "bf16", "int8"]  # the arithmetic that an operator is bound by

# The layouts that are multiplied with floats always.
_FLOAT_UNITS: Mapping[str, Unit] = {
    "f32": "f32", "f16": "bf16", "bf16": "bf16",
    **{layout: "f32" for layout in CODED_LAYOUTS if layout not in ROUNDED_INPUT_LAYOUTS},
}  # fmt: skip


class WeightSize(NamedTuple):
    """The size and layout of a matrix in memory."""

    size_bytes: int
    layout: str


class Forms(msgspec.Struct, frozen=True):
    """The forms of a program's weights and caches. int8_inputs: integer codes are multiplied with int8."""

    weight: Callable[[str], WeightSize]  # by name
    kv_dtype: str
    int8_inputs: bool

    def kv_bytes(self, width: int, parts: int) -> int:
        """Returns the bytes of a head's keys and values of one token, so many parts of `width` numbers together."""
        return width * KV_BYTES[self.kv_dtype] + parts * kv_scale_bytes(self.kv_dtype)

    def unit(self, layout: str) -> Unit:
        """Returns the arithmetic of products with weights of a layout."""
        return _FLOAT_UNITS.get(layout, "int8" if self.int8_inputs else "f32")

    def kernel(self, layout: str) -> str:
        """Returns the name of the measured rate (hardware.facts, kernel_rates) of such products; "" if there is none,
        as integer codes are measured only with int8 inputs."""
        return layout if layout in _FLOAT_UNITS or self.int8_inputs else ""


class ChunkReach(msgspec.Struct, frozen=True):
    """The reach of a query that sees the keys from the start of its own chunk of `size` positions on."""

    size: int


Reach = int | ChunkReach | None  # a window of so many latest tokens, a chunk, or every token up to the query


class OperatorWork(msgspec.Struct, frozen=True):
    """The coefficients of one operator's work. A multiply and an add are two operations.

    Activations are not counted: they are small, or in the processor's cache. An operator without weights and KV cache
    has no floor.
    """

    label: str  # the same for equal operators of all layers: "linear o", "rms_norm"
    unit: Unit = "f32"
    kernel: str = ""  # the name of the measured rate that bounds it on many rows
    weight_bytes: int = 0  # per step, or the share of them that the step's rows choose
    row_bytes: int = 0  # per token: the embedding's row
    key_bytes: int = 0  # per cached token that a sequence's queries see
    state_bytes: int = 0  # per sequence: its state, read and written
    row_operations: int = 0  # per row of `extent`
    visit_operations: int = 0  # per pair of a query and a key that it sees
    extent: Extent = Extent.TOKENS
    reach: Reach = None  # of its queries
    chosen_share: float = 1.0  # the share of the weights, in experts, that one row chooses
    screened: "OperatorWork | None" = None  # the work with a screen, in steps that need few of the logits
    screened_rows: int = 0  # the most logits rows of a step that uses the screen


class StepCounts(msgspec.Struct, frozen=True):
    """The sizes of a step on which the work depends.

    keys: by reach, the cached tokens that at least one query sees. visits: by reach, the pairs of a query and a key
    that it sees. few_logits: only the largest logits of each row are needed. sequences: those
    that have tokens in the step.
    """

    tokens: int
    sampled: int
    keys: Mapping[Reach, int]
    visits: Mapping[Reach, int]
    few_logits: bool = False
    sequences: int = 0

    def work_of(self, work: OperatorWork) -> OperatorWork:
        """Returns the operator's work in this step."""
        if self.few_logits and work.screened is not None and self.sampled <= work.screened_rows:
            return work.screened
        return work

    def rows_of(self, work: OperatorWork) -> int:
        return self.tokens if work.extent is Extent.TOKENS else self.sampled

    def rows_of_weights(self, work: OperatorWork) -> float:
        """Returns the rows that each weight of the operator meets: on average a part of all, if rows choose experts."""
        return self.rows_of(work) * work.chosen_share

    def bytes_of(self, work: OperatorWork) -> int:
        keys = work.key_bytes * self.keys[work.reach] if work.key_bytes else 0
        weights = round(work.weight_bytes * self._read_share(work))
        return weights + work.row_bytes * self.tokens + keys + work.state_bytes * self.sequences

    def _read_share(self, work: OperatorWork) -> float:
        """Returns the expected share of the weights that is read if rows choose at random; it is exact for one row."""
        if work.chosen_share == 1.0:
            return 1.0
        return 1.0 - (1.0 - work.chosen_share) ** self.rows_of(work)

    def operations_of(self, work: OperatorWork) -> int:
        visits = work.visit_operations * self.visits[work.reach] if work.visit_operations else 0
        return work.row_operations * self.rows_of(work) + visits


def reaches_of(works: Iterable[OperatorWork]) -> frozenset[Reach]:
    """Returns the reaches for which the `keys` and `visits` of a step must be counted."""
    return frozenset(work.reach for work in works if work.key_bytes or work.visit_operations)
