"""Changes of the model's weights: new ones are read beside the steps, and put in place when no request is open."""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from appliance.base.errors import ApplianceError
from appliance.base.log import fields, logger
from appliance.engine.adapter_changes import CHECKER
from appliance.engine.core.scheduler import Scheduler
from appliance.engine.grammar.gate import GrammarGate
from appliance.engine.messages import GenerateRequest, UtilityRequest
from appliance.engine.refusal import RequestKey
from appliance.engine.weight_messages import SettleWeights, UpdateWeights, WeightStats
from appliance.engine.weight_staging import StagedUpdate, Staging, be_nice, reason_of
from appliance.loading.updates import OtherWeights

_log = logger("engine")

NO_UPDATES = "the weights of this engine cannot be replaced: its experts move, or code of the checkpoint runs them"

_HOLDER = "weights"  # of the gate
Clock = Callable[[], float]
Answer = tuple[bytes, str, WeightStats | str]  # (client, call id, the weights now or why they are those before)


@dataclass(slots=True)
class _Change:
    client: bytes
    message: UpdateWeights
    began: float
    staging: Future[StagedUpdate]
    staged_at: float | None = None  # from here on new requests wait
    waits: bool = False  # its sender was told that it waits for SettleWeights


@dataclass(slots=True)
class ChangeProgress:
    """What follows from a step of a change: requests to abort, answers, and requests that have waited for its end."""

    aborted: list[RequestKey] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    released: list[tuple[bytes, GenerateRequest]] = field(default_factory=list)


class WeightChanges:
    """Takes one change after the other. All of it is checked and in memory before the first byte is replaced.

    No answer has tokens of two versions: the change waits until open requests have ended, or has them aborted, and new
    ones wait in the gate meanwhile. rest: cancels what the runner has begun early.
    """

    def __init__(
        self,
        staging: Staging,
        source: OtherWeights,
        scheduler: Scheduler,
        gate: GrammarGate,
        rest: Callable[[], None],
        clock: Clock = time.monotonic,
    ) -> None:
        self.stats = WeightStats()
        self._staging, self._source = staging, source
        self._scheduler, self._gate, self._rest, self._clock = scheduler, gate, rest, clock
        self._worker = ThreadPoolExecutor(1, "weights", be_nice)
        self._waiting: deque[tuple[bytes, UpdateWeights]] = deque()
        self._change: _Change | None = None

    def __bool__(self) -> bool:
        return self._change is not None or bool(self._waiting)

    def take(self, client: bytes, message: UpdateWeights | SettleWeights) -> ChangeProgress:
        """Queues a change, which `advance` carries out, or settles the one that waits for that."""
        if isinstance(message, SettleWeights):
            return self._settle(client, message)
        self._waiting.append((client, message))
        return ChangeProgress()

    def advance(self) -> ChangeProgress:
        """Does what can be done between two steps without waiting. An exception leaves the engine unusable."""
        progress = ChangeProgress()
        if self._change is None and self._waiting:
            self._change = self._begin(*self._waiting.popleft())
        change = self._change
        if change is None or not change.staging.done():
            return progress
        failure = change.staging.exception()
        if failure is not None:
            self._staging.drop()
            self._end(progress, reason_of(failure))
        elif change.message.is_held:
            if not change.waits:
                change.waits = True
                progress.answers.append((change.client, change.message.call_id, self.stats))
        elif self._is_quiet(change, progress):
            self._put(change, progress)
        return progress

    def _settle(self, client: bytes, message: SettleWeights) -> ChangeProgress:
        """Lets the weights that wait be put in place by `advance`, or forgets them."""
        progress, change = ChangeProgress(), self._change
        if change is None or not change.waits:
            progress.answers.append((client, message.call_id, "no new weights wait to be put in place"))
            return progress
        change.client, change.waits = client, False
        change.message = UpdateWeights(call_id=message.call_id, update=change.message.update)
        if not message.is_wanted:
            change.staging.result().weights.close()
            self._end(progress, self.stats)
        return progress

    def wait(self, seconds: float) -> None:
        """Waits until weights are read, at most `seconds`."""
        change = self._change
        if change is None:
            return
        if change.waits or change.staged_at is not None:
            time.sleep(seconds)  # what it waits for comes as a message, such as the end of a pause
        else:
            wait([change.staging], seconds)

    def close(self) -> None:
        """Ends, before the executable is closed. New weights that are not in place yet are forgotten when they are
        read, for which it waits."""
        self._worker.shutdown(wait=False, cancel_futures=True)
        self._staging.close()
        if self._change is not None:
            self._change.staging.add_done_callback(_forget)

    def _begin(self, client: bytes, message: UpdateWeights) -> _Change:
        began, digest = self._clock(), self.stats.digest or ""
        return _Change(client, message, began, self._worker.submit(self._staging.begin(message.update, digest)))

    def _is_quiet(self, change: _Change, progress: ChangeProgress) -> bool:
        """Holds new requests back. Says whether no other is open; else they end by themselves, or are to be aborted."""
        if change.staged_at is None:
            change.staged_at = self._clock()
            self._gate.shut(_HOLDER)
        if change.message.update.abort:
            progress.aborted = [key for key in self._scheduler.open_requests() if key[0] != CHECKER]
        return not self._scheduler.has_work

    def _put(self, change: _Change, progress: ChangeProgress) -> None:
        """Puts the new weights in place, while no request is open."""
        staged, update = change.staging.result(), change.message.update
        try:
            self._source.check_adapters()  # one may have been read meanwhile
        except ApplianceError as error:
            staged.weights.close()
            return self._end(progress, reason_of(error))
        began = self._clock()
        self._rest()
        staged.weights.commit()
        self._source.replaced()
        if update.flush_cache:
            self._scheduler.kv.reset()
        self._scheduler.kv.weights = staged.digest
        assert change.staged_at is not None, "it is staged"
        self.stats = WeightStats(
            version=self.stats.version + 1,
            digest=staged.digest,
            source=update.path or "tensors",
            label=update.label,
            staging_s=change.staged_at - change.began,
            waiting_s=began - change.staged_at,
            commit_s=self._clock() - began,
        )
        _log.info("weights were replaced", extra=fields(version=self.stats.version, sha256=staged.digest))
        return self._end(progress, self.stats)

    def _end(self, progress: ChangeProgress, outcome: WeightStats | str) -> None:
        change, self._change = self._change, None
        assert change is not None, "a change is carried out"
        if isinstance(outcome, str):
            _log.warning("new weights were refused", extra=fields(reason=outcome))
        progress.answers.append((change.client, change.message.call_id, outcome))
        progress.released = self._gate.open(_HOLDER)


def _forget(staging: Future[StagedUpdate]) -> None:
    if not staging.cancelled() and staging.exception() is None:
        staging.result().weights.close()


def no_sleep(message: UtilityRequest, weights: WeightChanges | None) -> str | None:
    """Returns why an engine may not sleep because of its weights; None if it may."""
    if message.method != "sleep" or weights is None:
        return None
    if weights:
        return "the weights are being replaced; ask again when that is over"
    if message.level > 1 and weights.stats.version:
        return "the weights were replaced, and level 2 would bring those of the plan back; level 1 keeps them"
    return None
