"""The new weights of one rank beside its leader, from the word to read them until they are in place."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from appliance.engine.ranks.messages import CommitWeights, DropWeights, FromRank, RankDone, RankStaged, StageWeights
from appliance.engine.weight_staging import StagedUpdate, Staging, be_nice, reason_of


class RankWeights:
    """Does what its leader says of new weights, in order; they are read on a thread beside the steps."""

    def __init__(self, staging: Staging, replaced: Callable[[], None], say: Callable[[FromRank], None]) -> None:
        """replaced: is called when the weights are no longer the planned ones."""
        self._staging, self._replaced, self._say = staging, replaced, say
        self._worker = ThreadPoolExecutor(1, "weights", be_nice)
        self._staged: Future[StagedUpdate | None] | None = None

    def handle(self, message: StageWeights | CommitWeights | DropWeights) -> None:
        match message:
            case StageWeights(update, digest_before):
                read = self._staging.begin(update, digest_before)
                self._staged = self._worker.submit(self._read, read)
            case CommitWeights():
                staged = self._take()
                assert staged is not None, "the leader commits what all have read"
                staged.weights.commit()
                self._replaced()
                self._say(RankDone())
            case DropWeights():
                if (staged := self._take()) is not None:
                    staged.weights.close()

    def close(self) -> None:
        """Ends, before the executable is closed; waits for what is being read."""
        self._worker.shutdown(wait=False, cancel_futures=True)
        self._staging.close()

    def _take(self) -> StagedUpdate | None:
        """Returns what was read, once it was, if anything was."""
        staged, self._staged = self._staged, None
        return None if staged is None else staged.result()

    def _read(self, read: Callable[[], StagedUpdate]) -> StagedUpdate | None:
        try:
            staged = read()
        except Exception as error:  # noqa: BLE001 - whatever new weights raise, the old ones serve on
            self._say(RankStaged(error=reason_of(error)))
            return None
        self._say(RankStaged(digest=staged.digest))
        return staged
