"""Steps that are started before the tokens of the one before are known here: the device feeds them."""

from collections.abc import Iterator
from typing import cast

import numpy as np
import pytest
import torch

from appliance.engine.core.scheduler import Scheduler
from appliance.engine.loop import EngineLoop
from appliance.engine.messages import FinishReason, ProcessorCall
from appliance.engine.runner import Runner
from appliance.engine.validation import SamplingLimits
from appliance.kernels.gpu.kernel_set import GpuExecutable
from appliance.kernels.interface import Executable, PendingSample, StepInputs
from appliance.kernels.logits import Logits
from appliance.kernels.sampling import SampledBatch, SamplingBatch

from .test_ahead import CONFIGS, penalised
from .test_runner import PROMPT, VOCAB, Engine, configure, crowd, drawn, greedy
from .tiny_program import tiny_executable


@pytest.fixture(autouse=True)
def begins_early(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """On torch's CPU device too, where it gains nothing."""
    monkeypatch.setattr(GpuExecutable, "early_rows", 16)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Fed:
    """Gives the host's tokens of a fed step other numbers before it starts, and notes the order of calls."""

    def __init__(self, executable: Executable) -> None:
        assert isinstance(executable, GpuExecutable)
        self._executable = executable
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._executable, name)

    early_rows = 16

    def run(self, inputs: StepInputs) -> Logits:
        self.calls.append("run")
        return self._executable.run(inputs)

    def sample(self, logits: Logits, batch: SamplingBatch) -> SampledBatch:
        self.calls.append("sample")
        return self._executable.sample(logits, batch)

    def begin_sampling(self, logits: Logits, batch: SamplingBatch) -> PendingSample:
        self.calls.append("begin")
        return _Noted(self._executable.begin_sampling(logits, batch), self.calls)

    def start(self, inputs: StepInputs) -> None:
        self.calls.append("start")
        assert inputs.follows
        tokens = inputs.token_ids.copy()
        inputs.token_ids[:] = 1_000_000
        self._executable.start(inputs)
        inputs.token_ids[:] = tokens

    def cancel(self) -> None:
        self.calls.append("cancel")
        self._executable.cancel()


class _Noted:
    def __init__(self, pending: PendingSample, calls: list[str]) -> None:
        self._pending, self._calls = pending, calls

    def result(self) -> SampledBatch:
        self._calls.append("result")
        return self._pending.result()


def fed() -> Fed:
    return Fed(tiny_executable(configure(), kernel_set="torch"))


def engine_of(executable: object) -> Engine:
    return Engine(executable=cast("Executable", executable))


def test_a_step_starts_behind_the_sampler_and_before_its_tokens() -> None:
    executable = fed()
    want = engine_of(tiny_executable(configure(), kernel_set="torch")).run(greedy(max_tokens=9)).tokens()
    assert engine_of(executable).run(greedy(max_tokens=9)).tokens() == want
    calls = [call for call in executable.calls if call != "cancel"]
    assert calls[:2] == ["run", "sample"], "a prompt"
    assert calls[2:-2] == ["run", "begin", "start", "result"] * 7
    assert calls[-2:] == ["run", "sample"], "the last token is known to be the last"


