"""Random numbers in place of a checkpoint's tensors, spread as a model's weights are before it is trained."""

import hashlib
from collections.abc import Iterable
from functools import lru_cache, partial
from math import prod
from types import MappingProxyType
from typing import Final

import numpy as np

from appliance.checkpoint.config import text_config
from appliance.checkpoint.facts import ModelFacts, TensorFacts
from appliance.checkpoint.last_read import LastRead
from appliance.layers.spec import WeightSource
from appliance.loading.formats.bits import Array
from appliance.loading.formats.dense import narrow

_POOL: Final = 2_097_143  # a prime, so that no two rows of a matrix begin at the same place of the pool
_SPREAD: Final = 0.02  # of most configs of transformers that state none
_TIME_STEPS: Final = ("dt_bias", "dt_proj.bias")


class RandomTensors:
    """Makes the stored bytes of each tensor from the seed and the tensor's name.

    Matrices are normal with the config's `initializer_range`; biases are 0, norms 1, and decay rates and time steps of
    recurrent mixers as these are initialised. All matrices are pieces of one pool of numbers, which costs no more to
    read than a file.
    """

    def __init__(self, facts: ModelFacts, sources: Iterable[WeightSource], seed: int) -> None:
        self._tensors = MappingProxyType({tensor.name: tensor for tensor in facts.tensors})
        self._zero_means_one = {source.tensor for source in sources if source.transform == "add_one"}
        self._spread = float(text_config(facts.config).get("initializer_range") or _SPREAD)
        self._seed = seed
        self._last = LastRead()

    def read(self, name: str) -> Array:
        """Returns the bytes, uint8 [size_bytes]."""
        return self._last.read(name, partial(self._make, self._tensors[name]))

    def will_need(self, name: str) -> None:
        """Does nothing: there is no file to read ahead."""

    def release(self, name: str, start: int, stop: int) -> None:
        """Does nothing: the bytes are of no file, and go with their array."""

    def _make(self, tensor: TensorFacts) -> Array:
        if len(tensor.shape) > 1:
            pool = _pool(self._seed, self._spread, tensor.storage)
            values: Array = np.resize(np.roll(pool, -self._place(tensor.name)), prod(tensor.shape))
        else:
            values = narrow(self._vector(tensor), tensor.storage)
        raw: Array = values.view(np.uint8)
        return raw

    def _vector(self, tensor: TensorFacts) -> Array:
        """Returns the initial values of a vector, f32."""
        size, ending = prod(tensor.shape), tensor.name.rpartition(".")[2]
        uniform = np.random.default_rng([self._seed, self._place(tensor.name)]).random(size, np.float32)
        if ending == "A_log":
            return np.asarray(np.log1p(np.float32(15.0) * uniform), np.float32)
        if tensor.name.endswith(_TIME_STEPS):  # a softplus of it is a time step between 0.001 and 0.1
            steps = np.exp(np.log(0.001) + uniform * np.log(100.0))
            return np.asarray(np.log(np.expm1(steps)), np.float32)
        is_zero = "bias" in ending or tensor.name in self._zero_means_one
        return np.full(size, 0.0 if is_zero else 1.0, np.float32)

    def _place(self, name: str) -> int:
        """Returns where in the pool a tensor begins."""
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") % _POOL


@lru_cache(maxsize=2)
def _pool(seed: int, spread: float, storage: str) -> Array:
    values = np.random.default_rng(seed).standard_normal(_POOL, np.float32)
    return narrow(values * np.float32(spread), storage)
