"""What an engine tells of experts that move between ranks."""

from typing import Protocol, runtime_checkable

import msgspec


class ExpertStats(msgspec.Struct, frozen=True, kw_only=True):
    """num_moved: places that got another expert since the start, in num_rearranged rearrangements. balancedness: the
    mean load of a rank divided by the largest, of the last steps. seconds: in which experts moved. speed_up: how much
    faster steps were after the last rearrangement; 0 while that is not measured. is_off: experts move no more, as that
    made steps no faster."""

    num_moved: int
    num_rearranged: int
    balancedness: float
    seconds: float
    speed_up: float
    is_off: bool


class Moving(Protocol):
    """What moves experts."""

    @property
    def stats(self) -> ExpertStats: ...


@runtime_checkable
class _Group(Protocol):
    """An executable of several ranks. experts: None if they stay where they are."""

    experts: Moving | None


def moving_of(executable: object) -> Moving | None:
    """Returns what moves the experts of an executable; None where they stay."""
    return executable.experts if isinstance(executable, _Group) else None


def expert_stats(executable: object) -> ExpertStats | None:
    """Returns what an executable tells of experts that move; None where they stay."""
    moving = moving_of(executable)
    return None if moving is None else moving.stats