@pytest.mark.parametrize("name", list(CONFIGS))
def test_answers_are_those_of_steps_in_turn(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy, drawn and penalised ones, with logprobs, that end by a stop token while the next step runs."""
    config = CONFIGS[name]
    stops = [drawn(name=f"s{n}", seed=n, stop_token_ids=tuple(range(3 * n, 3 * n + 9)), logprobs=2) for n in range(4)]
    requests = [*crowd(), *[drawn(name=f"d{n}", seed=n) for n in range(6)], *[penalised(n) for n in range(4)], *stops]
    executable = Fed(tiny_executable(config, kernel_set="torch"))
    early = Engine(config, executable=cast("Executable", executable)).run(*requests)
    assert executable.calls.count("start") >= 10
    monkeypatch.setattr(Scheduler, "_goes_on", lambda self, step: False)
    in_turn = Engine(config, executable=tiny_executable(config, kernel_set="torch")).run(*requests)
    for key in in_turn.outputs:
        assert early.tokens(*key) == in_turn.tokens(*key), key


def test_a_processor_reads_logits_and_stalls_no_other() -> None:
    """A row with a processor waits for its logits; the steps of all still begin early."""
    call = ProcessorCall(qualname="tests.engine.processors.echo")
    executable = fed()
    engine = engine_of(executable).run(greedy(max_tokens=8), drawn(name="p", max_tokens=8, logits_processors=(call,)))
    assert engine.tokens("p") == [PROMPT[at % len(PROMPT)] for at in range(8)]
    assert (
        engine.tokens()
        == engine_of(tiny_executable(configure(), kernel_set="torch")).run(greedy(max_tokens=8)).tokens()
    )
    assert executable.calls.count("start") >= 5


def test_a_token_that_is_none_ends_its_row_alone() -> None:
    """A row whose logits are no numbers was fed to a step, which then does not count."""
    executable = fed()
    engine, steps = engine_of(executable), [0]
    sample = executable._executable._sampler.begin

    def spoiled(logits: torch.Tensor, batch: SamplingBatch, **options: bool) -> PendingSample:
        steps[0] += 1
        if steps[0] == 4:
            logits[0] = torch.nan
        return sample(logits, batch, **options)

    executable._executable._sampler.begin = spoiled  # type: ignore[method-assign, assignment]  # of this object
    other = drawn(name="o", max_tokens=10)
    engine.run(greedy(max_tokens=10), other)
    want = engine_of(tiny_executable(configure(), kernel_set="torch")).run(other).tokens("o")
    assert engine.tokens("o") == want
    assert engine.last().finish_reason is FinishReason.ERROR
    assert "NaN" in (engine.last().error or "")


def test_a_fed_token_is_one_of_the_vocabulary() -> None:
    executable = fed()._executable
    executable._sampler.tokens[:3] = torch.tensor([4, -1, 9], dtype=torch.int32)
    given = torch.zeros(3, dtype=torch.int32)
    executable._sampler.feed(given)
    assert given.tolist() == [4, 0, 9]
    assert np.array_equal(executable._sampler.tokens[:3].numpy(), [4, -1, 9])


class Counted:
    """Counts the steps that the model of an executable runs."""

    def __init__(self, executable: Executable, monkeypatch: pytest.MonkeyPatch) -> None:
        assert isinstance(executable, GpuExecutable)
        self.steps: list[int] = []  # sequences of each
        launch = executable._launch

        def counted(inputs: StepInputs) -> Logits:
            self.steps.append(len(inputs.seq_lens))
            return launch(inputs)

        monkeypatch.setattr(executable, "_launch", counted)


def test_rows_that_end_cost_no_step_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop tokens end rows while the next step runs; for the others it counts."""
    stops = [drawn(name=f"s{n}", seed=n, max_tokens=40, stop_token_ids=tuple(range(n, 64, 9))) for n in range(6)]
    config = configure()
    monkeypatch.setattr(GpuExecutable, "early_rows", 0)
    want = Engine(config, executable=tiny_executable(config, kernel_set="torch")).run(*stops)
    monkeypatch.setattr(GpuExecutable, "early_rows", 16)
    executable = tiny_executable(config, kernel_set="torch")
    counted = Counted(executable, monkeypatch)
    engine = Engine(config, executable=executable)
    engine.run(*stops)
    lengths = {}
    for key in want.outputs:
        assert engine.tokens(*key) == want.tokens(*key), key
        lengths[key] = len(want.tokens(*key))
    assert len(set(lengths.values())) >= 3, "they end at different steps"
    assert len(counted.steps) <= max(lengths.values()) + 1, "one that began for a row that was the last may be in vain"


def test_a_request_joins_behind_the_step_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is computed in vain for it, and it waits for one step at most."""
    config = configure()
    executable = tiny_executable(config, kernel_set="torch")
    counted = Counted(executable, monkeypatch)
    loop = EngineLoop(Scheduler(config), Runner(executable, config, VOCAB), SamplingLimits(4, 4))
    loop.handle(b"c", drawn(name="first", max_tokens=30))
    for _ in range(6):
        loop.step()
    assert loop._runner.has_begun
    before = len(counted.steps)
    assert before == 7
    loop.handle(b"c", drawn(name="second", seed=5, max_tokens=4))
    events = [event for _ in range(2) for _, event in loop.step()]
    assert len(counted.steps) == before + 1, "the step that ran counts, and the next one has both"
    assert counted.steps[-1] == 2
    said = {output.request_id: output.token_ids for event in events for output in event.outputs}  # type: ignore[union-attr]
    assert len(said["second"]) == 1
    while loop.has_work:
        events += [event for _, event in loop.step()]
    found = [token for event in events for output in event.outputs  # type: ignore[union-attr]  # outputs alone
             if output.request_id == "second" for token in output.token_ids]  # fmt: skip
    want = engine_of(tiny_executable(config, kernel_set="torch")).run(drawn(name="second", seed=5, max_tokens=4))
    assert found == want.tokens("second")
