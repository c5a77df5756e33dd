"""LLMEngine: requests that are added one by one, and what each step says of them."""

import gc
import time
import weakref
from pathlib import Path

import pytest

from appliance import (
    LLM,
    EngineArgs,
    LLMEngine,
    LoRARequest,
    PoolingParams,
    RequestOutput,
    RequestOutputKind,
    SamplingParams,
)
from appliance.offline.errors import ClosedError, InvalidRequestError
from appliance.service.errors import RequestFailedError
from tests.models.tiny_pooled import make_pooled, write_tokenizer
from tests.offline.conftest import ARGUMENTS

GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


def run_out(engine: LLMEngine) -> dict[str, list[RequestOutput]]:
    found: dict[str, list[RequestOutput]] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            assert isinstance(output, RequestOutput)
            found.setdefault(output.request_id, []).append(output)
    return found


def test_steps_say_what_a_call_says(llm: LLM, adapter: Path) -> None:
    engine = llm.llm_engine
    assert engine is llm.llm_engine
    assert engine.step() == []
    sql = LoRARequest("sql", 1, str(adapter))
    for at in range(6):
        engine.add_request(str(at), f"text {at}", GREEDY, lora_request=sql if at % 2 else None)
    assert engine.get_num_unfinished_requests() == 6
    found = run_out(engine)
    loras = [sql if at % 2 else None for at in range(6)]
    whole = llm.generate([f"text {at}" for at in range(6)], GREEDY, lora_request=loras, use_tqdm=False)
    assert [found[str(at)][-1].outputs[0].token_ids for at in range(6)] == [each.outputs[0].token_ids for each in whole]
    assert max(len(outputs) for outputs in found.values()) > 1
    assert all(outputs[-1].finished and not outputs[0].finished for outputs in found.values() if len(outputs) > 1)
    assert engine.step() == []


def test_pieces_are_all_there(llm: LLM) -> None:
    pieces = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, output_kind=RequestOutputKind.DELTA)
    llm.llm_engine.add_request("pieces", "text 1", pieces)
    found = run_out(llm.llm_engine)["pieces"]
    [whole] = llm.generate("text 1", GREEDY, use_tqdm=False)
    assert "".join(each.outputs[0].text for each in found) == whole.outputs[0].text


def test_an_aborted_request_says_no_more_and_its_id_is_free(llm: LLM) -> None:
    engine = llm.llm_engine
    engine.add_request("a", "abc", SamplingParams(max_tokens=400, ignore_eos=True))
    engine.add_request("b", "text 1", GREEDY)
    with pytest.raises(InvalidRequestError, match="open already"):
        engine.add_request("a", "abc", GREEDY)
    engine.abort_request(["a", "unknown"])
    engine.add_request("a", "text 2", GREEDY)
    found = run_out(engine)
    expected = llm.generate(["text 2", "text 1"], GREEDY, use_tqdm=False)
    assert [found[key][-1].outputs[0].text for key in "ab"] == [each.outputs[0].text for each in expected]


def test_a_wrong_request_is_told_at_once_and_a_failed_one_by_a_step(llm: LLM) -> None:
    engine = llm.llm_engine
    with pytest.raises(InvalidRequestError, match="logprobs"):
        engine.add_request("a", "abc", SamplingParams(logprobs=10_000))
    assert not engine.has_unfinished_requests()

    def fails(output: list[int], logits: object) -> object:
        raise ValueError("no")

    engine.add_request("a", "abc", SamplingParams(logits_processors=[fails]))
    engine.add_request("b", "text 1", GREEDY)
    said: list[RequestOutput] = []
    failures: list[str] = []
    while engine.has_unfinished_requests():
        try:
            said += [output for output in engine.step() if isinstance(output, RequestOutput)]
        except RequestFailedError as error:
            failures.append(str(error))
    [failure] = failures
    assert failure.endswith("ValueError: no")
    [whole] = llm.generate("text 1", GREEDY, use_tqdm=False)
    assert {each.request_id for each in said} == {"b"}
    assert said[-1].outputs[0].token_ids == whole.outputs[0].token_ids


def test_a_step_does_not_wait_for_an_engine_that_was_closed(model: Path) -> None:
    def slow(output: list[int], logits: object) -> object:
        time.sleep(0.02)
        return logits

    with LLM(str(model), **ARGUMENTS) as closed:
        engine = closed.llm_engine
        engine.add_request("a", "abc", SamplingParams(max_tokens=400, ignore_eos=True, logits_processors=[slow]))
    with pytest.raises(RequestFailedError, match="the engine was closed"):
        run_out(engine)
    assert engine.step() == []
    with pytest.raises(ClosedError):
        engine.add_request("b", "abc", GREEDY)


def test_an_engine_of_its_own_ends_with_its_last_reference(model: Path) -> None:
    engine = LLMEngine.from_engine_args(EngineArgs(model=str(model), **ARGUMENTS))
    assert engine.model_config.max_model_len == 512
    assert engine.vllm_config.model_config == engine.model_config
    assert engine.model_config.hf_config.num_hidden_layers == 2
    engine.add_request("a", "abc", SamplingParams(max_tokens=400, ignore_eos=True))
    watched, session = weakref.ref(engine), engine._session
    del engine
    gc.collect()
    assert watched() is None
    with pytest.raises(ClosedError):
        session.run(session.check)


def test_vectors_come_by_steps_as_well(tmp_path: Path) -> None:
    make_pooled("bert-mean", tmp_path)
    write_tokenizer(tmp_path)
    with LLM(str(tmp_path), runner="pooling") as encoder:
        encoder.llm_engine.add_request("v", "the cat", PoolingParams())
        with pytest.raises(InvalidRequestError, match="pools"):
            encoder.llm_engine.add_request("t", "the cat", GREEDY)
        [found] = encoder.llm_engine.step()
        [expected] = encoder.encode("the cat", use_tqdm=False)
        assert found.request_id == "v"
        assert not isinstance(found, RequestOutput)
        assert (found.outputs.data == expected.outputs.data).all()
