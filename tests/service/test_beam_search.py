"""Beam search finds what transformers finds, on the same weights."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from transformers import LlamaForCausalLM

from appliance.engine.messages import SamplingParams, TokenLogprobs
from appliance.engine.weight_messages import WeightUpdate
from appliance.plan.prepare import prepare
from appliance.service.beam_search import BeamRules, Beams, BeamStream
from appliance.service.errors import RequestFailedError
from appliance.service.in_process import InProcessEngine
from appliance.service.requests import TextOutput, TextRequest
from appliance.service.text_side import load_text_side
from tests.e2e.served import make_random_model
from tests.server.harness import encode

_SPEC = "{{api_version: appliance/v1, kind: Deployment, name: m, model: {{source: {source}, max_logprobs: -1}}}}"
_PAIRS = [encode("Once upon a"), encode("x = ")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_random_model(path)
    (path / "spec.yaml").write_text(_SPEC.format(source=json.dumps(str(path))))
    return path


@pytest_asyncio.fixture()
async def engine(folder: Path) -> AsyncIterator[InProcessEngine]:
    exact = ("model.dtype=float32", "cache.dtype=float32", "hardware.kernels.quantize_activations=false")
    plan = prepare(folder / "spec.yaml", ("cache.num_blocks=512", *exact)).plan
    running = InProcessEngine(plan, load_text_side(plan, None))
    yield running
    running.close()


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Any:
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


async def found(engine: InProcessEngine, rules: BeamRules, n: int, **sampling: Any) -> list[TextOutput]:
    params = SamplingParams(n=n, max_tokens=rules.max_tokens, **sampling)
    requests = [TextRequest(request_id=str(i), prompt_token_ids=each, sampling=params) for i, each in enumerate(_PAIRS)]
    stream = BeamStream(engine.client, engine.client.text, requests, [rules] * len(requests))
    return [output async for outputs in stream for output in outputs]


@pytest.mark.parametrize(
    ("width", "penalty", "early", "num_ends"),
    [
        (2, 1.0, False, 0), (3, 1.0, False, 0), (4, 1.0, False, 2), (4, 0.0, "never", 1), (4, 2.0, "never", 3),
        (3, -1.0, True, 3),
    ],
)  # fmt: skip
async def test_equal_to_transformers(
    engine: InProcessEngine, oracle: Any, width: int, penalty: float, early: Any, num_ends: int
) -> None:
    for prompt in _PAIRS:
        greedy = oracle.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False, eos_token_id=None)
        ends = list(dict.fromkeys(greedy[0, len(prompt) + 2 :].tolist()))[:num_ends]
        expected = oracle.generate(
            torch.tensor([prompt]), max_new_tokens=8, do_sample=False, num_beams=width, num_return_sequences=width,
            length_penalty=penalty, early_stopping=early, eos_token_id=ends or None, pad_token_id=400,
            return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
        rows = [[int(token) for token in row[len(prompt) :] if token != 400] for row in expected.sequences]
        rules = BeamRules(
            width=width, max_tokens=8, end_ids=frozenset(ends), length_penalty=penalty, early_stopping=early
        )
        place = _PAIRS.index(prompt)
        outputs = (await found(engine, rules, width, logprobs=0))[place * width : (place + 1) * width]
        assert [output.token_ids for output in outputs] == rows
        assert [output.index for output in outputs] == list(range(place * width, (place + 1) * width))
        for output, score in zip(outputs, expected.sequences_scores.tolist(), strict=True):
            total = sum(at.logprobs[0] for at in output.logprobs or [])
            expected_total = score * len(output.token_ids) ** penalty
            assert total == pytest.approx(expected_total, abs=1e-3)
            assert output.finish_reason == ("stop" if output.token_ids[-1] in ends else "length")


async def test_closing_ends_the_search(engine: InProcessEngine) -> None:
    rules = BeamRules(width=3, max_tokens=200, end_ids=frozenset())
    request = TextRequest(request_id="r", prompt_token_ids=encode("x"), sampling=SamplingParams(n=3, max_tokens=200))
    stream = BeamStream(engine.client, engine.client.text, [request], [rules])
    stream.close()
    assert [outputs async for outputs in stream] == []
    assert engine.client.num_open_requests == 0


async def test_a_search_ends_if_weights_change_in_between(engine: InProcessEngine, folder: Path) -> None:
    rules = BeamRules(width=2, max_tokens=60, end_ids=frozenset())
    search = asyncio.create_task(found(engine, rules, 2))
    while engine.client.stats is None or engine.client.stats.num_steps < 3:
        await asyncio.sleep(0.001)
    await engine.client.update_weights(WeightUpdate(path=str(folder)))
    with pytest.raises(RequestFailedError, match="send it again"):
        await search
    assert engine.client.num_open_requests == 0


def test_finished_beams_are_kept_by_their_normalized_score() -> None:
    beams = Beams(BeamRules(width=2, max_tokens=3, end_ids=frozenset({9})))
    beams.advance([TokenLogprobs([1, 9, 1, 2, 3], [-1.0, -0.5, -1.0, -2.0, -3.0], 1)])
    assert [beam.token_ids for beam in beams.live] == [(1,), (2,)]
    assert [(score, beam.token_ids) for score, beam in beams.finished] == [(-0.5, (9,))]
    assert not beams.is_done
