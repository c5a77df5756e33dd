"""The set of adapters changes in a running engine: streams go on, what is wrong is refused, and memory comes back."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from appliance.checkpoint.adapter import read_adapter
from appliance.engine.adapter_messages import AdapterSet, AdaptersServed
from appliance.engine.adapters import AdapterStore
from appliance.engine.boot import AdapterRefusedError
from appliance.engine.inproc import InprocEngine
from appliance.engine.loop import EngineLoop
from appliance.engine.messages import (
    ErrorKind,
    GenerateRequest,
    OutputBatch,
    SamplingParams,
    SequenceOutput,
    UtilityRequest,
    UtilityResult,
)
from appliance.plan.adapter_files import adapter_plan
from appliance.plan.prepare import prepare
from appliance.plan.types import AdapterPlan, EnginePlan
from tests.e2e.served import NUM_ADAPTED, make_random_adapter, make_random_model

SPEC = """\
api_version: appliance/v1
kind: Deployment
name: base
model: {source: ./model, dtype: float32}
cache: {dtype: float32, num_blocks: 256}
scheduler: {max_num_seqs: 8}
loading: {keep_packed: false}
lora: {max_loras: 2, max_rank: 8, adapters: [{name: a, source: ./a}]}
"""
LENGTH = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("changes")
    (path / "model").mkdir()
    make_random_model(path / "model")
    for seed, name in enumerate(("a", "b", "c", "d"), 1):
        make_random_adapter(path / name, seed)
    (path / "spec.yaml").write_text(SPEC)
    return path


@pytest.fixture(scope="module")
def plan(folder: Path) -> EnginePlan:
    return prepare(folder / "spec.yaml").plan


def planned(folder: Path, name: str, called: str = "", **changes: object) -> AdapterPlan:
    return msgspec.structs.replace(adapter_plan(called or name, read_adapter(folder / name)), **changes)


@dataclass
class Running:
    """An engine, and what it has said."""

    engine: InprocEngine
    said: dict[str, list[int]] = field(default_factory=dict)
    ended: dict[str, SequenceOutput] = field(default_factory=dict)
    results: list[UtilityResult] = field(default_factory=list)
    told: list[AdaptersServed] = field(default_factory=list)

    @property
    def loop(self) -> EngineLoop:
        return self.engine._loop

    @property
    def store(self) -> AdapterStore:
        assert self.loop._adapters is not None
        return self.loop._adapters._store

    def ask(self, name: str, adapter: str | None, number: int = 0, length: int = LENGTH) -> None:
        sampling = SamplingParams(max_tokens=length, temperature=0.8, seed=number, ignore_eos=True)
        prompt = [40 + (number * 7 + at) % 80 for at in range(20)]
        self.engine.send(GenerateRequest(request_id=name, prompt_token_ids=prompt, sampling=sampling, adapter=adapter))

    def change(self, *adapters: AdapterPlan) -> None:
        self.engine.send(AdapterSet(call_id="change", adapters=adapters))

    def step(self) -> None:
        for event in self.engine.receive():
            match event:
                case OutputBatch():
                    for output in event.outputs:
                        self.said.setdefault(output.request_id, []).extend(output.token_ids)
                        if output.finish_reason is not None:
                            self.ended[output.request_id] = output
                case UtilityResult():
                    self.results.append(event)
                case AdaptersServed():
                    self.told.append(event)

    def until_changed(self, count: int = 1) -> None:
        """Steps until changes have been answered, however slowly files are read."""
        while len(self.results) < count:
            assert self.loop._adapters is not None
            self.loop._adapters.wait(10.0)
            self.step()
            self.loop._scheduler.check_invariants()

    def run(self) -> None:
        while self.engine.has_work:
            self.step()
            self.loop._scheduler.check_invariants()

    def changed(self, *adapters: AdapterPlan) -> UtilityResult:
        """Changes the set while nothing else runs."""
        self.change(*adapters)
        self.run()
        return self.results[-1]

    def answer(self, adapter: str | None, number: int = 0) -> list[int]:
        name = f"{adapter} {number} {len(self.said)}"
        self.ask(name, adapter, number)
        self.run()
        assert self.ended[name].error is None, self.ended[name].error
        return self.said[name]


@pytest.fixture
def running(plan: EnginePlan) -> Iterator[Running]:
    with InprocEngine.from_plan(plan) as engine:
        yield Running(engine)


@pytest.fixture(scope="module")
def alone(folder: Path, plan: EnginePlan) -> dict[tuple[str | None, int], list[int]]:
    """What each adapter says of each prompt in an engine that serves it from the start."""
    answers = {}
    for name in ("a", "b", "c"):
        assert plan.adapters is not None
        adapters = msgspec.structs.replace(plan.adapters, served=(planned(folder, name),))
        with InprocEngine.from_plan(msgspec.structs.replace(plan, adapters=adapters)) as engine:
            run = Running(engine)
            for number in range(4):
                answers[None, number] = run.answer(None, number)
                answers[name, number] = run.answer(name, number)
    assert len({tuple(tokens) for tokens in answers.values()}) == len(answers), "adapters change what is said"
    return answers


def test_streams_go_on_while_the_set_changes(
    running: Running, folder: Path, alone: dict[tuple[str | None, int], list[int]]
) -> None:
    for number, adapter in enumerate((None, "a", "a", None)):
        running.ask(f"stream {number}", adapter, number)
    for _ in range(4):
        running.step()
    running.change(planned(folder, "b"), planned(folder, "c"))
    running.until_changed()
    assert running.results[0].error is None
    assert not running.ended, "the streams still run"
    running.ask("new", "b", 1)
    running.ask("late", "a", 1)
    running.run()
    for number, adapter in enumerate((None, "a", "a", None)):
        assert running.said[f"stream {number}"] == alone[adapter, number]
    assert running.said["new"] == alone["b", 1]
    assert (running.ended["late"].error_kind, running.ended["late"].error) == (
        ErrorKind.NOT_FOUND, "the adapter 'a' is not served",
    )  # fmt: skip
    assert running.answer("c", 2) == alone["c", 2]


def test_each_client_hears_what_is_served_and_that_it_was_checked(running: Running, folder: Path) -> None:
    make_random_adapter(folder / "zero", 9, strength=0.0)
    running.changed(planned(folder, "b", scale=0.5), planned(folder, "zero"))
    [told] = running.told
    assert [(each.adapter.name, each.adapter.scale, each.effective_modules, each.num_modules, each.is_verified)
            for each in told.adapters] == [("b", 0.5, NUM_ADAPTED, NUM_ADAPTED, True),
                                           ("zero", 1.0, 0, NUM_ADAPTED, False)]  # fmt: skip
    assert told.adapters[1].note == "it adds nothing: its matrices are zero"
    assert running.loop.adapters_served() == told
    assert running.answer("zero") == running.answer(None)


def test_memory_comes_back_to_the_byte(running: Running, folder: Path) -> None:
    a = planned(folder, "a")
    before = running.store.size_bytes
    assert before > 0
    running.changed(a, planned(folder, "b"), planned(folder, "c"))
    running.answer("b")
    assert running.store.size_bytes == 3 * before
    running.changed(a)
    assert running.store.size_bytes == before
    assert running.loop._scheduler.adapters.kept() == {a.sha256}
    running.changed()
    assert running.store.size_bytes == 0
    assert running.loop._scheduler.adapters.kept() == set()


def test_an_adapter_stays_in_memory_while_a_request_has_it(running: Running, folder: Path) -> None:
    running.ask("stream", "a", 1)
    running.ask("waits", "a", 2)
    running.step()
    running.change()
    running.until_changed()
    assert not running.ended
    assert running.store.size_bytes > 0
    running.run()
    assert running.ended.keys() == {"stream", "waits"}
    running.changed()
    assert running.store.size_bytes == 0


def test_other_content_under_a_name_is_another_adapter(
    running: Running, folder: Path, alone: dict[tuple[str | None, int], list[int]]
) -> None:
    assert running.answer("a", 1) == alone["a", 1]
    assert running.changed(planned(folder, "b", "a")).error is None
    assert running.answer("a", 1) == alone["b", 1], "cached keys and values are the old adapter's"


def test_a_scale_of_a_request_stands_in_place_of_the_adapters(running: Running, folder: Path) -> None:
    running.changed(planned(folder, "a"), planned(folder, "a", "half", scale=0.5))
    wanted = {0.5: running.answer("half", 1), 0.0: running.answer(None, 1), 1.0: running.answer("a", 1)}
    for scale, tokens in wanted.items():
        for name in ("a", "half"):
            message = GenerateRequest(
                request_id=f"{name} {scale}",
                prompt_token_ids=[40 + (7 + at) % 80 for at in range(20)],
                sampling=SamplingParams(max_tokens=LENGTH, temperature=0.8, seed=1, ignore_eos=True),
                adapter=name,
                adapter_scale=scale,
            )
            running.engine.send(message)
            running.run()
            assert running.said[message.request_id] == tokens


def spoil(folder: Path, name: str, how: str) -> AdapterPlan:
    path = folder / f"{name}-{how}"
    make_random_adapter(path, 5, rank=12 if how == "rank" else 4, strength=1e-30 if how == "weak" else 0.3)
    found = planned(folder, path.name)
    if how == "changed":
        make_random_adapter(path, 6)
    if how == "gone":
        (path / "adapter_model.safetensors").unlink()
    return found


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("rank", "has rank 12, and the slots are for ranks up to 8"),
        ("changed", "are not those that were planned"),
        ("gone", "there is no adapter_model.safetensors"),
        ("weak", "changes nothing that the model says, and is not zero"),
    ],
)
def test_a_bad_adapter_is_refused_and_the_set_before_is_served(
    running: Running, folder: Path, how: str, reason: str, alone: dict[tuple[str | None, int], list[int]]
) -> None:
    before = running.store.size_bytes
    result = running.changed(planned(folder, "b"), spoil(folder, "bad", how))
    assert result.error is not None
    assert reason in result.error
    assert running.told == []
    assert running.store.size_bytes == before, "what was read for the refused set is forgotten"
    assert running.answer("a", 1) == alone["a", 1]
    assert running.changed(planned(folder, "b")).error is None


def test_changes_are_carried_out_in_their_order(running: Running, folder: Path) -> None:
    for name in ("b", "c", "d"):
        running.change(planned(folder, name))
    running.run()
    assert [each.error for each in running.results] == [None] * 3
    assert [[each.adapter.name for each in told.adapters] for told in running.told] == [["b"], ["c"], ["d"]]


def test_a_check_waits_for_no_slot(running: Running, folder: Path) -> None:
    """Both slots of a step are in use for long, and a third adapter is checked meanwhile."""
    running.changed(planned(folder, "a"), planned(folder, "b"))
    running.ask("one", "a", 1, 200)
    running.ask("two", "b", 2, 200)
    for _ in range(3):
        running.step()
    running.change(planned(folder, "a"), planned(folder, "b"), planned(folder, "c"))
    running.until_changed(2)
    assert running.results[-1].error is None
    assert not running.ended
    running.run()


def test_an_engine_does_not_start_with_an_adapter_without_effect(folder: Path, plan: EnginePlan) -> None:
    assert plan.adapters is not None
    adapters = msgspec.structs.replace(plan.adapters, served=(spoil(folder, "start", "weak"),))
    with pytest.raises(AdapterRefusedError, match="changes nothing"):
        InprocEngine.from_plan(msgspec.structs.replace(plan, adapters=adapters))


@pytest.mark.parametrize("blocks", [256, 14], ids=["roomy", "tight"])
@pytest.mark.parametrize("num_open", [2, 12], ids=["few", "all rows"])
def test_adapters_change_while_requests_are_kept_where_they_are(
    blocks: int, num_open: int, plan: EnginePlan, folder: Path, alone: dict[tuple[str | None, int], list[int]]
) -> None:
    own = prepare(folder / "spec.yaml", (f"cache.num_blocks={blocks}",)).plan
    with InprocEngine.from_plan(own) as engine:
        running = Running(engine)
        for number in range(num_open):
            running.ask(f"open {number}", "a" if number % 2 else None, number % 4)
        for _ in range(4):
            running.step()
        engine.send(UtilityRequest(call_id="pause", method="pause", mode="keep"))
        running.step()
        before = {name: list(tokens) for name, tokens in running.said.items()}
        assert before
        assert running.changed(planned(folder, "a"), planned(folder, "b")).error is None
        assert running.said == before
        running.ask("new", "b", 1)
        running.run()
        assert "new" not in running.said
        engine.send(UtilityRequest(call_id="resume", method="resume"))
        running.run()
        assert running.said["new"] == alone["b", 1]
        for number in range(num_open):
            assert running.said[f"open {number}"] == alone["a" if number % 2 else None, number % 4]
