"""Logits of a step: they stay where the kernel set keeps them, and a row can be asked for on the host."""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from appliance.kernels.revision import new_revision

Float32Array = npt.NDArray[np.float32]


class Logits(Protocol):
    """Logits [R, V] of a step, valid until the next `run` of their executable."""

    @property
    def num_rows(self) -> int:
        """R."""

    def row(self, at: int) -> Float32Array:
        """Row `at` on the host, f32 [V]. It is not to be changed."""


@dataclass(frozen=True, slots=True)
class HostLogits:
    """Logits in an array f32 [R, V] of the host. The same revision means the same memory."""

    values: Float32Array
    revision: int = field(init=False, default_factory=new_revision, compare=False)

    @property
    def num_rows(self) -> int:
        return int(self.values.shape[0])

    def row(self, at: int) -> Float32Array:
        row: Float32Array = self.values[at]
        return row
