"""What an engine tells of its graphs."""

import msgspec


class GraphStats(msgspec.Struct, frozen=True, kw_only=True):
    """num_captured: sizes of steps that run as graphs by now, of the num_planned ones. seconds: what capturing took."""

    num_captured: int
    num_planned: int
    seconds: float
