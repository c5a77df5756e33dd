"""What a GPU is asked for while sequences decode: shown by a stand-in, through scheduler and runner."""

from collections.abc import Iterator

import pytest

from appliance.kernels.execution import Graphs
from appliance.kernels.gpu.device import Device
from appliance.kernels.gpu.kernel_set import GpuKernelSet
from tests.engine import tiny_program
from tests.engine.test_runner import Engine, configure, drawn, greedy
from tests.engine.tiny_program import tiny_executable

from .recording import Log, recording

SIZES = Graphs(decode=(1, 2, 4, 8, 16), tokens=(4, 8, 16))
# Step n + 1 is given to the device behind the sampler of step n, and then the host waits for the tokens of step n.
STEADY = [
    *("wait for a mark", "host to device", "mark"),  # the parameters of draws, whose memory was free again
    "replay",  # the draw
    *("device to host", "mark"),  # the tokens
    *("wait for a mark", "host to device", "mark"),  # the next step's numbers
    "clamp",  # tokens that were sampled become those of the next step
    "replay",  # the next step
    "wait for a mark",  # the tokens of this step
]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    with recording(monkeypatch) as (device, log):
        monkeypatch.setattr(Device, "named", lambda kind: device)
        monkeypatch.setattr(tiny_program, "load_kernel_set", lambda name: GpuKernelSet(name, with_triton=True))
        yield log


def steps(engine: Engine, log: Log) -> list[list[str]]:
    """Runs to the end, and returns the notes of each step."""
    log.is_open = True
    found = []
    while (plan := engine.scheduler.schedule()) is not None:
        engine.scheduler.commit(plan, engine.runner.run(plan))
        found.append(log.take())
    return found


def engine_of(log: Log) -> Engine:
    config = configure(block_size=16, num_blocks=128)
    return Engine(config, executable=tiny_executable(config, kernel_set="torch", graphs=SIZES))


@pytest.mark.parametrize("kind", ["greedy", "drawn"])
def test_a_steady_decode_waits_for_one_small_copy(kind: str, log: Log) -> None:
    """No memory is allocated, no number is read from the device, and nothing waits for all of its work."""
    engine = engine_of(log)
    for number in range(3):
        request = greedy(max_tokens=40) if kind == "greedy" else drawn(name="r", max_tokens=40, seed=number)
        engine.scheduler.add(b"", request if number == 0 else drawn(name=f"o{number}", max_tokens=40, seed=number))
    notes = steps(engine, log)
    steady = [each for each in notes[20:36] if each]
    assert len(steady) == 16
    assert all(each == STEADY for each in steady), next(each for each in steady if each != STEADY)


def test_between_capture_points_nothing_is_read_or_allocated(log: Log) -> None:
    """Decodes, and the segments of prompts: kernels, and torch's writes to memory that is there."""
    engine = engine_of(log)
    log.is_open = True
    while engine.runner.executable.capture_next():  # type: ignore[attr-defined]  # a set with graphs
        pass
    log.take()
    for number in range(4):
        engine.scheduler.add(b"", drawn(name=f"d{number}", max_tokens=12, seed=number))
    steps(engine, log)
    log.is_open = False
    captured = list(log.captured)
    assert len(captured) >= len(SIZES.decode) + len(SIZES.tokens)
    draws = [graph for graph in captured if any("draw_kernel" in note for note in graph)]
    models = [graph for graph in captured if graph not in draws]
    assert all(graph for graph in captured)
    for graph in models:
        assert all(note.startswith("kernel ") for note in graph), graph
    others = {note for graph in draws for note in graph if not note.startswith("kernel ")}
    assert others == {"allocation by isnan", "allocation by any", "masked_fill_"}, "in the pool of the graphs"
    assert any("decode_kernel" in note for graph in models for note in graph), "attention is in the graph of a decode"


def test_a_prompt_waits_for_its_tokens_alone(log: Log) -> None:
    engine = engine_of(log)
    engine.scheduler.add(b"", greedy(max_tokens=4))
    first = steps(engine, log)[0]
    assert not [note for note in first if "host read" in note or note in ("upload", "synchronize")]
    assert first.count("wait for a mark") == 3
