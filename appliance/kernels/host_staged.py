"""New weights that wait in memory of the host, for sets that keep theirs elsewhere or in other forms."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from appliance.base.free_memory import free_bytes
from appliance.base.units import format_size
from appliance.kernels.errors import ExecutableError
from appliance.kernels.layout import CanonicalWeight


class HostStaged:
    """Canonical weights in memory of the host, and the function that copies them to where they are read."""

    def __init__(
        self, weights: Mapping[str, CanonicalWeight], put: Callable[[Mapping[str, CanonicalWeight]], None]
    ) -> None:
        """Reads all of them. Raises ExecutableError without the memory."""
        self._put = put
        self._held: dict[str, CanonicalWeight] = {}
        for name in weights:
            weight = owned(weights[name])
            self._held[name] = weight
            if free_bytes() < 2 * weight.data.nbytes:
                held = format_size(sum(each.data.nbytes for each in self._held.values()))
                raise ExecutableError(
                    f"new weights wait in memory of the host, which has no room beyond {held} of them"
                )

    def commit(self) -> None:
        try:
            self._put(self._held)
        finally:
            self.close()

    def close(self) -> None:
        self._held = {}


def owned(weight: CanonicalWeight) -> CanonicalWeight:
    """Returns a weight whose arrays are no views of a file."""
    names = ("scale", "offset", "sub_scale", "sub_offset")
    arrays = {name: each.copy() for name in names if (each := getattr(weight, name)) is not None}
    return replace(weight, data=weight.data.copy(), **arrays)
