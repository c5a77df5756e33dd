"""The scheduler's books: which sequences are open, waiting and running, and on which row."""

import heapq
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable

from appliance.engine.core.adapter_slots import AdapterSlots
from appliance.engine.core.config import SchedulerConfig
from appliance.engine.core.draft_states import DraftStates
from appliance.engine.core.kv_manager import KvManager
from appliance.engine.core.policy import PolicyKey
from appliance.engine.core.prefix_cache import HASHERS
from appliance.engine.core.sequence import Request, Sequence, Status
from appliance.engine.core.snapshots import Snapshots
from appliance.engine.core.swapping import SwapSpace
from appliance.engine.refusal import RequestKey
from appliance.program.state_slots import first_draft_state, first_snapshot

WEIGHT_OF_NEWEST = 0.05  # of the newest answer's length in the moving mean


class Books:
    """Each open sequence waits or runs. Running ones are in policy order and have a row; only they hold blocks."""

    def __init__(self, config: SchedulerConfig) -> None:
        is_caching = config.prefix_caching and config.num_snapshots != 0
        hasher = HASHERS[config.hash_algorithm]() if is_caching else None
        self.kv = KvManager(
            config.num_blocks,
            config.block_size,
            hasher,
            config.windows,
            _snapshots(config),
            has_states=config.num_snapshots is not None,
            draft_states=_draft_states(config),
        )
        self.swap = _swap_space(config, self.kv)
        self.adapters = AdapterSlots(config.max_loras, config.max_lora_rank)
        self.requests: dict[RequestKey, Request] = {}
        self.running: list[Sequence] = []
        self.by_row: list[Sequence | None] = [None] * config.max_num_seqs
        self.free_rows = list(range(config.max_num_seqs - 1, -1, -1))
        self.num_waiting = 0
        self.num_waiting_streamed = 0
        self.num_preemptions = 0
        self.mean_output = float(config.expected_output)  # tokens of finished answers: an exponential moving mean
        self._waiting: list[tuple[tuple[float, ...], int, Sequence]] = []  # a heap; finished sequences stay a while
        self._freed_rows: list[int] = []  # not yet reported to the runner

    def open(self, request: Request) -> None:
        self.requests[request.key] = request
        for sequence in request.sequences:
            self.adapters.count_waiting(request.adapter, 1)
            self.wait(sequence)

    def head(self) -> Sequence | None:
        """Returns the waiting sequence that is first by policy; None if none waits."""
        while self._waiting and self._waiting[0][2].status is not Status.WAITING:
            heapq.heappop(self._waiting)
        return self._waiting[0][2] if self._waiting else None

    def pop_head(self) -> Sequence:
        """Takes the sequence that `head` has just returned."""
        sequence = heapq.heappop(self._waiting)[2]
        self._count_waiting(sequence, -1)
        return sequence

    def wait(self, sequence: Sequence) -> None:
        sequence.status = Status.WAITING
        self._count_waiting(sequence, 1)
        heapq.heappush(self._waiting, (sequence.key, sequence.order, sequence))

    def arrange(self, key_of: Callable[[Sequence], PolicyKey]) -> None:
        """Puts all open sequences into the order of other keys."""
        waiting = [sequence for _, _, sequence in self._waiting if sequence.status is Status.WAITING]
        for sequence in (*self.running, *waiting):
            sequence.key = key_of(sequence)
        self.running.sort(key=lambda each: each.key)
        self._waiting = [(sequence.key, sequence.order, sequence) for sequence in waiting]
        heapq.heapify(self._waiting)

    def open_sequences(self) -> list[Sequence]:
        """Returns all sequences that run or wait, but for those that check an adapter."""
        requests = (request for request in self.requests.values() if not request.is_check)
        return [each for request in requests for each in request.sequences if each.status is not Status.FINISHED]

    def take_row(self, sequence: Sequence) -> None:
        """Gives a free row, and the slot of its adapter, to a sequence that left the queue, and makes it run."""
        sequence.row = self.free_rows.pop()
        request = sequence.request
        self.adapters.count_waiting(request.adapter, -1)
        sequence.adapter_slot = self.adapters.take(request.adapter, is_check=request.is_check)
        sequence.status = Status.RUNNING
        self.by_row[sequence.row] = sequence
        insort(self.running, sequence, key=lambda other: other.key)

    def last_idle(self) -> Sequence | None:
        """Returns the last running sequence, in policy order, that no step has begun to run."""
        return next((each for each in reversed(self.running) if not each.in_flight), None)

    def preempt(self, sequence: Sequence, *, trusted: bool = True) -> None:
        """Returns a running sequence to the queue. What it has in the cache moves to host memory where that is planned;
        else its tokens will be computed again. With `trusted` false, its blocks are removed from the prefix cache."""
        if self.swap is not None and trusted:
            self.swap.store(sequence)
        self._leave_row(sequence)
        self.kv.release(sequence, trusted=trusted)
        sequence.prompt_logprobs = [None]
        sequence.is_spoiled = False
        self.num_preemptions += 1
        self.adapters.count_waiting(sequence.request.adapter, 1)
        self.wait(sequence)

    def finish(self, sequence: Sequence, *, trusted: bool = True) -> None:
        """Ends an open sequence. With `trusted` false, its blocks are removed from the prefix cache."""
        if sequence.has_output:
            num_output = len(sequence.tokens) - sequence.num_prompt
            self.mean_output += WEIGHT_OF_NEWEST * (num_output - self.mean_output)
        if sequence.status is Status.RUNNING:
            self._leave_row(sequence)
            self.kv.release(sequence, trusted=trusted)
        else:
            self._count_waiting(sequence, -1)
            self.adapters.count_waiting(sequence.request.adapter, -1)
            if self.swap is not None:
                self.swap.drop(sequence)
        sequence.status = Status.FINISHED
        request = sequence.request
        if all(other.status is Status.FINISHED for other in request.sequences):
            del self.requests[request.key]

    def take_freed_rows(self) -> tuple[int, ...]:
        """Returns the rows freed since the last call."""
        freed, self._freed_rows = tuple(self._freed_rows), []
        return freed

    def check_invariants(self) -> None:
        """Raises AssertionError when the books contradict themselves. For tests only: it visits every sequence."""
        every = [sequence for request in self.requests.values() for sequence in request.sequences]
        running = [sequence for sequence in every if sequence.status is Status.RUNNING]
        waiting = [sequence for sequence in every if sequence.status is Status.WAITING]
        assert sorted(running, key=lambda s: s.key) == self.running, "running differs, or is out of order"
        assert len(waiting) == self.num_waiting, "waiting count differs"
        assert sum(s.is_streamed for s in waiting) == self.num_waiting_streamed, "count of streamed ones differs"
        queued = {id(entry[2]) for entry in self._waiting}
        assert all(id(sequence) in queued for sequence in waiting), "a waiting sequence is in no queue"
        assert all(self.by_row[sequence.row] is sequence for sequence in running), "rows differ"
        assert len(self.free_rows) + len(running) == len(self.by_row), "a row leaked"
        assert not any(s.tables for s in every if s.status is not Status.RUNNING), "blocks without a row"
        assert not any(s.swapped for s in every if s.status is not Status.WAITING), "what runs is swapped as well"
        assert all(len(table) == s.num_blocks for s in running for table in s.tables), "tables differ in length"
        assert all(self.kv.missing(s, s.num_computed) == 0 for s in running), "a table is short"
        checked = [sequence for sequence in running if sequence.request.is_check]
        assert len(checked) <= 1, "two checks of adapters run"
        self.adapters.check_invariants(_digests(s for s in running if s not in checked), _digests(waiting))
        self.kv.pool.check_invariants(held for sequence in running for held in self.kv.held(sequence))
        if self.kv.snapshots is not None:
            self.kv.snapshots.check_invariants()
        if self.kv.draft_states is not None:
            self.kv.draft_states.check_invariants(every)
        if self.swap is not None:
            self.swap.check_invariants(every)

    def _count_waiting(self, sequence: Sequence, change: int) -> None:
        self.num_waiting += change
        self.num_waiting_streamed += change * sequence.is_streamed

    def _leave_row(self, sequence: Sequence) -> None:
        self.by_row[sequence.row] = None
        self.free_rows.append(sequence.row)
        self._freed_rows.append(sequence.row)
        self.running.remove(sequence)
        sequence.row = -1
        self.adapters.release(sequence.request.adapter, is_check=sequence.request.is_check)
        sequence.adapter_slot, sequence.num_passed = -1, 0
        sequence.has_run_prompt = False
        sequence.proposals, sequence.draft, sequence.num_read = [], None, 0


def _digests(sequences: Iterable[Sequence]) -> Counter[str]:
    """Returns how many of the sequences have each adapter, by digest."""
    adapters = (sequence.request.adapter for sequence in sequences)
    return Counter(each.sha256 for each in adapters if each is not None)


def _snapshots(config: SchedulerConfig) -> Snapshots | None:
    if not config.prefix_caching or not config.num_snapshots:
        return None
    return Snapshots(config.num_snapshots, first_snapshot(config.max_num_seqs))


def _swap_space(config: SchedulerConfig, kv: KvManager) -> SwapSpace | None:
    if not config.num_swap_places:
        return None
    return SwapSpace(kv, config.num_swap_places, config.num_state_places, config.swap_place_bytes)


def _draft_states(config: SchedulerConfig) -> DraftStates | None:
    if config.num_snapshots is None or config.speculation is None:
        return None
    return DraftStates(config.num_draft_states, first_draft_state(config.max_num_seqs, config.num_snapshots))
