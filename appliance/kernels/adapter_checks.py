"""Checks adapters before they are put into slots, in the same way for all kernel sets."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from appliance.kernels.errors import BindError
from appliance.kernels.interface import WeightChange
from appliance.program.adapters import AdapterPlace


def check_change(name: str, own: WeightChange, places: Mapping[str, AdapterPlace], dtype: np.dtype[Any]) -> None:
    """Raises BindError if there is no place for a change of the weight `name`, or it does not fit there."""
    if name not in places:
        raise BindError(f"there is no place for an adapter of {name}")
    place = places[name]
    width, in_width = dict(place.shapes())[name]
    stored = [each for each in (own.down, own.up, own.stretch, own.shift) if each is not None]
    if {each.dtype for each in stored} != {dtype}:
        kinds = " and ".join(sorted({str(each.dtype) for each in stored}))
        raise BindError(f"an adapter of {name} is in {kinds or 'nothing'}, not {dtype}")
    if own.down is None and own.up is not None and (not place.takes_whole or own.up.shape != (width, in_width)):
        raise BindError(f"an adapter of {name} has a whole matrix {own.up.shape}, for which there is no place")
    if own.down is not None and (own.up is None or not _is_product(own.down, own.up, (width, in_width))):
        shape = None if own.up is None else own.up.shape
        raise BindError(f"an adapter of {name} is {shape} @ {own.down.shape}, and the weight {(width, in_width)}")
    if own.down is not None and not 0 < own.rank <= place.max_rank:
        raise BindError(f"an adapter of {name} has rank {own.rank}; the slots are for ranks up to {place.max_rank}")
    vectors = [each for each in (own.stretch, own.shift) if each is not None]
    if any(each.shape != (width,) for each in vectors) or (vectors and place.is_table):
        raise BindError(f"an adapter of {name} has a vector of another size than {width}")


def _is_product(down: np.ndarray, up: np.ndarray, shape: tuple[int, int]) -> bool:
    return (up.shape[0], down.shape[1]) == shape and up.shape[1] == down.shape[0]
