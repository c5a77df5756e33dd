"""The runner with a real (tiny, random) model: sampling, log-probabilities, constraints, and determinism."""

from collections.abc import Sequence

import numpy as np
import pytest

from appliance.engine.core.config import SchedulerConfig
from appliance.engine.core.scheduler import Scheduler
from appliance.engine.messages import ErrorKind, FinishReason, GenerateRequest, SequenceOutput, TokenLogprobs
from appliance.engine.runner import Runner
from appliance.kernels.interface import Executable, StepInputs
from appliance.kernels.logits import HostLogits, Logits
from appliance.kernels.sampling import LogprobsMode, SampledBatch, SamplingBatch
from appliance.program.caches import KvLayout, KvShape
from appliance.program.kv_blocks import blocks_held

from .simulator import generate
from .tiny_program import MAX_LEN, VOCAB, tiny_executable

PROMPT = [5, 9, 33, 41, 2, 60, 17, 8, 8, 21, 50]


def configure(**changes: object) -> SchedulerConfig:
    values: dict[str, object] = {
        "max_model_len": MAX_LEN, "block_size": 4, "num_blocks": 512, "max_num_seqs": 16,
        "max_num_batched_tokens": 256, "max_num_sampled": 32,
    }  # fmt: skip
    return SchedulerConfig(**(values | changes))  # type: ignore[arg-type] # free keywords


class Engine:
    def __init__(
        self,
        config: SchedulerConfig | None = None,
        mode: LogprobsMode = "raw_logprobs",
        executable: Executable | None = None,
        vocab: int = VOCAB,
    ) -> None:
        config = config or configure()
        self.scheduler = Scheduler(config)
        self.runner = Runner(executable or tiny_executable(config), config, vocab, mode)
        self.outputs: dict[tuple[str, int], list[SequenceOutput]] = {}

    def run(self, *requests: GenerateRequest) -> "Engine":
        self.outputs.clear()
        for request in requests:
            self.scheduler.add(b"", request)
        while (plan := self.scheduler.schedule(goes_on=self.runner.has_begun)) is not None:
            for output in self.scheduler.commit(plan, self.runner.run(plan)).get(b"", []):
                self.outputs.setdefault((output.request_id, output.index), []).append(output)
            self.scheduler.check_invariants()
        return self

    def tokens(self, request_id: str = "r", index: int = 0) -> list[int]:
        return [token for output in self.outputs[request_id, index] for token in output.token_ids]

    def last(self, request_id: str = "r") -> SequenceOutput:
        return self.outputs[request_id, 0][-1]

    def logprobs(self, request_id: str = "r") -> list[TokenLogprobs]:
        return [entry for output in self.outputs[request_id, 0] for entry in output.logprobs or ()]


def greedy(prompt: Sequence[int] = PROMPT, max_tokens: int = 12, **sampling: object) -> GenerateRequest:
    return generate("r", prompt, max_tokens, temperature=0.0, **sampling)


def drawn(prompt: Sequence[int] = PROMPT, max_tokens: int = 24, name: str = "r", **sampling: object) -> GenerateRequest:
    values: dict[str, object] = {"temperature": 0.9, "top_p": 0.95, "top_k": 20, "min_p": 0.01, "seed": 1234}
    return generate(name, prompt, max_tokens, **(values | sampling))


def crowd() -> list[GenerateRequest]:
    generator = np.random.default_rng(5)
    others = []
    for number in range(15):
        prompt = [int(token) for token in generator.integers(0, VOCAB, 3 + 2 * number)]
        values: dict[str, object] = {"top_k": number, "repetition_penalty": 1.0 + number / 9, "seed": number}
        others.append(generate(f"other{number}", prompt, 5 + number, temperature=number % 3 * 0.7, **values))
    return others


