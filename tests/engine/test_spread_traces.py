"""Engines that have the experts of a model among them, over random traffic: each answers as one engine with all experts
does, to the bit, whatever its requests meet: adapters, grammars, preemption, cached prefixes, drafts, and aborts."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from appliance.engine.inproc import InprocEngine
from appliance.engine.messages import (
    AbortRequest,
    Constraint,
    EngineStats,
    FinishReason,
    GenerateRequest,
    SamplingParams,
    Vocabulary,
)
from appliance.plan.prepare import prepare
from appliance.text.byte_alphabet import CHARACTER_OF_BYTE
from tests.engine.spread_engines import CLIENT, Answers, Due, SpreadEngines, be_patient, gather
from tests.engine.test_rank_group import machine_with, pytestmark, rank_processes
from tests.models.adapters import make_adapter
from tests.models.tiny import make_tiny
from tests.models.tiny_config import VOCAB_SIZE

__all__ = ["pytestmark"]

SPEC = """
api_version: appliance/v1
kind: Deployment
name: tiny
model: {{source: {folder}/model, max_model_len: 128, skip_tokenizer_init: true}}
hardware: {{num_threads: 1, memory: {{kv_cache: 1MiB}}}}
scheduler: {{max_num_seqs: 6, max_num_batched_tokens: 48, policy: priority}}
lora: {{max_loras: 1, max_rank: 8, adapters: [{{name: a, source: {folder}/a}}, {{name: b, source: {folder}/b}}]}}
"""
NUM_REQUESTS, NUM_TRACES, EOS = 30, 3, 0
LATER = (0, 0, 0, 1, 2, 5, 30, 90)  # steps after the request before it, at which a request comes

FEW = ("scheduler.max_num_seqs=2", "scheduler.max_num_batched_tokens=16")
TIGHT = (*FEW, "cache.num_blocks=12", "hardware.memory.kv_cache=auto")
TENSOR = "parallelism.tensor=2"
SWAP = "hardware.memory.swap_space=4MiB"
LOOKUP = ("speculative.method=suffix", "speculative.num_tokens=4", "speculative.adaptive=false")
DRAFTS = ("speculative.model={model}", *LOOKUP[1:])  # of the model itself, whole in each
# A mixture; latents, with groups of experts; and recurrent states beside attention.
SHAPES = [
    ("qwen3_moe", 2, ()),
    ("qwen3_moe", 3, TIGHT),
    ("qwen3_moe", 2, (*LOOKUP, "parallelism.expert_placement_strategy=round_robin")),
    ("qwen3_moe", 2, DRAFTS),
    ("deepseek3", 3, LOOKUP),
    ("deepseek3", 2, (*TIGHT, *LOOKUP)),
    ("qwen3_next", 2, (*FEW, SWAP)),
    ("qwen3_next", 3, LOOKUP),
    ("qwen3_next", 2, DRAFTS),
    ("qwen3_moe", 2, (TENSOR, *TIGHT, *LOOKUP)),
    ("deepseek3", 2, (TENSOR, "parallelism.expert_placement_strategy=round_robin")),
    ("qwen3_next", 2, (TENSOR, *FEW, SWAP)),
    ("qwen3_next", 2, (TENSOR, *DRAFTS)),
]


class Made(NamedTuple):
    spec: Path
    requests: Sequence[GenerateRequest]
    answers: Answers  # of one engine, without drafts, which has room for all


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    found: dict[str, Made] = {}

    def get(name: str) -> Made:
        if name not in found:
            folder = tmp_path_factory.mktemp(name)
            oracle = make_tiny(name, folder / "model")
            for seed, adapter in enumerate(("a", "b")):
                make_adapter(oracle, folder / adapter, seed, targets=lambda module: "kv_b" not in module)
            spec = folder / "spec.yaml"
            spec.write_text(SPEC.format(folder=folder))
            requests = list(random_requests(7))
            found[name] = Made(spec, requests, alone(spec, requests))
        return found[name]

    return get


def vocabulary() -> Vocabulary:
    """Every byte that text has is a token; 0 ends a sequence."""
    words = {"<|end|>": EOS} | {CHARACTER_OF_BYTE[byte]: 1 + byte for byte in range(VOCAB_SIZE - 1)}
    tokenizer = Tokenizer(models.BPE(words, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", normalized=False)])
    return Vocabulary(tokenizer=tokenizer.to_str(), eos_token_ids=(EOS,))


def random_requests(seed: int) -> Iterator[GenerateRequest]:
    """Prompts of which several begin alike, each with other parameters."""
    rng = np.random.default_rng(seed)
    common = rng.integers(3, VOCAB_SIZE, 24).tolist()
    for number in range(NUM_REQUESTS):
        own = rng.integers(3, VOCAB_SIZE, rng.integers(1, 40)).tolist()
        sampling = SamplingParams(
            n=2 if number % 11 == 3 else 1,
            max_tokens=int(rng.integers(3, 24)),
            temperature=float(rng.choice([0.0, 0.8])),
            seed=number,
            logprobs=int(rng.choice([0, 3])),
            prompt_logprobs=1 if number % 13 == 5 else None,
            frequency_penalty=float(rng.choice([0.0, 0.5])),
        )
        kind, source = (("regex", "[a-f]{2,9}(0|1)+"), ("json_schema", '{"enum": ["left", "right", 12]}'))[number % 2]
        yield GenerateRequest(
            request_id=f"r{number}",
            prompt_token_ids=common + own if number % 2 else own,
            sampling=sampling,
            constraint=Constraint(kind=kind, source=source, field="f") if number % 6 < 2 else None,  # type: ignore[arg-type] # of the two kinds
            eos_token_ids=(EOS,),
            priority=int(rng.integers(-2, 3)),
            adapter=(None, "a", None, "b")[number % 4],
            stacked=(("b", 0.5),) if number % 12 == 1 else (),
        )


def alone(spec: Path, requests: Sequence[GenerateRequest]) -> Answers:
    found: Answers = {}
    with InprocEngine.from_plan(prepare(str(spec)).plan) as engine:
        be_patient(engine._loop)
        engine.send(vocabulary())
        for request in requests:
            engine.send(request)
        while engine.has_work:
            gather([(CLIENT, event) for event in engine.receive()], found)
    assert {each.error for each in found.values()} == {None}
    return found


def random_trace(requests: Sequence[GenerateRequest], rng: np.random.Generator) -> tuple[list[Due], set[str]]:
    """Returns some of the requests at their moments, with the aborts of some of these; and the requests that are
    aborted."""
    trace, aborted, at = list[Due](), set[str](), 0
    for number in rng.permutation(len(requests))[: int(rng.integers(4, 14))]:
        at += int(rng.choice(LATER))
        trace.append(Due(at, requests[number]))
        if rng.random() < 0.4:
            aborted.add(requests[number].request_id)
            trace.append(Due(at + int(rng.integers(0, 8)), AbortRequest([requests[number].request_id])))
    return sorted(trace, key=lambda due: due.at), aborted


@pytest.mark.parametrize(("name", "count", "overrides"), SHAPES)
def test_answers_are_those_of_one_engine(
    name: str, count: int, overrides: tuple[str, ...], made: Callable[[str], Made], tmp_path: Path
) -> None:
    spec, requests, expected = made(name)
    shape = (f"parallelism.data={count}", "parallelism.expert=true")
    overrides = tuple(each.format(model=spec.parent / "model") for each in overrides)
    plan = prepare(str(spec), (*shape, *overrides), machine_with(4, tmp_path), to_run=False).plan
    engines, rng, num_cut = SpreadEngines(plan), np.random.default_rng([count, len(overrides), *name.encode()]), 0
    engines.all_handle(vocabulary())
    for _ in range(NUM_TRACES):
        traces = [random_trace(requests, rng) for _ in range(count)]
        for found, (trace, aborted) in zip(engines.run([trace for trace, _ in traces]), traces, strict=True):
            num_cut += check(found, expected, trace, aborted)
    assert num_cut > 0
    assert engines.num_idle_steps > 0
    check_variety(engines.stats, overrides)
    engines.close()


def check(found: Answers, expected: Answers, trace: Sequence[Due], aborted: set[str]) -> int:
    """Checks what an engine answered; returns how many answers were cut short by an abort."""
    cut = {key for key, answer in found.items() if answer.finish is FinishReason.ABORT}
    asked = {due.message.request_id for due in trace if isinstance(due.message, GenerateRequest)}
    assert {name for name, _ in found} == asked
    assert {name for name, _ in cut} <= aborted
    assert {key: found[key] for key in found.keys() - cut} == {key: expected[key] for key in found.keys() - cut}
    assert all(found[key].is_beginning_of(expected[key]) for key in cut)
    return len(cut)


def check_variety(stats: Sequence[EngineStats], overrides: Sequence[str]) -> None:
    """Checks that the engines met what they were made for."""
    assert sum(each.prefix_hits for each in stats) > 0
    drafts = [method for each in stats if each.speculation for method in each.speculation.methods.values()]
    has_drafts = any(each.startswith("speculative.") for each in overrides)
    assert (sum(each.accepted_tokens for each in drafts) > 0) == has_drafts
    if set(FEW) <= set(overrides) and not has_drafts:  # drafts may end answers before another needs their blocks
        assert sum(each.num_preemptions for each in stats) > 0
    swaps = sum(each.swap.num_loaded for each in stats if each.swap is not None)
    assert (swaps > 0) == (SWAP in overrides)


def test_a_rank_that_is_gone_ends_all_replicas_by_name(made: Callable[[str], Made], tmp_path: Path) -> None:
    """The leader and the other replica may wait for it, or for each other, in one memory or the other."""
    spec, requests, _ = made("qwen3_moe")
    shape = ("parallelism.data=2", "parallelism.expert=true", TENSOR)
    plan = prepare(str(spec), shape, machine_with(4, tmp_path), to_run=False).plan
    engines = SpreadEngines(plan)
    ranks = rank_processes()
    assert len(ranks) == 2
    killer = threading.Timer(0.3, os.kill, (ranks[0], signal.SIGKILL))
    killer.start()
    began, crowd = time.monotonic(), [Due(0, each) for each in requests if each.constraint is None]

    def run() -> None:
        while time.monotonic() < began + 20:
            engines.run([crowd, crowd])

    with pytest.raises(ExceptionGroup) as raised:
        run()
    assert time.monotonic() < began + 10  # and not after the time for which they wait for one another
    said = sorted(map(str, raised.value.exceptions))
    assert said[0] == "rank 1 ended: it was ended by SIGKILL", said
    assert all("replica" in each and "is gone" in each for each in said[1:]), said
    engines.close()
    assert rank_processes() == []
