"""Embeddings that are the rows of their tokens answer as these, with ranks, stages and drafts: to the bit."""

from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from appliance.engine.inproc import InprocEngine
from appliance.engine.messages import GenerateRequest, OutputBatch
from appliance.plan.prepare import prepare
from tests.engine.embeds import given
from tests.engine.test_rank_group import STAGES, TENSOR, TORCH, machine_with, pytestmark, requests, spec_of

__all__ = ["pytestmark", "spec_of"]

TAKING = ("model.enable_prompt_embeds=true", "model.dtype=float32")
SUFFIX = ("speculative.method=suffix", "speculative.num_tokens=4")
CASES = {
    "tensor": ("llama", TENSOR),
    "windows": ("gemma3", TENSOR),
    "stages": ("llama", STAGES),
    "both": ("gemma3", TENSOR + STAGES),
    "linked": ("llama", (TORCH, *TENSOR)),
    "lookups": ("llama", SUFFIX),
    "swap": ("llama", ("hardware.memory.swap_space=1MiB", "cache.num_blocks=12", "hardware.memory.kv_cache=auto")),
}


def answers(engine: InprocEngine, asked: list[GenerateRequest]) -> dict[str, list[object]]:
    found: dict[str, list[object]] = {request.request_id: [] for request in asked}
    num_open = len(asked)
    for request in asked:
        engine.send(request)
    while num_open:
        for event in engine.receive():
            for output in event.outputs if isinstance(event, OutputBatch) else ():
                assert output.error is None
                own = output.logprobs or [None] * len(output.token_ids)
                found[output.request_id] += zip(output.token_ids, map(repr, own), strict=True)
                num_open -= output.finish_reason is not None
    return found


@pytest.mark.parametrize("name", CASES)
def test_rows_of_the_table_answer_as_their_tokens(name: str, spec_of: Callable[[str], Path], tmp_path: Path) -> None:
    model, overrides = CASES[name]
    spec = spec_of(model)
    table = load_file(spec.parent / "model" / "model.safetensors")["model.embed_tokens.weight"]
    if model == "gemma3":
        table = table * table.dtype.type(table.shape[1] ** 0.5)
    asked = list(requests(5))
    every = [given(request, table) for request in asked]
    mixed = [given(request, table, 9) if at % 2 else request for at, request in enumerate(asked)]
    kernels = tuple(each for each in overrides if each == TORCH)
    with InprocEngine.from_plan(prepare(str(spec), TAKING + kernels).plan) as one:
        expected = answers(one, asked)
    plan = prepare(str(spec), (*TAKING, *overrides), machine_with(4, tmp_path), to_run=False).plan
    with InprocEngine.from_plan(plan) as engine:
        for each in (every, mixed, asked):
            if name == "linked":  # rows of torch round by their neighbours
                assert [*map(len, answers(engine, each).values())] == [*map(len, expected.values())]
            else:
                assert answers(engine, each) == expected


def test_a_draft_model_does_not_follow_embeddings(spec_of: Callable[[str], Path]) -> None:
    spec = spec_of("llama")
    table = load_file(spec.parent / "model" / "model.safetensors")["model.embed_tokens.weight"]
    asked = list(requests(6))
    draft = (f"speculative.model={spec.parent / 'model'}", "speculative.num_tokens=4")
    with InprocEngine.from_plan(prepare(str(spec), TAKING).plan) as plain:
        expected = answers(plain, asked)
    with InprocEngine.from_plan(prepare(str(spec), (*TAKING, *draft)).plan) as engine:
        assert answers(engine, [given(request, table) for request in asked]) == expected
        told = engine._loop._stats().speculation
        assert told is not None
        assert told.methods.get("draft_model") is None or told.methods["draft_model"].draft_tokens == 0
        assert answers(engine, asked) == expected
