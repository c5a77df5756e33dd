"""Slots of adapters: running sequences have theirs, more adapters than slots take turns, and none waits for ever."""

import random

import msgspec
import pytest

from appliance.engine.core.adapter_slots import AdapterSlots, ServedAdapter
from appliance.engine.core.admission import MOST_PASSED
from appliance.engine.core.config import SchedulerConfig
from appliance.engine.core.scheduler import Scheduler
from appliance.engine.messages import GenerateRequest
from appliance.engine.refusal import Refusal
from appliance.engine.step import StepPlan

from .simulator import Harness, generate

SLOTS = 3


def harness(num_adapters: int, **changes: object) -> Harness:
    values: dict[str, object] = {
        "max_model_len": 128, "block_size": 4, "num_blocks": 64, "max_num_seqs": 8, "max_num_batched_tokens": 32,
        "max_num_sampled": 8, "max_loras": SLOTS,
    }  # fmt: skip
    scheduler = Scheduler(SchedulerConfig(**(values | changes)))  # type: ignore[arg-type]  # free keywords
    scheduler.adapters.served = {f"a{number}": ServedAdapter(f"digest {number}") for number in range(num_adapters)}
    return Harness(scheduler)


def asking(name: str, adapter: str | None, length: int, max_tokens: int, **fields: object) -> GenerateRequest:
    prompt = [1 + position % 90 for position in range(length)]
    return msgspec.structs.replace(generate(name, prompt, max_tokens), adapter=adapter, **fields)


class Slots:
    """What the executable's slots hold, by the plans of steps."""

    def __init__(self) -> None:
        self.content: dict[int, str] = {}
        self.of_row: dict[int, tuple[int, str]] = {}

    def follow(self, plan: StepPlan, run: Harness) -> None:
        for row in plan.freed_rows:
            self.of_row.pop(row, None)
        for slot, digest in plan.adapter_puts:
            assert slot not in {taken for taken, _ in self.of_row.values()}, "a slot in use is written"
            self.content[slot] = digest
        for new in plan.new_rows:
            if new.adapter_slot >= 0:
                self.of_row[new.row] = (new.adapter_slot, self.content[new.adapter_slot])


@pytest.mark.parametrize("num_blocks", [64, 20])
@pytest.mark.parametrize("times", [1, 2, 8])
def test_more_adapters_than_slots_take_turns(times: int, num_blocks: int) -> None:
    run, slots, chance = harness(times * SLOTS, num_blocks=num_blocks), Slots(), random.Random(times)
    wanted = {}
    for number in range(60):
        adapter = chance.choice([None, *run.scheduler.adapters.served])
        wanted[number] = None if adapter is None else run.scheduler.adapters.served[adapter].sha256
        message = asking(str(number), adapter, chance.randrange(3, 30), chance.randrange(1, 20))
        run.scheduler.add(b"", message)
    while run.scheduler.has_work:
        run.step()
        slots.follow(run.steps[-1], run)
        for new in run.steps[-1].new_rows:
            assert slots.of_row.get(new.row, (-1, None))[1] == wanted[new.sequence_id]
        run.scheduler.check_invariants()
    if times == 1:
        assert run.scheduler.adapters.num_puts == SLOTS


def test_a_slot_falls_free_for_one_that_waits() -> None:
    run = harness(2, max_loras=1, max_num_seqs=4)
    for number in range(4):
        run.scheduler.add(b"", asking(f"first{number}", "a0", 4, 5 + number))
    run.step()
    run.scheduler.add(b"", asking("other", "a1", 4, 1))
    num_added = 0
    while all(new.sequence_id != 4 for new in run.steps[-1].new_rows):
        assert num_added < 1000, "a sequence waits for ever"
        run.scheduler.add(b"", asking(f"more{num_added}", "a0", 4, 5))
        run.step()
        num_added += 1
    assert num_added > MOST_PASSED, "others pass it while the slot is in use"
    assert run.scheduler.adapters.num_puts == 2


def test_sequences_without_an_adapter_never_wait_for_slots() -> None:
    run = harness(2, max_loras=1)
    run.scheduler.add(b"", asking("first", "a0", 4, 50))
    run.step()
    run.scheduler.add(b"", asking("other", "a1", 4, 1))
    run.scheduler.add(b"", asking("base", None, 4, 1))
    run.step()
    assert [new.adapter_slot for new in run.steps[-1].new_rows] == [-1]


