"""Changes of the set of served adapters: files are read beside the steps, and a token checks each new adapter."""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import msgspec

from appliance.base.errors import ApplianceError
from appliance.base.log import fields, logger
from appliance.engine.adapter_messages import AdapterReport, AdapterSet, AdaptersServed
from appliance.engine.adapters import AdapterStore
from appliance.engine.core.adapter_slots import ServedAdapter
from appliance.engine.core.scheduler import Scheduler
from appliance.engine.messages import GenerateRequest, SamplingParams, SequenceOutput, TokenLogprobs
from appliance.plan.types import AdapterPlan

_log = logger("engine")

CHECKER = b"\0adapters"  # the client of the checks, which no socket has
_NUM_TOKENS = 4  # of the prompt of a check: the embedding of one may be zero, as that of padding is
_NUM_LOGPROBS = 8  # compared; each depends on all logits
_NICENESS = 10  # of the thread that reads: a tenth of a core that steps would use

Answer = tuple[bytes, str, AdaptersServed | str]  # (client, call id, the set or why it was refused)
DropSlots = Callable[[list[int]], None]


@dataclass(slots=True)
class _Change:
    client: bytes
    message: AdapterSet
    unchecked: deque[AdapterPlan]  # in memory once `reading` is done
    reading: Future[None]
    reports: dict[str, AdapterReport] = field(default_factory=dict)  # of those that were checked, by digest


