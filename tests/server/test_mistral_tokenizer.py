"""A server whose conversations mistral-common writes: prompts and answers over a socket, tools and JSON among them."""

import json
from pathlib import Path
from typing import Any

from appliance.engine.scripted import Reply, Script
from appliance.plan.serving_types import ParsersPlan
from tests.server.harness import running
from tests.text.mistral_vocabularies import folder_of, needs_mistral_common
from tests.text.test_mistral import CALLED, TOOL, expected, theirs

TOOLS = ParsersPlan(tools="appliance.text.tools.mistral:MISTRAL", auto_tool_choice=True)


def test_a_conversation_with_tools(tmp_path: Path) -> None:
    needs_mistral_common()
    folder = folder_of("tekken-v13", tmp_path)
    own = theirs(folder)
    plain = own.instruct_tokenizer.tokenizer
    asked, fed = CALLED[1:2], [*CALLED[1:4]]
    call = [plain.get_special_token("[TOOL_CALLS]"), *plain.encode("find", bos=False, eos=False)]
    call += [plain.get_special_token("[ARGS]"), *plain.encode('{"what": "x"}', bos=False, eos=False)]
    replies = [
        Reply(expected(own, asked, tools=[TOOL]), call),
        Reply(expected(own, fed, tools=[TOOL]), plain.encode("A café 😀", bos=False, eos=False)),
        Reply(expected(own, asked), plain.encode('{"a": 1}', bos=False, eos=False)),
    ]
    plan: dict[str, Any] = {"tokenizer_mode": "mistral-common", "chat_template": None, "parsers": TOOLS}
    with running(tmp_path, Script(replies=replies, eos=plain.eos_id), **plan) as server, server.http() as http:

        def chat(messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
            answer = http.post("/v1/chat/completions", json={"model": "scripted", "messages": messages, **fields})
            found: dict[str, Any] = answer.json()
            return found

        message = chat(asked, tools=[TOOL])["choices"][0]["message"]
        function = message["tool_calls"][0]["function"]
        assert (function["name"], json.loads(function["arguments"])) == ("find", {"what": "x"})
        assert chat(fed, tools=[TOOL])["choices"][0]["message"]["content"] == "A café 😀"
        shaped = chat(asked, response_format={"type": "json_object"})
        assert shaped["choices"][0]["message"]["content"] == '{"a": 1}'
        refused = chat(asked, chat_template_kwargs={"a": 1})["error"]
        assert "model.tokenizer_mode: mistral" in refused["message"]
        tokens = http.post("/tokenize", json={"prompt": "[INST]"}).json()["tokens"]
        assert tokens == [plain.bos_id, *plain.encode("[INST]", bos=False, eos=False)]