@pytest.mark.parametrize("request_of", [greedy, drawn], ids=["greedy", "seeded"])
@pytest.mark.parametrize(
    "penalties",
    [{}, {"repetition_penalty": 1.4, "presence_penalty": 0.5, "frequency_penalty": 0.3}],
    ids=["plain", "penalised"],
)
def test_one_answer_alone_in_a_batch_chunked_cached_and_preempted(request_of, penalties: dict[str, float]) -> None:
    request = request_of(**penalties)
    alone = Engine().run(request).tokens()
    assert Engine().run(*crowd()[:8], request, *crowd()[8:]).tokens() == alone
    assert Engine(configure(max_num_batched_tokens=3)).run(request).tokens() == alone
    warm = Engine().run(drawn([*PROMPT, 1, 2], name="warm"))
    assert warm.run(request).tokens() == alone
    assert warm.outputs["r", 0][0].num_cached_tokens == 8
    tight = Engine(configure(num_blocks=24))
    assert tight.run(*[drawn(name=f"before{n}") for n in range(6)], request).tokens() == alone
    assert tight.scheduler.stats(0.0).num_preemptions > 0


def test_n_sequences_differ_and_each_equals_its_own_seed() -> None:
    engine = Engine().run(drawn(n=4))
    answers = [engine.tokens("r", index) for index in range(4)]
    assert answers[0] == Engine().run(drawn()).tokens()
    assert len({tuple(answer) for answer in answers}) == 4
    uncached = Engine(configure(prefix_caching=False)).run(drawn(n=4))
    assert [uncached.tokens("r", index) for index in range(4)] == answers


def test_unseeded_requests_differ_and_an_engine_repeats_itself() -> None:
    first, second = drawn(name="a", seed=None), drawn(name="b", seed=None)
    one, two = Engine().run(first, second), Engine().run(first, second)
    assert one.tokens("a") != one.tokens("b")
    assert (one.tokens("a"), one.tokens("b")) == (two.tokens("a"), two.tokens("b"))


def test_a_whole_prompt_hit_computes_one_token() -> None:
    engine = Engine()
    first = engine.run(greedy(PROMPT[:8])).tokens()
    engine.scheduler.add(b"", greedy(PROMPT[:8]))
    plan = engine.scheduler.schedule()
    assert plan is not None
    assert plan.num_tokens == 1
    result = engine.runner.run(plan)
    assert result.tokens == [first[:1]]


def test_logprobs_are_those_of_the_raw_distribution() -> None:
    engine = Engine().run(greedy(logprobs=3, logit_bias={first_token(): -100.0}))
    for entry, token in zip(engine.logprobs(), engine.tokens(), strict=True):
        assert entry.token_ids[0] == token
        assert len(entry.token_ids) == 4
        assert entry.logprobs[1:] == sorted(entry.logprobs[1:], reverse=True)
        assert max(entry.logprobs) <= 0.0
    first = engine.logprobs()[0]
    assert first.token_ids[1] == first_token(), "raw log-probabilities ignore the bias"
    assert first.rank > 1


def first_token() -> int:
    return Engine().run(greedy(max_tokens=1)).tokens()[0]


@pytest.mark.parametrize("mode", ["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"])
def test_the_four_modes(mode: LogprobsMode) -> None:
    entry = Engine(mode=mode).run(greedy(max_tokens=1, logprobs=-1, logit_bias={first_token(): -50.0})).logprobs()[0]
    assert len(entry.token_ids) == VOCAB + 1
    values = dict(zip(entry.token_ids, entry.logprobs, strict=True))
    assert (values[first_token()] == max(values.values())) == mode.startswith("raw")
    assert (abs(sum(np.exp(list(values.values()))) - 1.0) < 1e-4) == mode.endswith("logprobs")


def test_prompt_logprobs_are_the_same_in_chunks_and_come_once() -> None:
    whole = Engine().run(greedy(prompt_logprobs=2, n=2))
    entries = whole.outputs["r", 0][0].prompt_logprobs
    assert entries is not None
    assert entries[0] is None
    assert [entry.token_ids[0] for entry in entries[1:]] == PROMPT[1:]
    assert all(output.prompt_logprobs is None for output in whole.outputs["r", 0][1:] + whole.outputs["r", 1])
    for tight in (configure(max_num_batched_tokens=4), configure(max_num_sampled=16, max_num_batched_tokens=5)):
        chunked = Engine(tight).run(greedy(prompt_logprobs=2)).outputs["r", 0][0].prompt_logprobs
        assert chunked is not None
        for mine, theirs in zip(chunked[1:], entries[1:], strict=True):
            assert mine.token_ids == theirs.token_ids
            assert mine.rank == theirs.rank
            assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)


