"""Prompts of embeddings: against transformers' `inputs_embeds`, and to the bit against tokens whose rows they are."""

import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from appliance.checkpoint.facts import ModelFacts
from appliance.engine.core.config import SchedulerConfig
from appliance.engine.given_embeds import rows_of
from appliance.engine.messages import GenerateRequest
from appliance.engine.prompt_embeds import PromptEmbeds
from appliance.kernels.binding import load_kernel_set
from appliance.kernels.errors import StepError
from appliance.kernels.execution import Graphs
from appliance.kernels.gpu.kernel_set import GpuKernelSet
from appliance.kernels.interface import Adapters, Executable, KernelSet, StepAdapters, StepInputs, WeightChange
from appliance.kernels.step_embeds import StepEmbeds
from appliance.layers.adapters import Wanted, with_adapters
from appliance.layers.spec import DecoderSpec
from appliance.models.describe import describe
from appliance.models.errors import ModelError
from tests.engine.embeds import embeds_of, given
from tests.engine.simulator import generate
from tests.engine.test_runner import Engine
from tests.kernels.harness import logits_of
from tests.models.tiny import FAMILIES, VOCAB_SIZE
from tests.parity.conftest import Checkpoint, kernel_set_names
from tests.parity.harness import BLOCK_SIZE, bind, bind_adapted, execution_of
from tests.parity.test_invariance import SIZES, at_once, invariant

__all__ = ["at_once"]

OF_IDS = ("gemma3n", "gemma4")  # whose layers look token ids up
MOST = 64  # where transformers takes the short factors of Phi-3 too
CROWD = [
    generate("a", [*range(3, 40)], 12, seed=1, temperature=0.8),
    generate("b", [*range(3, 24), 50, 51, 52], 12, seed=2, n=2, temperature=0.8, logprobs=2),
    generate("c", [*range(3, 24), 53, 54], 12, seed=3, temperature=0.8),
    generate("d", [9, 8, 7], 12, temperature=0.0, logprobs=1),
    generate("e", [9], 12, temperature=0.0),
    generate("f", [*range(3, 19)], 12, temperature=0.0),  # whole blocks
]


def described(facts: ModelFacts) -> DecoderSpec:
    return describe(facts, MOST, takes_embeds=True).spec


def table_of(checkpoint: Checkpoint) -> np.ndarray:
    """What stands for each token: its row of the table, with the scale where a family's embeddings have it."""
    spec = described(checkpoint.facts)
    oracle: Any = checkpoint.oracle
    table = oracle.get_input_embeddings().weight.detach().float()
    found: np.ndarray = (table if spec.scales_embeds else table * spec.embedding_scale).numpy()
    return found


class Bound:
    """A model, and engines of many schedules over it."""

    def __init__(self, facts: ModelFacts, kernel_set: KernelSet, executable: Executable | None = None) -> None:
        program = describe(facts, MOST, takes_embeds=True).compiled.program
        self.windows = program.kv_layout().windows
        self.has_states = bool(program.states)
        self.executable = executable or bind(facts, kernel_set, execution=execution_of(MOST), takes_embeds=True)

    def engine(self, **changes: object) -> Engine:
        sizes: dict[str, object] = {
            "num_blocks": 512, "max_num_seqs": 8, "max_num_batched_tokens": 128, "max_model_len": MOST,
            "block_size": BLOCK_SIZE, "max_num_sampled": 16, "windows": self.windows,
            "num_snapshots": 32 if self.has_states else None,
        }  # fmt: skip
        return Engine(SchedulerConfig(**(sizes | changes)), executable=self.executable, vocab=VOCAB_SIZE)  # type: ignore[arg-type]

    def answers(self, *requests: GenerateRequest, **changes: object) -> dict[tuple[str, int], Any]:
        """Returns tokens and log-probabilities by request and sequence."""
        return said(self.engine(**changes).run(*requests))