def test_prefixes_are_of_one_adapter_and_scale() -> None:
    run = harness(2)
    run.scheduler.adapters.served = {
        "one": ServedAdapter("x"), "same": ServedAdapter("x"), "half": ServedAdapter("x", 0.5),
        "two": ServedAdapter("y"),
    }  # fmt: skip
    starts = {}
    for name in ("one", "same", "half", "two", None):
        run.scheduler.add(b"", asking(str(name), name, 21, 1))
        run.run()
        starts[name] = next(plan.chunks[0].start for plan in run.steps[::-1] if plan.new_rows)
    assert starts == {"one": 0, "same": 20, "half": 0, "two": 0, None: 0}


def test_an_unknown_adapter_is_refused() -> None:
    run = harness(1)
    with pytest.raises(Refusal, match="'a7' is not served"):
        run.scheduler.add(b"", asking("x", "a7", 4, 1))


@pytest.mark.parametrize(("times", "most_writes"), [(1, SLOTS), (2, 50), (8, 150)])
def test_a_working_set_beyond_the_slots_neither_starves_nor_thrashes(times: int, most_writes: int) -> None:
    """400 requests, 48 of them open at a time, over so many times the slots: slots are written for runs of requests
    and not for each, and no request waits much longer than most do."""
    run, chance = harness(times * SLOTS, num_blocks=400), random.Random(3)
    names, num_requests = [*run.scheduler.adapters.served], 400
    added: dict[int, int] = {}
    waited: dict[int, int] = {}
    while len(added) < num_requests or run.scheduler.has_work:
        while len(added) < num_requests and len(run.scheduler.open_requests()) < 48:
            message = asking(str(len(added)), chance.choice(names), chance.randrange(3, 20), chance.randrange(5, 20))
            run.scheduler.add(b"", message)
            added[len(added)] = len(run.steps)
        run.step()
        for new in run.steps[-1].new_rows:
            waited.setdefault(new.sequence_id, len(run.steps) - added[new.sequence_id])
    assert len(waited) == num_requests
    assert max(waited.values()) < 3 * sorted(waited.values())[num_requests // 2]
    assert run.scheduler.adapters.num_puts <= most_writes


def taken(slots: AdapterSlots, *names: str) -> None:
    for name in names:
        adapter = slots.served[name]
        assert slots.can_take(adapter)
        slots.take(adapter)
        slots.release(adapter)


def slots_of(num_adapters: int, max_loras: int = 2, pinned: tuple[str, ...] = ()) -> AdapterSlots:
    slots = AdapterSlots(max_loras)
    slots.serve({f"a{number}": ServedAdapter(f"d{number}") for number in range(num_adapters)}, pinned)
    return slots


def test_what_is_pinned_or_waited_for_gives_way_last() -> None:
    slots = slots_of(6, pinned=("d0",))
    slots.count_waiting(slots.served["a1"], 1)
    taken(slots, "a0", "a1", "a2", "a3", "a4")
    assert slots.kept() == {"d0", "d1", "d4"}
    slots.count_waiting(slots.served["a1"], -1)
    taken(slots, "a5")
    assert slots.kept() == {"d0", "d4", "d5"}


def test_an_adapter_of_a_pinned_slot_always_starts() -> None:
    slots = slots_of(4, pinned=("d0",))
    slots.take(slots.served["a1"])
    assert not slots.can_take(slots.served["a2"]), "the other slot is the pinned adapter's"
    assert slots.can_take(slots.served["a0"])
    slots.take(slots.served["a0"])
    assert slots.can_take(slots.served["a2"], is_check=True)
    slots.take(slots.served["a2"], is_check=True)
    assert slots.kept() == {"d0", "d1", "d2"}
    assert not slots.can_take(slots.served["a3"])


def test_slots_of_what_nobody_needs_are_emptied() -> None:
    slots = slots_of(3)
    slots.take(slots.served["a0"])
    taken(slots, "a1")
    slots.take_puts()
    gone = slots.served["a0"]
    slots.serve({"a2": slots.served["a2"]})
    assert slots.drop_unneeded() == [1], "a running sequence has a0"
    slots.release(gone)
    assert (slots.drop_unneeded(), slots.kept()) == ([0], set())
