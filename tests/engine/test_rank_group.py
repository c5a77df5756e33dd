"""An engine of several ranks: its answers are those of one rank, and a rank that is gone or late ends it by name."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from appliance.engine.inproc import InprocEngine
from appliance.engine.messages import AbortRequest, GenerateRequest, OutputBatch, SamplingParams
from appliance.engine.ranks.group import RankFailedError, RankGroup
from appliance.hardware.probe.machine import probe_machine
from appliance.kernels.errors import StepError
from appliance.kernels.interface import StepInputs
from appliance.plan.prepare import prepare
from tests.e2e.served import make_random_adapter, make_random_model
from tests.models.tiny import VOCAB_SIZE, make_tiny
from tests.parity.conftest import kernel_set_names

SPEC = """
api_version: appliance/v1
kind: Deployment
name: tiny
model: {{source: {source}, max_model_len: 128, skip_tokenizer_init: true}}
hardware: {{num_threads: 1, memory: {{kv_cache: 1MiB}}}}
scheduler: {{max_num_seqs: 6, max_num_batched_tokens: 48}}
"""

TORCH = "hardware.kernels.kernel_set=torch"  # whose ranks share no memory
SETS = {"in memory": (), "linked": (TORCH,)}

pytestmark = pytest.mark.skipif(len(kernel_set_names()) < 2, reason="no native kernel set is built here")

# Heads and few KV heads; windows in groups; experts; latents; states; and drafts, and a cache that preempts.
CASES = [
    ("llama", ("speculative.method=suffix", "speculative.num_tokens=4")),
    ("gemma3", ()),
    ("qwen2_moe", ()),
    ("deepseek3", ("speculative.method=ngram", "speculative.num_tokens=3")),
    ("jamba", ()),
    ("qwen3_next", ("speculative.method=suffix", "speculative.num_tokens=3")),
    ("recurrentgemma", ()),
    ("llama", ("cache.num_blocks=16", "hardware.memory.kv_cache=auto", "cache.dtype=int8")),
    ("llama", (TORCH, "speculative.method=suffix", "speculative.num_tokens=4")),
    ("qwen2_moe", (TORCH, "hardware.kernels.batch_invariant=true")),
]


@pytest.fixture(scope="module")
def spec_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            make_tiny(name, folder / "model")
            made[name] = folder / "spec.yaml"
            made[name].write_text(SPEC.format(source=folder / "model"))
        return made[name]

    return get


def machine_with(num_cores: int, folder: Path) -> str:
    """Writes the facts of this machine as if it had so many cores."""
    facts = probe_machine()
    cpu = msgspec.structs.replace(facts.cpu, num_cores=num_cores, num_threads=num_cores)
    path = folder / "facts.json"
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(facts, cpu=cpu)))
    return str(path)


def engine_of(spec: Path, *overrides: str) -> InprocEngine:
    return InprocEngine.from_plan(prepare(str(spec), overrides).plan)


def requests(seed: int, adapter: str | None = None) -> Iterator[GenerateRequest]:
    """Prompts of which several begin alike, each with other parameters."""
    rng = np.random.default_rng(seed)
    common = [int(token) for token in rng.integers(3, VOCAB_SIZE, 24)]
    for number in range(6):
        own = [int(token) for token in rng.integers(3, VOCAB_SIZE, rng.integers(1, 30))]
        sampling = SamplingParams(
            max_tokens=int(rng.integers(3, 10)),
            temperature=float(rng.choice([0.0, 0.8])),
            seed=number,
            logprobs=int(rng.choice([0, 3])),
            frequency_penalty=float(rng.choice([0.0, 0.5])),
        )
        prompt = common + own if number % 2 else own
        yield GenerateRequest(request_id=f"r{number}", prompt_token_ids=prompt, sampling=sampling, adapter=adapter)


def answers(
    engine: InprocEngine,
    seed: int,
    *,
    aborted: frozenset[str] = frozenset(),
    adapter: str | None = None,
    has_urgent: bool = False,
) -> dict[str, list[object]]:
    """The tokens and log-probabilities of all requests; some are aborted after their first token, and an urgent one
    comes when others run."""
    found: dict[str, list[object]] = {}
    num_open = 0
    for request in requests(seed, adapter):
        engine.send(request)
        num_open += 1
    while num_open:
        if has_urgent and len(found) > 1:
            has_urgent, num_open = False, num_open + 1
            sampling = SamplingParams(max_tokens=4, temperature=0.0)
            engine.send(
                GenerateRequest(request_id="urgent", prompt_token_ids=[*range(3, 9)], sampling=sampling, priority=-1)
            )
        for event in engine.receive():
            for output in event.outputs if isinstance(event, OutputBatch) else ():
                told = found.setdefault(output.request_id, [])
                own = output.logprobs or [None] * len(output.token_ids)
                told += [(token, repr(each)) for token, each in zip(output.token_ids, own, strict=True)]
                if output.finish_reason is not None:
                    num_open -= 1
                elif output.request_id in aborted:
                    engine.send(AbortRequest(request_ids=(output.request_id,)))
    return {name: each for name, each in found.items() if name not in aborted}


TENSOR, STAGES = ("parallelism.tensor=2",), ("parallelism.pipeline=2",)


SHAPES = [
    *((case, TENSOR) for case in CASES),
    *((case, STAGES) for case in CASES),
    (CASES[1], TENSOR + STAGES),
    (CASES[-1], TENSOR + STAGES),
]


@pytest.mark.parametrize(("case", "ranks"), SHAPES)
def test_answers_are_those_of_one_rank(
    case: tuple[str, tuple[str, ...]], ranks: tuple[str, ...], spec_of: Callable[[str], Path], tmp_path: Path
) -> None:
    name, overrides = case
    with engine_of(spec_of(name), *overrides) as one:
        expected = answers(one, 1)
    machine = machine_with(4, tmp_path)
    plan = prepare(str(spec_of(name)), (*ranks, *overrides), machine, to_run=False).plan
    with InprocEngine.from_plan(plan) as several:
        assert len(rank_processes()) == plan.parallel.num_ranks - 1
        assert answers(several, 1) == expected
        kept = answers(several, 1, aborted=frozenset({"r1", "r4"}))  # prefixes are cached by now
        assert kept == {each: expected[each] for each in kept}
        assert len(kept) == 4


def test_adapters_are_those_of_one_rank(tmp_path: Path) -> None:
    """Each rank has its rows of what an adapter changes; and a request may have several adapters."""
    (tmp_path / "model").mkdir()
    make_random_model(tmp_path / "model")
    for seed, name in enumerate(("a", "b")):
        make_random_adapter(tmp_path / name, seed)
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC.format(source=tmp_path / "model"))
    listed = ", ".join(f"{{name: {name}, source: {tmp_path / name}}}" for name in ("a", "b"))
    lora = f"lora={{max_loras: 2, max_rank: 8, adapters: [{listed}]}}"

    def texts(engine: InprocEngine) -> list[list[int]]:
        sampling, found = SamplingParams(max_tokens=12, temperature=0.8, seed=1), dict[str, list[int]]()
        chosen: list[tuple[str | None, tuple[tuple[str, float | None], ...]]]
        chosen = [(None, ()), ("a", ()), ("b", ()), ("a", (("b", 0.5),))]
        for number, (adapter, stacked) in enumerate(chosen):
            request = GenerateRequest(
                request_id=f"r{number}",
                prompt_token_ids=[*range(9, 30)],
                sampling=sampling,
                adapter=adapter,
                stacked=stacked,
            )
            engine.send(request)
        while engine.has_work:
            for event in engine.receive():
                for output in event.outputs if isinstance(event, OutputBatch) else ():
                    found.setdefault(output.request_id, []).extend(output.token_ids)
        return [found[name] for name in sorted(found)]

    with engine_of(spec, lora) as one:
        expected = texts(one)
    assert len({*map(tuple, expected)}) == 4
    for ranks in (TENSOR, STAGES):
        with engine_of(spec, lora, *ranks) as two:
            assert texts(two) == expected


def test_refused_steps_leave_the_group_in_order(spec_of: Callable[[str], Path]) -> None:
    def inputs(token: int) -> StepInputs:
        arrays = ([token], [0], [[0]], [0, 1], [1], [[[0]]], [0])
        return StepInputs(*(np.array(each, np.int32) for each in arrays))

    logits = []
    for overrides in ((), TENSOR, STAGES):
        with engine_of(spec_of("llama"), *overrides) as engine:
            executable = engine._loop._runner.executable
            for token in (5, 6):
                for _ in range(5):
                    with pytest.raises(StepError, match="outside the vocabulary"):
                        executable.run(inputs(-1))
                logits.append(executable.run(inputs(token)).row(0).copy())
    assert all(np.array_equal(logits[at % 2], each) for at, each in enumerate(logits))


def test_linked_ranks_are_measured_together(spec_of: Callable[[str], Path]) -> None:
    """While operators are measured, no rank runs a step as a graph, which would pad it."""
    overrides = (TORCH, "parallelism.tensor=2", "parallelism.distributed_timeout=5s")
    with engine_of(spec_of("llama"), *overrides) as engine:
        expected = answers(engine, 1)
        executable = engine._loop._runner.executable
        assert isinstance(executable, RankGroup)
        while executable.capture_next():
            pass
        seconds = np.zeros(len(executable.operator_work()))
        executable.time_operators(seconds)
        assert answers(engine, 1) == expected
        executable.time_operators(None)
        assert answers(engine, 1) == expected
        assert (seconds > 0).all()


def rank_processes() -> list[int]:
    """The process ids of this process's other ranks."""
    tasks = Path("/proc/self/task").glob("*/children")
    children = [int(child) for task in tasks for child in task.read_text().split()]
    return [child for child in children if b"appliance.engine.ranks" in Path(f"/proc/{child}/cmdline").read_bytes()]