def said(engine: Engine) -> dict[tuple[str, int], Any]:
    outputs = engine.outputs
    assert all(each[-1].error is None for each in outputs.values()), outputs
    places = {key: [place for each in own for place in each.logprobs or ()] for key, own in outputs.items()}
    return {key: (tokens, places[key]) for key, tokens in tokens_of(engine).items()}


def tokens_of(engine: Engine) -> dict[tuple[str, int], Any]:
    return {key: [token for each in own for token in each.token_ids] for key, own in engine.outputs.items()}


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in OF_IDS])
def test_tokens_equal_those_of_transformers(name: str, tiny: Callable[[str], Checkpoint]) -> None:
    checkpoint = tiny(name)
    table = table_of(checkpoint)
    noise = np.random.default_rng(4).standard_normal((13, table.shape[1]), np.float32)
    rows = table[5:18] + np.float32(0.5 * table.std()) * noise  # which no token has
    expected, read = list[int](), torch.from_numpy(rows)[None]
    oracle: Any = checkpoint.oracle
    embed = oracle.get_input_embeddings()
    with torch.inference_mode():
        while len(expected) < 12:
            expected.append(int(oracle(inputs_embeds=read).logits[0, -1].argmax()))
            read = torch.cat((read, embed(torch.tensor([[expected[-1]]])).float()), 1)
    bound = Bound(checkpoint.facts, load_kernel_set(kernel_set_names()[-1]))
    request = given(generate("r", range(13), 12, temperature=0.0), rows)
    assert bound.answers(request)["r", 0] == (expected, [])


SCHEDULES: tuple[dict[str, object], ...] = ({}, {"max_num_batched_tokens": 5}, {"prefix_caching": False})
# Factors, windows, positions, a norm of embeddings, states, and latent attention.
OF_SCHEDULES = ("llama", "gemma2", "granite", "gpt2", "opt", "bloom", "lfm2", "mamba2", "zamba2", "deepseek3")


@pytest.mark.parametrize("set_name", [name for name in kernel_set_names() if name != "torch"])  # see below
@pytest.mark.parametrize("name", OF_SCHEDULES)
def test_rows_of_the_table_give_the_answers_of_their_tokens(
    name: str, set_name: str, tiny: Callable[[str], Checkpoint]
) -> None:
    checkpoint, kernel_set = tiny(name), load_kernel_set(set_name)
    check_law(Bound(checkpoint.facts, kernel_set), table_of(checkpoint), to_the_bit=set_name != "reference")


@pytest.mark.parametrize("name", ["gemma2", "gpt2"])
def test_and_on_the_executor_of_gpus(name: str, tiny: Callable[[str], Checkpoint]) -> None:
    """Whose steps of tokens alone run by graphs."""
    checkpoint, made = tiny(name), GpuKernelSet("torch")
    executable = bind(checkpoint.facts, made, execution=invariant(SIZES, tokens=128), takes_embeds=True)
    check_law(Bound(checkpoint.facts, made, executable), table_of(checkpoint), SCHEDULES[:2])


def test_and_with_its_kernels(tiny: Callable[[str], Checkpoint]) -> None:
    """One answer of two tokens: they are interpreted here, and the law would take an hour."""
    checkpoint, made = tiny("gpt2"), GpuKernelSet("torch", with_triton=True)
    executable = bind(checkpoint.facts, made, execution=invariant(Graphs(), tokens=128), takes_embeds=True)
    bound, asked = Bound(checkpoint.facts, made, executable), generate("a", [*range(3, 12)], 2, temperature=0.0)
    assert bound.answers(given(asked, table_of(checkpoint))) == bound.answers(asked)


