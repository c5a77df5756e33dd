"""Norms as data."""

import msgspec

from appliance.program.record import NormKind


class NormSpec(msgspec.Struct, frozen=True):
    """An RMS norm or a layer norm, and which vectors it has."""

    kind: NormKind
    eps: float
    weight: bool = True
    bias: bool = False
