"""LLM.generate and LLM.chat: prompts in their forms, parameters one for all or one for each, and what comes back."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from appliance import LLM, GuidedDecodingParams, LoRARequest, RequestOutput, SamplingParams, StructuredOutputsParams
from appliance.offline.errors import InvalidRequestError

GREEDY = SamplingParams(temperature=0.0, max_tokens=8)
PROMPTS = ["Hello, my name is", "The president of", "The capital of France is", "The future of AI is"]


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [each.outputs[0].text for each in outputs]


def test_answers_are_in_the_order_of_prompts(llm: LLM) -> None:
    together = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert [each.prompt for each in together] == PROMPTS
    assert texts(together) == [texts(llm.generate(each, GREEDY))[0] for each in PROMPTS]
    assert len(set(texts(together))) == len(PROMPTS)
    first = together[0]
    assert first.finished
    assert first.prompt_token_ids == llm.get_tokenizer().encode(PROMPTS[0])
    assert first.outputs[0].finish_reason == "length"
    assert len(first.outputs[0].token_ids) == 8
    assert first.outputs[0].logprobs is None
    assert first.outputs[0].cumulative_logprob is None
    assert first.metrics is not None
    assert first.metrics.num_generation_tokens == 8


def test_a_prompt_has_four_forms(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("abc")
    forms: list[Any] = ["abc", ids, {"prompt": "abc"}, {"prompt_token_ids": ids}]
    answers = llm.generate(forms, GREEDY)
    assert len(set(texts(answers))) == 1
    assert [each.prompt for each in answers] == ["abc", None, "abc", None]
    assert texts(llm.generate(ids, GREEDY)) == texts(answers)[:1]


def test_parameters_may_be_one_for_each_prompt(llm: LLM) -> None:
    answers = llm.generate(PROMPTS[:2], [SamplingParams(max_tokens=3), SamplingParams(max_tokens=5)], priority=[0, 0])
    assert [len(each.outputs[0].token_ids) for each in answers] == [3, 5]


def test_several_sequences_of_a_prompt(llm: LLM) -> None:
    [answer] = llm.generate("abc", SamplingParams(n=3, seed=5, max_tokens=6))
    assert [each.index for each in answer.outputs] == [0, 1, 2]
    assert len({each.text for each in answer.outputs}) == 3
    [again] = llm.generate("abc", SamplingParams(n=3, seed=5, max_tokens=6))
    assert [each.text for each in again.outputs] == [each.text for each in answer.outputs]


def test_logprobs_have_rank_and_text(llm: LLM) -> None:
    [answer] = llm.generate("abc", SamplingParams(temperature=0.0, max_tokens=4, logprobs=2, prompt_logprobs=0))
    completion = answer.outputs[0]
    assert completion.logprobs is not None
    assert len(completion.logprobs) == 4
    chosen = [at[token] for at, token in zip(completion.logprobs, completion.token_ids, strict=True)]
    assert [each.rank for each in chosen] == [1, 1, 1, 1]
    assert all(len(at) == 2 for at in completion.logprobs)
    assert "".join(each.decoded_token or "" for each in chosen) == completion.text
    assert completion.cumulative_logprob is not None
    assert math.isclose(completion.cumulative_logprob, sum(each.logprob for each in chosen))
    assert answer.prompt_logprobs is not None
    assert answer.prompt_logprobs[0] is None
    assert [len(each or {}) for each in answer.prompt_logprobs] == [0, *[1] * (len(answer.prompt_token_ids) - 1)]


def test_prompts_are_cut_where_a_call_says_so(llm: LLM) -> None:
    [whole] = llm.generate("text of a prompt", GREEDY, use_tqdm=False)
    [cut] = llm.generate("text of a prompt", GREEDY, tokenization_kwargs={"truncate_prompt_tokens": 4}, use_tqdm=False)
    assert cut.prompt_token_ids == whole.prompt_token_ids[-4:]


def test_stops(llm: LLM) -> None:
    [plain] = llm.generate("abc", GREEDY)
    text, ids = plain.outputs[0].text, plain.outputs[0].token_ids
    [stopped] = llm.generate("abc", SamplingParams(temperature=0.0, max_tokens=8, stop=text[3]))
    assert stopped.outputs[0].text == text[: text.index(text[3])]
    assert (stopped.outputs[0].finish_reason, stopped.outputs[0].stop_reason) == ("stop", text[3])
    [by_id] = llm.generate("abc", SamplingParams(temperature=0.0, max_tokens=8, stop_token_ids=[ids[2]]))
    assert by_id.outputs[0].stop_reason == ids[2]


def test_the_context_bounds_max_tokens(llm: LLM) -> None:
    prompt = [40] * 500
    [answer] = llm.generate({"prompt_token_ids": prompt}, SamplingParams(max_tokens=4096, ignore_eos=True))
    assert len(answer.outputs[0].token_ids) == 12
    assert answer.outputs[0].finish_reason == "length"
    [whole] = llm.generate({"prompt_token_ids": prompt}, SamplingParams(max_tokens=None, ignore_eos=True))
    assert len(whole.outputs[0].token_ids) == 12


def test_a_prefix_is_cached(llm: LLM) -> None:
    shared = "a long text that several prompts have in common " * 4
    assert llm.generate(shared + "one", GREEDY)[0].num_cached_tokens == 0
    hit = llm.generate(shared + "two", GREEDY)[0].num_cached_tokens
    assert hit is not None
    assert hit >= 16
    assert llm.reset_prefix_cache()
    assert llm.generate(shared + "two", GREEDY)[0].num_cached_tokens == 0


def test_processors_are_callables_of_this_process(llm: LLM) -> None:
    seen = []

    def only_a(output: list[int], logits: Any) -> Any:
        seen.append(len(output))
        logits[:] = -1e9
        logits[llm.get_tokenizer().encode("a")[0]] = 0.0
        return logits

    [answer] = llm.generate("abc", SamplingParams(max_tokens=4, logits_processors=[only_a]))
    assert answer.outputs[0].text == "aaaa"
    assert seen == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", [StructuredOutputsParams, GuidedDecodingParams])
def test_structured_outputs(llm: LLM, kind: type[StructuredOutputsParams]) -> None:
    name = "structured_outputs" if kind is StructuredOutputsParams else "guided_decoding"
    choice: Any = {name: kind(choice=["Positive", "Negative"])}
    [answer] = llm.generate("This is good:", SamplingParams(max_tokens=16, **choice))
    assert answer.outputs[0].text in ("Positive", "Negative")
    schema = {
        "type": "object",
        "properties": {"a": {"enum": [True, False]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    asked: Any = {name: kind(json=schema, disable_any_whitespace=True)}
    [answer] = llm.generate("JSON:", SamplingParams(max_tokens=32, **asked))
    assert json.loads(answer.outputs[0].text)["a"] in (True, False)
    mail = r"[ab]{3}@[cd]{2}\.com"
    regex: Any = {name: kind(regex=mail)}
    [answer] = llm.generate("Mail:", SamplingParams(max_tokens=16, **regex))
    assert re.fullmatch(mail, answer.outputs[0].text)


def test_an_adapter_is_read_when_a_request_names_it(llm: LLM, adapter: Path) -> None:
    sql = LoRARequest("sql", 1, str(adapter), base_model_name="base")
    plain, adapted = llm.generate(["abc", "abc"], GREEDY, lora_request=[None, sql])
    assert plain.outputs[0].text != adapted.outputs[0].text
    assert adapted.lora_request == sql
    assert texts(llm.generate("abc", GREEDY, lora_request=LoRARequest("sql", 1))) == [adapted.outputs[0].text]
    assert llm.plan.adapters is not None
    assert [(each.name, each.parent) for each in llm.plan.adapters.served] == [("sql", "base")]
    with pytest.raises(InvalidRequestError, match="no adapter 'other'"):
        llm.generate("abc", GREEDY, lora_request=LoRARequest("other", 2))


def test_chat_renders_the_template(llm: LLM) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    [one] = llm.chat(messages, GREEDY, use_tqdm=False)
    rendered = llm.get_tokenizer().apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert one.prompt == rendered
    assert texts(llm.chat([messages, messages], GREEDY)) == texts([one, one])
    [own] = llm.chat(messages, GREEDY, chat_template="{% for m in messages %}[{{ m.content }}]{% endfor %}")
    assert own.prompt == "[Be brief.][Hello]"
    begun = [*messages, {"role": "assistant", "content": "Well,"}]
    [continued] = llm.chat(begun, GREEDY, add_generation_prompt=False, continue_final_message=True)
    assert (continued.prompt or "").endswith("Well,")


def test_a_bar_of_the_callers(llm: LLM) -> None:
    made = []

    class Bar:
        def __init__(self, *, total: int, desc: str, dynamic_ncols: bool) -> None:
            self.total, self.count, self.is_closed = total, 0, False
            made.append(self)

        def update(self, count: int) -> None:
            self.count += count

        def close(self) -> None:
            self.is_closed = True

    llm.generate(PROMPTS, GREEDY, use_tqdm=Bar)
    [bar] = made
    assert (bar.total, bar.count, bar.is_closed) == (4, 4, True)


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("", "no tokens"),
        ([], r"prompts\[1\] is empty: it has no tokens"),
        ([40, "a"], r"prompts\[1\]: token ids are a list of integers"),
        ({"prompt": "a", "multi_modal_data": {"image": 1}}, "multi_modal_data"),
        ({"text": "a"}, "the key 'text'"),
        ({"prompt_token_ids": [1 << 40]}, "no vocabulary has"),
        ([40] * 600, "context length is 512"),
        (3, "of the type int"),
    ],
)
def test_a_wrong_prompt_is_told_before_anything_begins(llm: LLM, prompt: Any, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        llm.generate(["fine", prompt], GREEDY)


def test_no_prompts_have_no_answers(llm: LLM) -> None:
    assert llm.generate([], GREEDY) == []
    wrong: Any = 3
    with pytest.raises(InvalidRequestError, match="of the type int"):
        llm.generate(wrong, GREEDY)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1.0), ("temperature", math.nan), ("top_p", 0.0), ("top_k", -2), ("min_p", 1.5), ("n", 0),
        ("max_tokens", 0), ("min_tokens", -1), ("repetition_penalty", 0.0), ("presence_penalty", 3.0),
        ("frequency_penalty", -2.5), ("logprobs", -2), ("seed", 1.5), ("extra_args", {"a": 1}), ("best_of", 3),
    ],
)  # fmt: skip
def test_a_value_out_of_its_range_names_its_field(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        SamplingParams(**{name: value})


def test_structured_outputs_are_one_constraint() -> None:
    with pytest.raises(ValueError, match="json and regex"):
        StructuredOutputsParams(json={}, regex="a")
    with pytest.raises(ValueError, match="none was given"):
        StructuredOutputsParams()


def test_what_is_not_here_is_refused_by_name(llm: LLM) -> None:
    with pytest.raises(NotImplementedError, match="apply_model"):
        llm.apply_model(print)
    with pytest.raises(ValueError, match="worker_extension_cls"):
        llm.collective_rpc("where")
    with pytest.raises(NotImplementedError, match="cannot sleep"):
        llm.sleep()


def test_a_profile_of_what_ran(llm: LLM) -> None:
    llm.start_profile()
    llm.generate("abc", GREEDY)
    [profile] = llm.stop_profile()
    assert profile


def test_the_tokenizer_knows_its_vocabulary(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    vocabulary = tokenizer.get_vocab()
    assert len(vocabulary) == len(tokenizer)
    ids = tokenizer.encode("hello abc")
    assert tokenizer.convert_tokens_to_ids(tokenizer.convert_ids_to_tokens(ids)) == ids
    assert [vocabulary[each] for each in tokenizer.tokenize("hello abc")] == ids
    assert tokenizer("abc").input_ids == tokenizer(["abc"]).input_ids[0]
    assert tokenizer.decode(ids) == "hello abc"
    assert tokenizer.eos_token_id == vocabulary["<|end|>"]
    assert tokenizer.eos_token == "<|end|>"
    assert tokenizer.eos_token_id in tokenizer.all_special_ids
