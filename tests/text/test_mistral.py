"""`tokenizer_mode: mistral`: every id is mistral-common's, of texts, conversations and their tools."""

import asyncio
import json
import random
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from appliance.base.extras import MissingExtraError
from appliance.requests.errors import ApiError
from appliance.requests.fields import ChatFields
from appliance.requests.prompts import PromptMaker
from appliance.text import mistral
from appliance.text.errors import TokenizerError
from appliance.text.infill import encode_infill, infill_format
from appliance.text.loading import load_other
from appliance.text.tokenizer import Tokenizer
from tests.engine.plans import scripted_plan
from tests.text.mistral_vocabularies import FILES, folder_of, needs_mistral_common

TEKKENS = ("tekken-v3", "tekken-v7", "tekken-v11", "tekken-v13", "tekken-v15")
_ALPHABET = "ab  \n\t.,[]<>/s01<\u00e9\u4f60\U0001f600\u2581INST XY\u0301\ufb01"
TOOL = {
    "type": "function",
    "function": {"name": "find", "parameters": {"type": "object", "properties": {"what": {"type": "string"}}}},
}
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "find", "arguments": '{"what": "a caf\u00e9"}'}}
CALLED: list[dict[str, Any]] = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Find [INST] it </s>."},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "abcdefghi", "content": "found"},
    {"role": "assistant", "content": "There it is."},
    {"role": "user", "content": [{"type": "text", "text": "Thanks"}, {"type": "text", "text": "again."}]},
]
PLAIN = [CALLED[0], CALLED[1], CALLED[4], CALLED[5]]


def theirs(folder: Path) -> Any:
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    return MistralTokenizer.from_file(str(mistral.find_file(folder)))


def prompt(tokenizer: Tokenizer, folder: Path, **fields: Any) -> list[int]:
    body = {"model": "m", **fields}
    plan = scripted_plan(
        folder, tokenizer_path=str(folder), skip_tokenizer=False, chat_template=None, max_model_len=4096
    )
    asked = msgspec.convert(body, ChatFields)
    _, token_ids = asyncio.run(PromptMaker(plan, tokenizer).chat(asked, fields.get("tools")))
    return token_ids


def expected(own: Any, messages: list[dict[str, Any]], **options: Any) -> list[int]:
    from mistral_common.protocol.instruct.request import ChatCompletionRequest

    tokens: list[int] = own.encode_chat_completion(ChatCompletionRequest.from_openai(messages, **options)).tokens
    return tokens


@pytest.mark.parametrize("kind", [*FILES, *TEKKENS])
def test_every_id_is_that_of_mistral_common(tmp_path: Path, kind: str) -> None:
    needs_mistral_common()
    folder = folder_of(kind, tmp_path)
    tokenizer, own = load_other(folder, "mistral-common", None, tmp_path / "cache"), theirs(folder)
    kept, plain = load_other(folder, "mistral-common", None, tmp_path / "cache"), own.instruct_tokenizer.tokenizer
    draw = random.Random(kind)
    texts = ["", "[INST] <s></s> [TOOL_CALLS]", Path(__file__).read_text()[:4000]]
    texts += ["".join(draw.choices(_ALPHABET, k=draw.randrange(40))) for _ in range(100)]
    for text in texts:
        ids = plain.encode(text, bos=False, eos=False)
        assert tokenizer.encode(text, add_special_tokens=False) == kept.encode(text, add_special_tokens=False) == ids
        assert tokenizer.encode(text, add_special_tokens=True) == [plain.bos_id, *ids]
        assert tokenizer.decode(ids) == plain.decode(ids)
    messages, tools = (PLAIN, None) if kind == "v1" else (CALLED, [TOOL])
    whole = expected(own, messages, tools=tools)
    assert prompt(tokenizer, tmp_path, messages=messages, tools=tools) == whole
    assert (plain.bos_id, tokenizer.is_bytewise, tokenizer.vocab_size) == (whole[0], True, plain.n_words)
    assert tokenizer.decode(whole, skip_special_tokens=True).count("[INST] it </s>") == 1, "a message spells characters"


@pytest.mark.parametrize("kind", ["v3", "v7"])
def test_an_answer_that_goes_on_and_filling_in(tmp_path: Path, kind: str) -> None:
    needs_mistral_common()
    from mistral_common.protocol.fim.request import FIMRequest

    folder = folder_of(kind, tmp_path)
    tokenizer, own = load_other(folder, "mistral-common", None), theirs(folder)
    begun = [CALLED[1], {"role": "assistant", "content": "It is"}]
    ids = prompt(tokenizer, tmp_path, messages=begun, continue_final_message=True, add_generation_prompt=False)
    assert ids == expected(own, begun, continue_final_message=True)
    with pytest.raises(ApiError, match="the last message is the assistant's"):
        prompt(tokenizer, tmp_path, messages=begun)
    infill = infill_format(tokenizer)
    assert infill is not None
    found = encode_infill(tokenizer, infill, "x = ", " [INST]\n", add_special_tokens=True)
    assert found == own.encode_fim(FIMRequest(prompt="x = ", suffix=" [INST]\n")).tokens