def check_law(
    bound: Bound,
    table: np.ndarray,
    schedules: tuple[dict[str, object], ...] = SCHEDULES,
    *,
    to_the_bit: bool = True,
) -> None:
    """to_the_bit: log-probabilities too; those of the reference round by their neighbours."""
    answers = said if to_the_bit else tokens_of
    expected = answers(bound.engine(prefix_caching=False).run(*CROWD))
    assert len(expected) == len(CROWD) + 1
    every = [given(request, table) for request in CROWD]
    beginnings = [given(request, table, 10) if at % 2 else request for at, request in enumerate(CROWD)]
    for changes in schedules:
        for requests in (every, beginnings):
            assert answers(bound.engine(**changes).run(*requests)) == expected
    if not bound.windows:
        return
    tight = {
        "num_blocks": 13 * len(bound.windows),
        "max_num_batched_tokens": 7,
        "max_num_seqs": 4,
        "expected_output": 0,
    }
    engine = bound.engine(**tight).run(*every)
    assert answers(engine) == expected
    assert engine.scheduler.stats(0.0).num_preemptions


def test_blocks_are_found_by_the_same_rows_alone(tiny: Callable[[str], Checkpoint]) -> None:
    """A prompt of ids has the ids that stand in for embeddings: its blocks are others all the same."""
    checkpoint = tiny("llama")
    table, bound = table_of(checkpoint), Bound(checkpoint.facts, load_kernel_set("reference"))
    zeros = generate("z", [0] * 24, 2, temperature=0.0)
    rows = given(generate("r", range(3, 27), 2, temperature=0.0), table)
    other = given(generate("o", [*range(3, 23), 50, 51, 52, 53], 2, temperature=0.0), table)
    longer = given(generate("l", range(3, 31), 2, temperature=0.0), table, 24)
    for algorithm in ("builtin", "sha256", "sha256_cbor"):
        engine = bound.engine(hash_algorithm=algorithm)
        assert cached(engine, zeros) == 0
        assert cached(engine, rows) == 0
        assert cached(engine, zeros) == 23
        assert cached(engine, rows) == 23
        assert cached(engine, other) == 20
        assert cached(engine, longer) == 24
        assert cached(engine, as_bf16(rows)) == 0  # other numbers, as they are rounded


def cached(engine: Engine, request: GenerateRequest) -> int:
    engine.run(request)
    return engine.outputs[request.request_id, 0][0].num_cached_tokens


def as_bf16(request: GenerateRequest) -> GenerateRequest:
    embeds = request.prompt_embeds
    assert embeds is not None
    words = np.frombuffer(embeds.data, np.uint32) >> 16
    stored = PromptEmbeds("bf16", embeds.width, words.astype(np.uint16).tobytes())
    return msgspec.structs.replace(request, prompt_embeds=stored)


def test_equal_numbers_of_another_type_find_each_other(tiny: Callable[[str], Checkpoint]) -> None:
    checkpoint = tiny("llama")
    table, bound = table_of(checkpoint), Bound(checkpoint.facts, load_kernel_set("reference"))
    narrow = as_bf16(given(generate("n", range(3, 27), 2, temperature=0.0), table))
    assert narrow.prompt_embeds is not None
    wide = msgspec.structs.replace(narrow, prompt_embeds=embeds_of(rows_of(narrow.prompt_embeds, 0, 24)))
    engine = bound.engine()
    assert [cached(engine, each) for each in (narrow, wide)] == [0, 23]


def test_penalties_are_about_what_was_generated(tiny: Callable[[str], Checkpoint], kernel_set: KernelSet) -> None:
    """An embedding is no token: no penalty lowers the id that stands in for it, or that of its row."""
    checkpoint = tiny("llama")
    table, bound = table_of(checkpoint), Bound(checkpoint.facts, kernel_set)
    plain = generate("r", [*range(20, 31), 0], 6, temperature=0.0, logit_bias={0: 2.0, 25: 2.0})
    [first] = bound.answers(plain)["r", 0][0][:1]
    for penalty in ({"repetition_penalty": 1.9}, {"presence_penalty": 0.5, "frequency_penalty": 0.5}):
        sampling = msgspec.structs.replace(plain.sampling, **penalty)
        request = msgspec.structs.replace(plain, sampling=sampling)
        tokens = bound.answers(given(request, table))["r", 0][0]
        assert tokens[0] == first
        repeats = [count for count in (tokens.count(each) for each in tokens) if count > 1]
        assert len(repeats) <= 2


