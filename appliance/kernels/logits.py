"""The logits of a step: they stay where the kernel set keeps them, and single rows can be read on the host."""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from appliance.kernels.revision import new_revision

Float32Array = npt.NDArray[np.float32]


class Logits(Protocol):
    """The logits [R, V] of a step, valid until the next `run` of their executable."""

    @property
    def num_rows(self) -> int:
        """The number of rows R."""

    def row(self, at: int) -> Float32Array:
        """Returns row `at` on the host, f32 [V]. Callers must not change it."""

    def host(self) -> Float32Array:
        """Returns all rows on the host, f32 [R, V], in one copy at most. Callers must not change them."""


@dataclass(frozen=True, slots=True)
class HostLogits:
    """The logits in an f32 [R, V] array on the host. The same revision means the same memory."""

    values: Float32Array
    revision: int = field(init=False, default_factory=new_revision, compare=False)

    @property
    def num_rows(self) -> int:
        return int(self.values.shape[0])

    def row(self, at: int) -> Float32Array:
        row: Float32Array = self.values[at]
        return row

    def host(self) -> Float32Array:
        return self.values