def test_prompt_logprobs_agree_with_what_would_be_sampled() -> None:
    """The log-probability of each prompt token equals that of forcing it as the next token."""
    entries = Engine().run(greedy(prompt_logprobs=0)).outputs["r", 0][0].prompt_logprobs
    assert entries is not None
    for length in (1, 4, 7):
        forced = Engine().run(greedy(PROMPT[:length], 1, allowed_token_ids=(PROMPT[length],), logprobs=0)).logprobs()
        assert forced[0].logprobs == pytest.approx(entries[length].logprobs, abs=1e-4)


def test_constraints_on_tokens() -> None:
    plain = Engine().run(greedy()).tokens()
    allowed = Engine().run(greedy(allowed_token_ids=(3, 4, 31, 32, 63))).tokens()
    assert set(allowed) <= {3, 4, 31, 32, 63}
    assert plain[0] not in Engine().run(greedy(bad_words=((plain[0],),))).tokens()
    pair = Engine().run(greedy(bad_words=((plain[0], plain[1]),))).tokens()
    assert pair[0] == plain[0]
    assert pair[1] != plain[1]
    assert Engine().run(greedy(logit_bias={7: 100.0})).tokens() == [7] * 12


def test_a_row_that_is_reused_keeps_nothing_of_its_last_sequence() -> None:
    plain = Engine().run(greedy()).tokens()
    engine = Engine(configure(max_num_seqs=1))
    engine.run(greedy(allowed_token_ids=(3,), bad_words=((4,),), logit_bias={5: 3.0}, logprobs=2, prompt_logprobs=1))
    assert engine.run(greedy()).tokens() == plain
    assert engine.logprobs() == []


def test_min_tokens_holds_back_every_stop() -> None:
    plain = Engine().run(greedy()).tokens()
    stop, eos = plain[1], plain[2]
    early = GenerateRequest(
        request_id="r", prompt_token_ids=PROMPT, eos_token_ids=(eos,), sampling=greedy(stop_token_ids=(stop,)).sampling
    )
    engine = Engine().run(early)
    assert engine.tokens() == plain[:2]
    assert (engine.last().finish_reason, engine.last().stop_token_id) == (FinishReason.STOP, stop)
    late = GenerateRequest(
        request_id="r", prompt_token_ids=PROMPT, eos_token_ids=(eos,),
        sampling=greedy(stop_token_ids=(stop,), min_tokens=6).sampling,
    )  # fmt: skip
    assert not {stop, eos} & set(Engine().run(late).tokens()[:6])


def test_rows_that_cannot_go_on_fail_alone() -> None:
    plain = Engine().run(greedy()).tokens()
    engine = Engine()
    stuck = generate("stuck", PROMPT, allowed_token_ids=(3,), bad_words=((3,),), temperature=0.0)
    assert engine.run(stuck, greedy()).tokens() == plain
    assert "allowed_token_ids" in str(engine.last("stuck").error)
    assert engine.last("stuck").error_kind is ErrorKind.INVALID
    run = engine.runner._executable.run
    engine.runner._executable.run = lambda inputs: _with_nan(run(inputs), inputs)  # type: ignore[method-assign]
    sick = generate("sick", [VOCAB - 1, 1, 2], temperature=0.5)
    assert engine.run(sick, greedy([4, 9])).last().finish_reason is FinishReason.LENGTH
    assert "NaN" in str(engine.last("sick").error)
    assert engine.last("sick").error_kind is ErrorKind.INTERNAL
    assert engine.scheduler.kv.pool.num_used == 0