def test_a_step_of_embeddings_that_do_not_fit_is_refused(
    tiny: Callable[[str], Checkpoint], kernel_set: KernelSet
) -> None:
    facts = tiny("llama").facts
    taking = bind(facts, kernel_set, execution=execution_of(MOST), takes_embeds=True)
    other = bind(facts, kernel_set, execution=execution_of(MOST))
    width, none = 64, np.zeros(1, np.int32)
    for executable, rows, row_of in (
        (other, np.zeros((1, width), np.float32), none),
        (taking, np.zeros((1, width + 1), np.float32), none),
        (taking, np.zeros((1, width), np.float64), none),
        (taking, np.zeros((1, width), np.float32), none + 1),
        (taking, np.zeros((1, width), np.float32), np.zeros(2, np.int32)),
    ):
        slots, table = np.zeros((1, 1), np.int32), np.zeros((1, 1, 1), np.int32)
        inputs = StepInputs(none, none, slots, np.array([0, 1], np.int32), none + 1, table, none)
        inputs.embeds = StepEmbeds(rows, row_of)
        with pytest.raises(StepError, match="embedding"):
            executable.run(inputs)


@pytest.mark.parametrize("name", OF_IDS)
def test_layers_that_look_ids_up_take_no_embeddings(name: str, tiny: Callable[[str], Checkpoint]) -> None:
    with pytest.raises(ModelError, match="looks token ids up itself"):
        describe(tiny(name).facts, MOST, takes_embeds=True)


def test_an_adapter_of_the_table_changes_tokens_alone(tiny: Callable[[str], Checkpoint], kernel_set: KernelSet) -> None:
    """As in peft, whose embeddings are those of the table that `inputs_embeds` goes around."""
    facts, table = tiny("llama").facts, table_of(tiny("llama"))
    bounds = execution_of(MOST)
    bounds = dataclasses.replace(
        bounds,
        limits=dataclasses.replace(bounds.limits, max_loras=1),
        numerics=dataclasses.replace(bounds.numerics, lora_dtype="f32"),
    )
    wanted = Wanted(4, lambda weight: weight == "embed")
    executable, _ = bind_adapted(
        facts, kernel_set, lambda one: with_adapters(one, wanted), execution=bounds, takes_embeds=True
    )
    assert isinstance(executable, Adapters)
    rng, (vocab, width) = np.random.default_rng(3), table.shape
    up, down = (rng.standard_normal(shape).astype(np.float32) for shape in ((vocab, 4), (4, width)))
    executable.put_adapter(0, {"embed": WeightChange(down, up)})
    tokens, at = np.array([5, 6, 7], np.int32), np.arange(3, dtype=np.int32)

    def logits(given: list[int], *, is_adapted: bool) -> np.ndarray:
        inputs = StepInputs(
            np.where(np.isin(at, given), 0, tokens).astype(np.int32), at, at[None], np.array([0, 3], np.int32),
            np.array([3], np.int32), np.zeros((1, 1, 1), np.int32), at,
        )  # fmt: skip
        if given:
            row_of = np.full(3, -1, np.int32)
            row_of[given] = np.arange(len(given))
            inputs.embeds = StepEmbeds(np.ascontiguousarray(table[tokens[given]]), row_of)
        if is_adapted:
            inputs.adapters = StepAdapters(np.zeros(1, np.int32), np.ones(1, np.float32))
        return logits_of(executable, inputs)

    plain, changed = logits([], is_adapted=False), logits([], is_adapted=True)
    assert (plain != changed).any(1).all()
    np.testing.assert_array_equal(logits([0, 1, 2], is_adapted=True), plain)
    np.testing.assert_array_equal(logits([0, 1], is_adapted=True)[:2], plain[:2])
    assert (logits([0, 1], is_adapted=True)[2] != plain[2]).any()
    np.testing.assert_array_equal(logits([1], is_adapted=True)[0], changed[0])
