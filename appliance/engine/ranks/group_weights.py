"""New weights of a group of ranks: each reads its own rows, and all put them in place, or none does."""

from collections.abc import Callable, Sequence
from typing import Protocol

from appliance.base.errors import ApplianceError
from appliance.engine.ranks.messages import CommitWeights, DropWeights, RankStaged, StageWeights, ToRank
from appliance.engine.weight_messages import WeightUpdate
from appliance.engine.weight_staging import StagedUpdate, Staging


class RankWeightsError(ApplianceError):
    """A rank cannot take the new weights."""


class Stagers(Protocol):
    """The other ranks."""

    def send(self, message: ToRank) -> None: ...

    def wait_staged(self) -> Sequence[tuple[int, RankStaged]]:
        """Waits until all have read; returns what each says, with its number. May be called from another thread.
        Raises RankFailedError."""

    def wait_done(self) -> str | None:
        """Waits until all have done what they were told; returns why one could not. Raises RankFailedError."""


class GroupStaging:
    """All ranks, the leader among them. Messages go out between two steps alone, so that they reach all before the same
    step."""

    def __init__(self, own: Staging, others: Stagers) -> None:
        self._own, self._others = own, others

    def begin(self, update: WeightUpdate, digest_before: str) -> Callable[[], StagedUpdate]:
        self._others.send(StageWeights(update, digest_before))
        read = self._own.begin(update, digest_before)
        return lambda: self._stage(read)

    def drop(self) -> None:
        self._others.send(DropWeights())

    def close(self) -> None:
        self._own.close()

    def _stage(self, read: Callable[[], StagedUpdate]) -> StagedUpdate:
        """Raises RankWeightsError where another rank cannot take the weights, and what the leader's own raise."""
        try:
            own = read()
        except BaseException:
            self._others.wait_staged()
            raise
        try:
            self._check(self._others.wait_staged(), own.digest)
        except BaseException:
            own.weights.close()
            raise
        return StagedUpdate(_OfAll(own, self._others), own.digest)

    def _check(self, told: Sequence[tuple[int, RankStaged]], digest: str) -> None:
        for rank, staged in told:
            if staged.error is not None:
                raise RankWeightsError(f"rank {rank}: {staged.error}")
            if staged.digest != digest:
                raise RankWeightsError(f"rank {rank} has read other weights, whose digest is {staged.digest}")


class _OfAll:
    """What all ranks have staged."""

    def __init__(self, own: StagedUpdate, others: Stagers) -> None:
        self._own, self._others = own.weights, others

    def commit(self) -> None:
        """Raises RankFailedError, and what the leader's own raises: then the group cannot go on."""
        self._others.send(CommitWeights())
        self._own.commit()
        if (reason := self._others.wait_done()) is not None:
            raise RankWeightsError(reason)

    def close(self) -> None:
        self._others.send(DropWeights())
        self._own.close()