def _with_nan(logits: Logits, inputs: StepInputs) -> Logits:
    """Gives NaN for sequences that begin with the last token of the vocabulary; here they run in one chunk."""
    starts = inputs.query_start[np.searchsorted(inputs.query_start, inputs.sampled_rows, side="right") - 1]
    assert isinstance(logits, HostLogits)
    logits.values[inputs.token_ids[starts] == VOCAB - 1] = np.nan
    return logits


class _Recorder:
    """Remembers the inputs of each step."""

    def __init__(self) -> None:
        self.steps: list[StepInputs] = []

    def run(self, inputs: StepInputs) -> HostLogits:
        self.steps.append(inputs)
        return HostLogits(np.zeros((len(inputs.sampled_rows), VOCAB), np.float32))

    def sample(self, logits: Logits, batch: SamplingBatch) -> SampledBatch:
        return SampledBatch(np.zeros(batch.num_rows, np.int32), 0)


def test_arrays_are_contiguous_int32_of_the_promised_shapes() -> None:
    config = configure(max_num_batched_tokens=7)
    recorder, scheduler = _Recorder(), Scheduler(config)
    runner = Runner(recorder, config, VOCAB)  # type: ignore[arg-type] # what steps need of an Executable
    for number in range(3):
        scheduler.add(b"", generate(f"r{number}", PROMPT[: 4 + number], 3))
    while (plan := scheduler.schedule()) is not None:
        result = runner.run(plan)
        inputs = recorder.steps[-1]
        count = len(plan.chunks)
        assert len(inputs.token_ids) == len(inputs.positions) == plan.num_tokens
        assert inputs.slot_mapping.shape == (1, plan.num_tokens)
        assert len(inputs.query_start) == count + 1
        assert len(inputs.seq_lens) == count
        assert inputs.block_tables.shape[:2] == (1, count)
        arrays = {
            name: array for name in StepInputs.__slots__ if isinstance(array := getattr(inputs, name), np.ndarray)
        }
        assert len(arrays) == 7
        for name, array in arrays.items():
            assert array.dtype == np.int32, name
            assert array.flags.c_contiguous, name
        scheduler.commit(plan, result)


def test_parameters_of_rows_are_gathered_anew_when_rows_change_hands() -> None:
    """Another request with the same row and length must not use the parameters that were gathered for the first."""
    engine = Engine()
    greedily = engine.run(greedy()).tokens()
    alone = Engine().run(drawn(max_tokens=12, temperature=1.5, seed=4)).tokens()
    assert greedily != alone
    assert engine.run(drawn(max_tokens=12, temperature=1.5, seed=4)).tokens() == alone
    limited = engine.run(greedy(allowed_token_ids=(3, 5))).tokens()
    assert set(limited) <= {3, 5}
    assert engine.run(greedy()).tokens() == greedily


@pytest.mark.parametrize("kernel_set", ["reference", "cpu-generic"])
@pytest.mark.parametrize("layers", [(9,), (9, 9, None, None), (None, 5, 20)], ids=str)
def test_blocks_out_of_the_window_may_hold_anything(layers: tuple[int | None, ...], kernel_set: str) -> None:
    """A cache too small for all tokens, whose blocks change owners and groups all the time, is compared with one that
    keeps everything and reuses no prefix."""
    requests = [drawn([3 * number + 7, *PROMPT, *PROMPT], 40, f"r{number}", seed=number) for number in range(3)]
    requests += [drawn([7, *PROMPT, *PROMPT, number], 20, f"r{number}", seed=number) for number in range(3, 6)]
    windows = KvLayout.of([KvShape(1, 1, 1, window) for window in layers]).windows
    num_blocks = blocks_held(windows, configure().block_size, 100) * 2
    roomy = configure(windows=(None,) * len(windows), num_blocks=1000, prefix_caching=False)
    tight = configure(windows=windows, num_blocks=num_blocks, max_num_batched_tokens=16)
    answers = []
    for config in (roomy, tight):
        executable = tiny_executable(config, kernel_set=kernel_set, windows=layers)
        engine = Engine(config, executable=executable).run(*requests)
        answers.append([engine.tokens(f"r{number}") for number in range(len(requests))])
    assert answers[0] == answers[1]
