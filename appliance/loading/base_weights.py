"""Reads single weights of a checkpoint as f32: what an adapter that depends on its base model needs of it."""

from collections.abc import Mapping
from functools import cached_property

from appliance.checkpoint.facts import ModelFacts, TensorFacts
from appliance.checkpoint.opening import open_source
from appliance.layers.spec import WeightSource
from appliance.loading.formats.bits import Array
from appliance.loading.formats.translate import StoredRows
from appliance.loading.inventory import WeightError
from appliance.models.describe import build_decoder


class BaseWeights:
    """The logical weights of a checkpoint, as they are stored: quantized ones are dequantized."""

    def __init__(self, facts: ModelFacts, max_model_len: int) -> None:
        self._facts = facts
        self._max_model_len = max_model_len
        self.was_read = False  # an adapter depends on it
        self.is_outdated = False  # the model has other weights by now

    def has(self, name: str) -> bool:
        """Returns whether the model has this weight."""
        return name in self._sources

    def read(self, name: str) -> Array:
        """Returns a logical weight as f32 [n, d]; a vector is [n, 1]. The head of a model that has none of its own is
        its embedding. Raises KeyError if there is no such weight, WeightError if the model has others by now."""
        if self.is_outdated:
            message = "the model's weights were replaced, and this adapter depends on those of its checkpoint"
            raise WeightError(message, hint="start again with the new checkpoint")
        self.was_read = True
        own = "embed" if name == "head" and name not in self._sources else name
        source = self._sources[own]
        with open_source(self._facts) as reader:
            rows = StoredRows(self._tensors[source.tensor], source, reader.read)
            return rows.values(0, len(rows))

    @cached_property
    def _sources(self) -> Mapping[str, WeightSource]:
        return build_decoder(self._facts, self._max_model_len).weights

    @cached_property
    def _tensors(self) -> Mapping[str, TensorFacts]:
        return {tensor.name: tensor for tensor in self._facts.tensors}