def test_reasoning_effort_is_a_setting_since_version_15(tmp_path: Path) -> None:
    needs_mistral_common()
    folder = folder_of("tekken-v15", tmp_path)
    tokenizer, own = load_other(folder, "mistral-common", None), theirs(folder)
    found = prompt(tokenizer, tmp_path, messages=[CALLED[1]], reasoning_effort="high")
    assert found == expected(own, [CALLED[1]], reasoning_effort="high")
    assert '[MODEL_SETTINGS]{"reasoning_effort": "high"}[/MODEL_SETTINGS]' in tokenizer.decode(found)
    with pytest.raises(ApiError, match=r"mistral-common refused the messages: .*low"):
        prompt(tokenizer, tmp_path, messages=[CALLED[1]], reasoning_effort="low")


def test_reasoning_in_a_conversation(tmp_path: Path) -> None:
    needs_mistral_common()
    folder = folder_of("tekken-v13", tmp_path)
    tokenizer, own = load_other(folder, "mistral-common", None), theirs(folder)
    messages = [CALLED[1], {"role": "assistant", "content": "yes", "reasoning_content": "hm"}, CALLED[1]]
    found = prompt(tokenizer, tmp_path, messages=messages)
    assert found == expected(own, messages)
    assert "[THINK]hm[/THINK]" in tokenizer.decode(found)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"chat_template": "{{ messages }}"}, "chat_template is for chat templates"),
        ({"chat_template_kwargs": {"a": 1}}, "chat_template_kwargs is for chat templates"),
        ({"documents": [{"text": "a"}]}, "documents is for chat templates"),
        ({"enable_thinking": True}, "enable_thinking is for chat templates"),
        ({"add_special_tokens": True}, "add_special_tokens is for chat templates"),
        ({"reasoning_effort": "high"}, r"mistral-common refused the messages: reasoning_effort='high'"),
        ({"messages": [CALLED[3]]}, "mistral-common refused the messages: "),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": 5}}}]}, "Invalid tool sche"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "mistral-common refused the messages: "),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused(tmp_path: Path, fields: dict[str, Any], problem: str) -> None:
    needs_mistral_common()
    tokenizer = load_other(folder_of("tekken-v7", tmp_path), "mistral-common", None)
    with pytest.raises(ApiError, match=problem) as raised:
        prompt(tokenizer, tmp_path, **{"messages": [CALLED[1]], **fields})
    assert raised.value.status == 400
    assert "\n" not in str(raised.value)
    assert "http" not in str(raised.value)


def test_tools_need_a_format_that_has_them(tmp_path: Path) -> None:
    needs_mistral_common()
    tokenizer = load_other(folder_of("v1", tmp_path), "mistral-common", None)
    with pytest.raises(ApiError, match="the model's tokenizer is v1, whose conversations have no tools"):
        prompt(tokenizer, tmp_path, messages=[CALLED[1]], tools=[TOOL])


def test_the_newest_file_is_taken(tmp_path: Path) -> None:
    for name in ("tokenizer.model", "tokenizer.model.v3", "tokenizer.model.v11m1", "tokenizer.model.bak", "a.json"):
        (tmp_path / name).touch()
    assert mistral.find_file(tmp_path).name == "tokenizer.model.v11m1"
    (tmp_path / "tekken.json").touch()
    assert mistral.find_file(tmp_path).name == "tekken.json"


def test_without_the_package_or_a_file_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TokenizerError, match=r"has neither tekken\.json nor tokenizer\.model\.v\*"):
        load_other(tmp_path, "mistral-common", None)
    (tmp_path / "tekken.json").write_text(json.dumps({"config": {}}))
    for name in [each for each in sys.modules if each.startswith("mistral_common")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mistral_common", None)
    with pytest.raises(MissingExtraError, match=r"model\.tokenizer_mode: mistral needs mistral_common") as raised:
        load_other(tmp_path, "mistral-common", None)
    assert raised.value.hint == "pip install 'appliance[mistral]'"


def test_a_broken_file_is_one_sentence(tmp_path: Path) -> None:
    needs_mistral_common()
    (tmp_path / "tekken.json").write_text("{}")
    with pytest.raises(TokenizerError, match=r"mistral-common cannot read tekken\.json"):
        load_other(tmp_path, "mistral-common", None)
    (tmp_path / "tekken.json").unlink()
    (tmp_path / "tokenizer.model.v3").write_bytes(b"nothing")
    with pytest.raises(TokenizerError, match=r"mistral-common cannot read tokenizer\.model\.v3"):
        load_other(tmp_path, "mistral-common", None)
