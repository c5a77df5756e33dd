"""What an operator has to do in a step at least: bytes to read and operations to compute."""

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple

import msgspec

from appliance.program.slots import Extent

Unit = Literal["f32", "bf16", "int8"]  # the arithmetic that an operator is bound by

_DENSE_UNITS: Mapping[str, Unit] = {"f32": "f32", "f16": "bf16", "bf16": "bf16"}


class WeightSize(NamedTuple):
    """A matrix as it lies in memory."""

    size_bytes: int
    layout: str


class Forms(msgspec.Struct, frozen=True):
    """How a kernel set keeps a program's weights and caches. int8_inputs: weights of 8 bits and less meet int8."""

    weight: Callable[[str], WeightSize]  # by name
    kv_dtype: str
    int8_inputs: bool

    def unit(self, layout: str) -> Unit:
        """The arithmetic of products with weights of a layout."""
        return _DENSE_UNITS.get(layout, "int8" if self.int8_inputs else "f32")

    def kernel(self, layout: str) -> str:
        """The measured rate (hardware.facts, kernel_rates) that holds for such products; "" where none does: weights
        of 8 bits and less are measured with int8 inputs."""
        return layout if layout in _DENSE_UNITS or self.int8_inputs else ""


class OperatorWork(msgspec.Struct, frozen=True):
    """Coefficients of one operator's work. A multiply and an add are two operations.

    Activations are not counted: they are small, or in a cache. An operator without weights and cache has no floor.
    """

    label: str  # of what is alike in every layer: "linear o", "rms_norm"
    unit: Unit = "f32"
    kernel: str = ""  # whose measured rate bounds it on many rows
    weight_bytes: int = 0  # read once a step
    row_bytes: int = 0  # a token: the embedding's row
    key_bytes: int = 0  # a cached token that a sequence's queries see
    row_operations: int = 0  # a row of `extent`
    visit_operations: int = 0  # a pair of a query and a key that it sees
    extent: Extent = Extent.TOKENS
    window: int | None = None
    screened: "OperatorWork | None" = None  # in steps that ask for few of the logits, where that is less
    screened_rows: int = 0  # of logits at most, of such steps


class StepCounts(msgspec.Struct, frozen=True):
    """The sizes of a step that work depends on.

    keys: by window, the cached tokens that at least one query sees. visits: by window, the pairs of a query and a key
    that it sees. few_logits: only the largest logits of each row are asked for.
    """

    tokens: int
    sampled: int
    keys: Mapping[int | None, int]
    visits: Mapping[int | None, int]
    few_logits: bool = False

    def work_of(self, work: OperatorWork) -> OperatorWork:
        """What the operator has to do in this step."""
        if self.few_logits and work.screened is not None and self.sampled <= work.screened_rows:
            return work.screened
        return work

    def rows_of(self, work: OperatorWork) -> int:
        return self.tokens if work.extent is Extent.TOKENS else self.sampled

    def bytes_of(self, work: OperatorWork) -> int:
        keys = work.key_bytes * self.keys[work.window] if work.key_bytes else 0
        return work.weight_bytes + work.row_bytes * self.tokens + keys

    def operations_of(self, work: OperatorWork) -> int:
        visits = work.visit_operations * self.visits[work.window] if work.visit_operations else 0
        return work.row_operations * self.rows_of(work) + visits


def windows_of(works: Iterable[OperatorWork]) -> frozenset[int | None]:
    """The windows by which `keys` and `visits` of a step are asked for."""
    return frozenset(work.window for work in works if work.key_bytes or work.visit_operations)