def wait_until_gone(process: int) -> None:
    deadline = time.monotonic() + 5
    while is_running(process):
        assert time.monotonic() < deadline, "it still runs"
        time.sleep(0.02)


def is_running(process: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False


def run_until_it_fails(engine: InprocEngine) -> str:
    def run() -> None:
        while True:
            answers(engine, 3)

    with pytest.raises(RankFailedError) as raised:
        run()
    return str(raised.value)


@pytest.mark.parametrize("shape", [TENSOR, STAGES], ids=["tensor", "stages"])
@pytest.mark.parametrize("ranks", SETS)
@pytest.mark.parametrize("when", ["between steps", "in a step"])
def test_a_killed_rank_ends_the_group_by_name(
    when: str, ranks: str, shape: tuple[str, ...], spec_of: Callable[[str], Path]
) -> None:
    with engine_of(spec_of("llama"), *shape, *SETS[ranks]) as engine:
        (rank,) = rank_processes()
        if when == "between steps":
            answers(engine, 1)
            os.kill(rank, signal.SIGKILL)
            wait_until_gone(rank)
            time.sleep(0.2)
            reason = run_until_it_fails(engine)
        else:
            killer = subprocess.Popen([sys.executable, "-c", f"import os, time; time.sleep(0.3); os.kill({rank}, 9)"])
            reason = run_until_it_fails(engine)
            killer.wait()
        assert reason == "rank 1 ended: it was ended by SIGKILL"
    assert rank_processes() == []


@pytest.mark.parametrize("shape", [TENSOR, STAGES], ids=["tensor", "stages"])
@pytest.mark.parametrize("ranks", SETS)
def test_a_stopped_rank_is_late_by_name(ranks: str, shape: tuple[str, ...], spec_of: Callable[[str], Path]) -> None:
    overrides = (*shape, "parallelism.distributed_timeout=1s", *SETS[ranks])
    with engine_of(spec_of("llama"), *overrides) as engine:
        (rank,) = rank_processes()
        answers(engine, 1)
        os.kill(rank, signal.SIGSTOP)
        started = time.monotonic()
        assert re.search(r"rank 1 did not come within (1 s|1000 ms)\b", run_until_it_fails(engine))
        assert time.monotonic() - started < 10
    assert rank_processes() == []


@pytest.mark.parametrize("ranks", SETS)
def test_ranks_end_with_a_killed_engine(ranks: str, spec_of: Callable[[str], Path]) -> None:
    code = f"""
import time
from tests.engine.test_rank_group import engine_of, rank_processes
engine = engine_of({str(spec_of("llama"))!r}, "parallelism.tensor=2", *{SETS[ranks]!r})
print(*rank_processes(), flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdout is not None
        rank = int(engine.stdout.readline())
        assert is_running(rank)
        os.kill(engine.pid, signal.SIGKILL)
        wait_until_gone(rank)
