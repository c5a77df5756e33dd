"""LLM.embed, classify, score and encode, against what transformers computes."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from appliance import LLM, AsyncEngineArgs, AsyncLLM, BeamSearchParams, EngineArgs, PoolingParams, SamplingParams
from appliance.offline.errors import InvalidRequestError
from appliance.offline.vllm_helpers import TorchLLM
from tests.models.tiny_pooled import make_pooled, pooled_by_torch, write_tokenizer

TEXTS = ["the cat sat", "a dog ran far away", "blue sky"]


class Loaded(NamedTuple):
    llm: LLM
    name: str
    oracle: torch.nn.Module

    def expected(self, token_ids: list[int]) -> Any:
        return pooled_by_torch(self.name, self.oracle, token_ids).numpy()


Load = Callable[..., Loaded]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Load]:
    kept: dict[str, Loaded] = {}

    def get(name: str, task: str, **more: Any) -> Loaded:
        if name not in kept:
            folder: Path = tmp_path_factory.mktemp(name)
            oracle = make_pooled(name, folder)
            write_tokenizer(folder)
            kept[name] = Loaded(LLM(str(folder), task=task, dtype="float32", **more), name, oracle)
        return kept[name]

    yield get
    for each in kept.values():
        each.llm.close()


def test_vectors_have_length_one_and_the_direction_of_transformers(load: Load) -> None:
    model = load("bert-mean", "embed")
    outputs = model.llm.embed(TEXTS, use_tqdm=False)
    assert len(outputs) == len(TEXTS)
    for text, output in zip(TEXTS, outputs, strict=True):
        assert output.finished
        assert output.prompt_token_ids == model.llm.get_tokenizer().encode(text)
        expected = model.expected(output.prompt_token_ids)
        assert output.outputs.embedding == pytest.approx(expected / np.linalg.norm(expected), abs=1e-3)
        assert output.outputs.hidden_size == len(expected)
    [raw] = model.llm.encode(TEXTS[0], PoolingParams(normalize=False), pooling_task="embed")
    assert raw.outputs.data == pytest.approx(model.expected(raw.prompt_token_ids), rel=1e-3, abs=1e-2)
    [of_ids] = model.llm.embed({"prompt_token_ids": outputs[0].prompt_token_ids})
    assert of_ids.outputs == outputs[0].outputs
    [cut] = model.llm.embed("the cat sat on a mat", truncate_prompt_tokens=4)
    assert len(cut.prompt_token_ids) == 4


def test_texts_are_cut_and_left_bare_where_a_call_says_so(load: Load) -> None:
    llm = load("bert-mean", "embed").llm
    [whole] = llm.encode(TEXTS[1], use_tqdm=False)
    [bare] = llm.encode(TEXTS[1], tokenization_kwargs={"add_special_tokens": False}, use_tqdm=False)
    [cut] = llm.embed(TEXTS[1], tokenization_kwargs={"truncate_prompt_tokens": 3}, use_tqdm=False)
    assert whole.prompt_token_ids[1:-1] == bare.prompt_token_ids
    assert len(cut.prompt_token_ids) == 3
    llm.score(TEXTS[0], TEXTS[1], tokenization_kwargs={"truncate_prompt_tokens": -1}, use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="'padding'; add_special_tokens and truncate_prompt_tokens are known"):
        llm.encode(TEXTS[1], tokenization_kwargs={"padding": True}, use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="always added"):
        llm.score(TEXTS[0], TEXTS[1], tokenization_kwargs={"add_special_tokens": False}, use_tqdm=False)


def test_a_program_of_vllm_gets_tensors(tmp_path: Path) -> None:
    make_pooled("bert-mean", tmp_path)
    write_tokenizer(tmp_path)
    with TorchLLM(**vars(EngineArgs(str(tmp_path), runner="pooling", renderer_num_workers=1))) as encoder:
        found = torch.stack([each.outputs.data for each in encoder.encode(TEXTS, use_tqdm=False)])
        plain = [each.outputs.embedding for each in encoder.embed(TEXTS, use_tqdm=False)]
    np.testing.assert_array_equal(found.numpy(), np.array(plain, np.float32))


def test_an_embedder_scores_by_likeness(load: Load) -> None:
    model = load("bert-mean", "embed")
    one, other = (np.array(each.outputs.embedding) for each in model.llm.embed(TEXTS[:2]))
    scores = model.llm.score(TEXTS[0], TEXTS)
    assert [each.outputs.score for each in scores[:2]] == pytest.approx([1.0, float(one @ other)], abs=1e-4)
    with pytest.raises(InvalidRequestError, match="data_1 has 2 texts"):
        model.llm.score(TEXTS[:2], TEXTS)


def test_classes_are_those_of_transformers(load: Load) -> None:
    model = load("bert-classify", "classify")
    for output in model.llm.classify(TEXTS):
        weights = np.exp(model.expected(output.prompt_token_ids))
        assert output.outputs.probs == pytest.approx(weights / weights.sum(), abs=1e-3)
        assert output.outputs.num_classes == 3


def test_scores_of_a_cross_encoder_are_in_the_order_of_pairs(load: Load) -> None:
    model = load("bert-score", "score")
    together = [each.outputs.score for each in model.llm.score("what is blue", TEXTS)]
    alone = [model.llm.score("what is blue", text)[0].outputs.score for text in TEXTS]
    assert together == pytest.approx(alone, abs=1e-6)
    assert all(0 <= each <= 1 for each in together)


def test_each_token_may_have_numbers(load: Load) -> None:
    model = load("bert-all", "embed", override_pooler_config={"pooling_type": "ALL", "normalize": False})
    [output] = model.llm.encode(TEXTS[0], pooling_task="token_embed")
    expected = model.expected(output.prompt_token_ids)
    assert output.outputs.data.shape == expected.shape
    with pytest.raises(InvalidRequestError, match="token_embed"):
        model.llm.embed(TEXTS[0])


def test_a_task_that_a_model_does_not_do_is_refused(load: Load, llm: LLM) -> None:
    model = load("bert-mean", "embed")
    with pytest.raises(InvalidRequestError, match="generates no text"):
        model.llm.generate("a", SamplingParams())
    with pytest.raises(InvalidRequestError, match="this model pools"):
        model.llm.beam_search("a", BeamSearchParams(beam_width=2, max_tokens=4))
    with pytest.raises(InvalidRequestError, match="needs a model that does classify"):
        model.llm.classify("a")
    with pytest.raises(InvalidRequestError, match="not trained to have them cut"):
        model.llm.embed("a", pooling_params=PoolingParams(dimensions=4))
    for method in ("embed", "classify", "encode"):
        with pytest.raises(InvalidRequestError, match="pools nothing"):
            getattr(llm, method)("a")
    with pytest.raises(InvalidRequestError, match="pools nothing"):
        llm.score("a", "b")


async def test_an_async_engine_encodes(tmp_path: Path) -> None:
    oracle = make_pooled("bert-mean", tmp_path)
    write_tokenizer(tmp_path)
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(str(tmp_path), task="embed", dtype="float32"))
    raw = PoolingParams(normalize=False)
    [output] = [each async for each in engine.encode(TEXTS[0], raw, "first")]
    assert output.request_id == "first"
    expected = pooled_by_torch("bert-mean", oracle, output.prompt_token_ids).numpy()
    assert output.outputs.data == pytest.approx(expected, rel=1e-3, abs=1e-2)
    with pytest.raises(InvalidRequestError, match="generates no text"):
        await anext(engine.generate("a", None, "second"))
    engine.shutdown()
