"""Loads an adapter: what it adds to each logical weight of a model, and that all of it has a place."""

from collections.abc import Iterator

import numpy as np

from appliance.checkpoint.adapter import AdapterFacts
from appliance.checkpoint.adapter_modules import AdapterModule
from appliance.checkpoint.reader import TensorReader
from appliance.kernels.interface import WeightChange
from appliance.loading.adapter_tensors import AdapterTensors
from appliance.loading.formats.bits import Array
from appliance.loading.formats.dense import narrow
from appliance.loading.formats.groups import FormatError
from appliance.models.adapter_places import OTHER_BASE, AdapterError, AdapterPlaces, BaseReader, Piece


def load_adapter(adapter: AdapterFacts, places: AdapterPlaces, dtype: str) -> dict[str, WeightChange]:
    """Returns what the adapter adds to each logical weight, in "f32" or "bf16".

    Raises AdapterError if a module has no place, has another shape or too high a rank, or if a number is not finite.
    """
    changes: dict[str, WeightChange] = {}
    with TensorReader(adapter.folder, adapter.tensors()) as reader:
        for module in adapter.modules:
            try:
                found = list(_changes(module, places, adapter.gguf_architecture, reader))
            except FormatError as error:
                raise AdapterError(f"{module.first.name}: {error}", hint=OTHER_BASE) from error
            for weight, change in found:
                if weight in changes:
                    raise AdapterError(f"{module.first.name}: another module of the adapter changes {weight} too")
                changes[weight] = _narrowed(change, dtype)
    return changes


def _changes(
    module: AdapterModule, places: AdapterPlaces, architecture: str | None, reader: TensorReader
) -> Iterator[tuple[str, WeightChange]]:
    """Yields what a module adds to each logical weight that is some of its rows."""
    pieces = places.fit(module, architecture)
    tensors = AdapterTensors(module, reader)
    for piece in pieces:
        yield piece.weight, _Change(module, piece, places, tensors).compute()


class _Change:
    """Computes the change of one logical weight [n, d]. All arrays are f32."""

    def __init__(self, module: AdapterModule, piece: Piece, places: AdapterPlaces, tensors: AdapterTensors) -> None:
        self._module = module
        self._piece = piece
        self._places = places
        self._tensors = tensors

    def compute(self) -> WeightChange:
        if self._module.whole is not None:
            return WeightChange(up=self._tensors.rows("whole", self._piece) - self._base.read(self._piece.weight))
        down, up = self._product()
        stretch, shift = self._lengthened(down, up)
        if stretch is not None and up is not None:
            up = up * (1 + stretch)[:, None]
        return WeightChange(down, up, stretch, shift)

    @property
    def _base(self) -> BaseReader:
        assert self._places.base is not None, "adapters are loaded with the base model's weights at hand"
        return self._places.base

    def _product(self) -> tuple[Array | None, Array | None]:
        """Returns `down` [r, d] and `up` [n, r] with the scale in it; None if the module has none."""
        module = self._module
        if module.down is None:
            return None, None
        down, up = self._tensors.product(self._piece)
        with np.errstate(over="ignore"):  # it is refused below
            up = np.float32(module.scale) * up
        if not np.isfinite(up).all():
            raise AdapterError(f"{module.down.name}: its scale {module.scale:g} makes numbers that are not finite")
        return down, up

    def _lengthened(self, down: Array | None, up: Array | None) -> tuple[Array | None, Array | None]:
        """Returns `stretch` and `shift`.

        DoRA (arXiv:2402.09353) gives every row of W + up @ down the length that `magnitude` states, so the product is
        multiplied by magnitude / |W + up @ down|; a bias, which it leaves alone, is in what is multiplied here.
        """
        module = self._module
        stretch: Array | None = None
        shift: Array | None = None
        if module.up_bias is not None:
            shift = np.float32(module.scale) * self._vector("up_bias")
        if module.magnitude is not None:
            stretch = self._stretch(down, up)
            if self._base.has(self._bias_name):
                shift = -stretch * self._base.read(self._bias_name)[:, 0]
        if module.bias is not None:
            moved = self._vector("bias") - self._base_bias()
            shift = moved if shift is None else shift + moved
        return stretch, shift

    def _stretch(self, down: Array | None, up: Array | None) -> Array:
        module, weight = self._module, self._base.read(self._piece.weight)
        assert module.magnitude is not None, "asked of DoRA"
        if down is None or up is None:
            raise AdapterError(f"{module.magnitude.name} is of a module without lora_A and lora_B")
        lengths = np.linalg.norm(weight + up @ down, axis=1)
        if not lengths.all():
            raise AdapterError(f"{module.magnitude.name}: a row of the sum has no length")
        return np.asarray(self._vector("magnitude") / lengths - 1, np.float32)

    def _base_bias(self) -> Array:
        if not self._base.has(self._bias_name):
            message = f"{self._module.first.name}: the model has no bias at {self._module.name}"
            raise AdapterError(message, hint=OTHER_BASE)
        bias: Array = self._base.read(self._bias_name)[:, 0]
        return bias

    @property
    def _bias_name(self) -> str:
        return f"{self._piece.weight}.bias"

    def _vector(self, field: str) -> Array:
        return self._tensors.rows(field, self._piece)[:, 0]


def _narrowed(change: WeightChange, dtype: str) -> WeightChange:
    arrays = (change.down, change.up, change.stretch, change.shift)
    return WeightChange(*(None if each is None else narrow(np.ascontiguousarray(each), dtype) for each in arrays))
