"""Weights that were replaced, in the memory that they have: beside a file of kept weights, and through a sleep."""

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from appliance.engine.messages import UtilityRequest
from appliance.engine.weight_messages import WeightStats
from appliance.kernels.cpu.kernel_set import CpuExecutable
from appliance.kernels.cpu.packed_file import PackedFile
from appliance.kernels.cpu.staged_weights import StagedPack
from appliance.kernels.layout import CanonicalWeight
from tests.engine.test_weight_changes import Answers, answer, engine_of, known, models
from tests.server.harness import wait_until

__all__ = ["models"]


def test_a_kept_file_of_packed_weights_is_not_written(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.loading.model.MIN_BYTES", 0)
    monkeypatch.setattr("appliance.loading.model.SPARE_BYTES", 0)
    monkeypatch.setenv("APPLIANCE_CACHE", str(tmp_path / "cache"))
    expected = known(models, tmp_path, "auto")
    made: list[PackedFile] = []
    make = PackedFile.make_private
    monkeypatch.setattr(PackedFile, "make_private", lambda self: (made.append(self), make(self))[1])
    for _ in range(2):  # the second time, too, the file has the first model's weights
        with engine_of(models["a"], tmp_path) as engine:
            assert answer(engine, 0) == expected["a"][0]
            assert isinstance(Answers(engine).updated("u", path=str(models["b"])), WeightStats)
            assert [answer(engine, number) for number in range(4)] == expected["b"][:4]
    assert made, "the weights were mapped from the kept file"


def test_weights_of_a_kept_file_need_the_memory_of_their_pages_too(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.loading.model.MIN_BYTES", 0)
    monkeypatch.setattr("appliance.loading.model.SPARE_BYTES", 0)
    monkeypatch.setenv("APPLIANCE_CACHE", str(tmp_path / "cache"))
    with engine_of(models["a"], tmp_path) as engine:
        size = engine._loop._runner.executable._weights.size_bytes  # type: ignore[attr-defined] # of the CPU sets
        monkeypatch.setattr("appliance.kernels.cpu.weights.free_bytes", lambda: size * 3 // 2)
        assert isinstance(Answers(engine).updated("u", path=str(models["b"])), WeightStats)
    with engine_of(models["a"], tmp_path) as engine:
        assert "of memory can be had" in str(Answers(engine).updated("u", path=str(models["b"])))
        monkeypatch.setattr("appliance.kernels.cpu.weights.free_bytes", lambda: 2 * size)
        assert isinstance(Answers(engine).updated("v", path=str(models["b"])), WeightStats)
        monkeypatch.setattr("appliance.kernels.cpu.weights.free_bytes", lambda: size)
        assert isinstance(Answers(engine).updated("w", path=str(models["a"])), WeightStats), "its pages are its own"


@pytest.mark.parametrize("kernel_set", ["auto", "torch"])
def test_a_sleep_waits_for_no_update(kernel_set: str, models: dict[str, Path], tmp_path: Path) -> None:
    with engine_of(models["a"], tmp_path, kernel_set, "model.enable_sleep_mode=true") as engine:
        answers = Answers(engine)
        assert isinstance(answers.updated("u", path=str(models["b"])), WeightStats)
        expected = answer(engine, 0)
        engine.send(UtilityRequest(call_id="s", method="sleep", level=2))
        assert "level 1 keeps them" in str(engine.receive())
        engine.send(UtilityRequest(call_id="s", method="sleep", level=1))
        assert "wake_up" in str(answers.updated("v", path=str(models["a"])))
        engine.send(UtilityRequest(call_id="w", method="wake_up"))
        assert answer(engine, 0) == expected


@pytest.mark.parametrize("is_read", [True, False])
def test_an_engine_that_closes_ends_what_reads_new_weights_and_gives_their_memory_back(
    is_read: bool, models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading looks at the old weights, whose memory is freed then."""
    may_read, reads, staged, closed = threading.Event(), threading.Event(), list[StagedPack](), list[StagedPack]()
    stage, close = CpuExecutable.stage_weights, StagedPack.close

    def read(executable: CpuExecutable, weights: Mapping[str, CanonicalWeight]) -> StagedPack:
        reads.set()
        assert may_read.wait(10.0)
        staged.append(stage(executable, weights))
        return staged[0]

    def forget(pack: StagedPack) -> None:
        close(pack)
        closed.append(pack)

    monkeypatch.setattr(CpuExecutable, "stage_weights", read)
    monkeypatch.setattr(StagedPack, "close", forget)
    engine = engine_of(models["a"], tmp_path)
    answers = Answers(engine)
    answers.ask("open", 0, max_tokens=400, ignore_eos=True)
    answers.read()
    answers.update("u", path=str(models["b"]))
    answers.read()
    assert reads.wait(10.0)
    if is_read:
        may_read.set()
        answers.read_until_held()
    closing = threading.Thread(target=engine.close)
    closing.start()
    closing.join(0.0 if is_read else 0.2)
    assert is_read or closing.is_alive()
    may_read.set()
    closing.join(10.0)
    wait_until(lambda: bool(closed), "memory that is given back", 10.0)
    assert closed == staged