class AdapterChanges:
    """Takes one change after the other. `drop_slots` empties slots of the executable."""

    def __init__(self, store: AdapterStore, scheduler: Scheduler, vocab_size: int, drop_slots: DropSlots) -> None:
        self.current = AdaptersServed()
        self._store = store
        self._scheduler = scheduler
        self._vocab_size = vocab_size
        self._drop_slots = drop_slots
        self._reader = ThreadPoolExecutor(1, "adapters", _be_nice)
        self._waiting: deque[tuple[bytes, AdapterSet]] = deque()
        self._change: _Change | None = None
        self._reports: dict[str, AdapterReport] = {}  # of the set that is served, by digest
        self._base: TokenLogprobs | None = None  # what the model says alone
        self._is_checking = False  # a check is open in the scheduler
        self._is_retiring = False  # open requests have adapters that are served no longer

    def __bool__(self) -> bool:
        return self._change is not None or bool(self._waiting)

    def add(self, client: bytes, message: AdapterSet) -> None:
        """Queues a change; `advance` carries it out."""
        self._waiting.append((client, message))

    def advance(self) -> list[Answer]:
        """Does what can be done between two steps without waiting. Returns the answers to changes that are over."""
        if self._is_retiring:
            self._retire()
        if self._change is None:
            if not self._waiting:
                return []
            self._change = self._begin(*self._waiting.popleft())
        change = self._change
        if self._is_checking or not change.reading.done():
            return []
        failure = change.reading.exception()
        if isinstance(failure, ApplianceError | OSError):
            hint = failure.hint if isinstance(failure, ApplianceError) else None
            return [self._refuse(f"{failure}; {hint}" if hint else str(failure))]
        if failure is not None:
            raise failure
        return self._check_next(change)

    def checked(self, outputs: Iterable[SequenceOutput]) -> list[Answer]:
        """Takes the outputs of the open check."""
        answers: list[Answer] = []
        for output in outputs:
            self._is_checking = False
            if self._change is None:
                continue
            if output.logprobs is None:
                reason = output.error or "the check was aborted"
                answers.append(self._refuse(f"{self._named(self._change)} could not be checked: {reason}"))
            elif self._base is None:
                self._base = output.logprobs[0]
            else:
                answers += self._compare(self._change, output.logprobs[0])
        return answers

    def wait(self, seconds: float) -> None:
        """Waits until files are read, at most `seconds`."""
        if self._change is not None:
            wait([self._change.reading], seconds)

    def close(self) -> None:
        self._reader.shutdown(wait=False, cancel_futures=True)

    def _begin(self, client: bytes, message: AdapterSet) -> _Change:
        new = {each.sha256: each for each in message.adapters if each.sha256 not in self._reports}
        return _Change(client, message, deque(new.values()), self._reader.submit(self._read, tuple(new.values())))

    def _read(self, adapters: tuple[AdapterPlan, ...]) -> None:
        for adapter in adapters:
            self._store.load(adapter)

    def _check_next(self, change: _Change) -> list[Answer]:
        """Opens the next check; serves the set when all of it is checked."""
        while change.unchecked:
            adapter = change.unchecked[0]
            kept = self._store.kept(adapter.sha256)
            if kept.effective_modules:
                self._open_check(None if self._base is None else ServedAdapter(adapter.sha256))
                return []
            _log.warning("an adapter adds nothing: its matrices are zero", extra=fields(adapter=adapter.name))
            self._report(change, is_verified=False, note="it adds nothing: its matrices are zero")
        return [self._serve(change)]

    def _open_check(self, adapter: ServedAdapter | None) -> None:
        count = min(_NUM_TOKENS, self._scheduler.config.max_sequence_len - 1)
        prompt = [(2 * at + 1) * self._vocab_size // (2 * count) for at in range(count)]
        sampling = SamplingParams(max_tokens=1, logprobs=min(_NUM_LOGPROBS, self._vocab_size))
        message = GenerateRequest(request_id="check", prompt_token_ids=prompt, sampling=sampling, is_streamed=False)
        self._scheduler.add_check(CHECKER, message, adapter)
        self._is_checking = True

    def _compare(self, change: _Change, found: TokenLogprobs) -> list[Answer]:
        if found == self._base:
            return [self._refuse(f"{self._named(change)} changes nothing that the model says, and is not zero")]
        self._report(change, is_verified=True)
        return []

    def _report(self, change: _Change, *, is_verified: bool, note: str = "") -> None:
        adapter = change.unchecked.popleft()
        kept = self._store.kept(adapter.sha256)
        change.reports[adapter.sha256] = AdapterReport(
            adapter=adapter,
            num_modules=len(kept.maps),
            effective_modules=kept.effective_modules,
            is_verified=is_verified,
            note=note,
        )

    def _serve(self, change: _Change) -> Answer:
        adapters = change.message.adapters
        pinned = {each.sha256 for each in adapters if each.pinned}
        served = {each.name: ServedAdapter(each.sha256, each.scale, each.name, each.rank) for each in adapters}
        self._scheduler.adapters.serve(served, pinned)
        known = self._reports | change.reports
        self._reports = {each.sha256: known[each.sha256] for each in adapters}
        self.current = AdaptersServed(tuple(_of(self._reports[each.sha256], each) for each in adapters))
        self._end()
        _log.info("adapters are served", extra=fields(adapters=[each.name for each in adapters]))
        return change.client, change.message.call_id, self.current

    def _refuse(self, reason: str) -> Answer:
        change = self._change
        assert change is not None, "a change is carried out"
        self._end()
        _log.warning("a set of adapters was refused", extra=fields(reason=reason))
        return change.client, change.message.call_id, reason

    def _end(self) -> None:
        self._change = None
        self._retire()

    def _retire(self) -> None:
        """Gives back the memory of adapters that nobody needs. Open requests still need what is served no longer."""
        slots, served = self._scheduler.adapters, self._reports.keys()
        if dropped := slots.drop_unneeded():
            self._drop_slots(dropped)
        needed = slots.needed() | served
        self._store.keep_only(needed if self._change is None else needed | {*self._change.reports} | _new(self._change))
        self._is_retiring = bool(needed - served)

    @staticmethod
    def _named(change: _Change) -> str:
        return f"the adapter {change.unchecked[0].name}" if change.unchecked else "the adapters"


def _new(change: _Change) -> set[str]:
    return {each.sha256 for each in change.unchecked}


def _of(report: AdapterReport, adapter: AdapterPlan) -> AdapterReport:
    """Returns a report of the same content under another name or scale."""
    return msgspec.structs.replace(report, adapter=adapter)


def _be_nice() -> None:
    """Lets every other thread of the process go before this one (setpriority(2) takes threads on Linux)."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
