"""Reads the tensors of one module of an adapter, as f32."""

from functools import cached_property

import numpy as np
from msgspec.structs import replace

from appliance.checkpoint.adapter_modules import AdapterModule
from appliance.checkpoint.facts import TensorFacts
from appliance.checkpoint.reader import TensorReader
from appliance.layers.spec import WeightSource
from appliance.loading.formats.bits import Array
from appliance.loading.formats.groups import FormatError
from appliance.loading.formats.translate import StoredRows
from appliance.models.adapter_places import Piece


class AdapterTensors:
    """The tensors of a module, by the pieces of it that are logical weights.

    Raises FormatError, which names the tensor, if a number is not finite or a piece has no such rows.
    """

    def __init__(self, module: AdapterModule, reader: TensorReader) -> None:
        self._module = module
        self._reader = reader

    def product(self, piece: Piece) -> tuple[Array, Array]:
        """Returns down [rank, d] and up [n, rank] of a piece, without the scale."""
        module = self._module
        assert module.down is not None, "the module has a product"
        if module.is_table:
            down = self._down if module.is_turned else self._down.T
            return self._up.T, down
        if piece.expert is None:
            return self._down, self.rows("up", piece)
        if len(module.down.shape) == 3:
            return self._values(module.down, WeightSource(module.down.name, index=piece.expert)), self.rows("up", piece)
        experts, width = module.num_experts, module.down.shape[1]
        up = self._up.reshape(len(self._up), module.rank, experts)[:, :, piece.expert]
        rows = range(*(piece.source.rows or (0, len(up))))
        if rows and rows[-1] >= len(up):
            raise FormatError(f"rows {rows.start} to {rows.stop} are asked of {len(up)}")
        return self._down.reshape(experts, module.rank, width)[piece.expert], up[rows.start : rows.stop : rows.step]

    def rows(self, field: str, piece: Piece) -> Array:
        """Returns the rows of a piece of a tensor that has a row for each output; of a vector it is [n, 1]."""
        tensor: TensorFacts = getattr(self._module, field)
        transform = "unpermute_heads" if piece.source.transform == "unpermute_heads" else "none"
        source = replace(piece.source, tensor=tensor.name, transform=transform, index=piece.expert)
        return self._values(tensor, source)

    @cached_property
    def _down(self) -> Array:
        return self._whole(self._module.down)

    @cached_property
    def _up(self) -> Array:
        return self._whole(self._module.up)

    def _whole(self, tensor: TensorFacts | None) -> Array:
        assert tensor is not None, "the module has this tensor"
        return self._values(tensor, WeightSource(tensor.name))

    def _values(self, tensor: TensorFacts, source: WeightSource) -> Array:
        rows = StoredRows(tensor, source, self._reader.read)
        values = rows.values(0, len(rows))
        if not np.isfinite(values).all():
            raise FormatError(f"{tensor.name} has a number that is not finite")
        return values
