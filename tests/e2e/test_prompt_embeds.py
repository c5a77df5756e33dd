"""`prompt_embeds` through a server and its engine: what vLLM's clients send, and what is refused."""

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import save

from tests.e2e.conftest import CommandLine
from tests.e2e.served import make_random_model, serving
from tests.server.harness import Server, encode

ON = "model.enable_prompt_embeds=true"
PROMPT = "What is served here, and to whom?"
GREEDY: dict[str, Any] = {"model": "random", "max_tokens": 8, "temperature": 0.0}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_random_model(folder)
    return folder


@pytest.fixture(scope="module")
def table(model: Path) -> torch.Tensor:
    """The rows that the model has for its tokens: by default they are bf16 on a CPU."""
    stored = torch.from_numpy(load_file(model / "model.safetensors")["model.embed_tokens.weight"])
    return stored.bfloat16().float()


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server"), model, ON, "endpoints.http.api_server_count=2") as made:
        yield made


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def sent(tensor: torch.Tensor) -> str:
    """As vLLM's documentation has it."""
    buffer = io.BytesIO()
    torch.save(tensor, buffer)
    return base64.b64encode(buffer.getvalue()).decode()


def test_rows_of_the_table_answer_as_their_tokens(client: openai.OpenAI, table: torch.Tensor) -> None:
    rows = table[encode(PROMPT)]
    expected = client.completions.create(prompt=PROMPT, **GREEDY)
    for given in (sent(rows), [sent(rows)], sent(rows[None]), base64.b64encode(save({"rows": rows})).decode()):
        answer = client.completions.create(prompt="", extra_body={"prompt_embeds": given}, **GREEDY)
        assert [choice.text for choice in answer.choices] == [expected.choices[0].text]
        assert answer.usage is not None
        assert expected.usage is not None
        assert answer.usage.prompt_tokens == expected.usage.prompt_tokens == len(rows)
    chunks = client.completions.create(prompt="", stream=True, extra_body={"prompt_embeds": sent(rows)}, **GREEDY)
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == expected.choices[0].text


def test_prompts_of_embeddings_come_before_those_of_text(client: openai.OpenAI, table: torch.Tensor) -> None:
    texts = [PROMPT, "Another", "A third"]
    expected = [client.completions.create(prompt=text, n=2, seed=5, **GREEDY).choices[0].text for text in texts]
    given = [sent(table[encode(text)]) for text in texts[:2]]
    body = {"prompt_embeds": given, "return_token_ids": True}
    answer = client.completions.create(prompt=texts[2], n=2, seed=5, extra_body=body, **GREEDY)
    assert [choice.text for choice in answer.choices] == [text for text in expected for _ in range(2)]
    told = [choice.model_extra["prompt_token_ids"] for choice in answer.choices]
    assert told == [None, None, None, None, encode(texts[2]), encode(texts[2])]


def test_a_second_time_its_blocks_are_cached(client: openai.OpenAI, table: torch.Tensor) -> None:
    rows = sent(table[encode(f"once and again {PROMPT * 3}")].bfloat16())
    first, second = (
        client.completions.create(prompt="", extra_body={"prompt_embeds": rows}, **GREEDY) for _ in range(2)
    )
    assert first.choices[0].text == second.choices[0].text
    details = [each.usage.prompt_tokens_details for each in (first, second)]
    cached = [0 if each is None else each.cached_tokens or 0 for each in details]
    assert cached[0] < 16 < cached[1]


def test_an_end_of_a_prompt_and_beams(server: Server, table: torch.Tensor) -> None:
    rows = table[encode(PROMPT)]
    with server.http() as http:
        for more in ({"truncate_prompt_tokens": 12}, {"use_beam_search": True, "n": 2}):
            asked = [GREEDY | more | prompt for prompt in ({"prompt": PROMPT}, {"prompt_embeds": sent(rows)})]
            answers = [http.post("/v1/completions", json=each).json()["choices"] for each in asked]
            assert answers[0] == answers[1]


WIDTH = 64
ZEROS = torch.zeros(3, WIDTH)
WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt_embeds": "%%%"}, "prompt_embeds", "it is no base64"),
    ({"prompt_embeds": base64.b64encode(b"abc").decode()}, "prompt_embeds", "neither an archive"),
    ({"prompt_embeds": [sent(ZEROS), sent(torch.zeros(3, WIDTH + 1))]}, "prompt_embeds[1]", "[tokens, 64]"),
    ({"prompt_embeds": sent(torch.zeros(0, WIDTH))}, "prompt_embeds", "at least one token"),
    ({"prompt_embeds": sent(torch.zeros(2, 3, WIDTH))}, "prompt_embeds", "its shape is [2, 3, 64]"),
    ({"prompt_embeds": sent(ZEROS.to(torch.int64))}, "prompt_embeds", "its numbers are i64"),
    ({"prompt_embeds": sent(ZEROS + float("inf"))}, "prompt_embeds", "not finite"),
    ({"prompt_embeds": sent(torch.zeros(1, WIDTH).expand(1 << 24, WIDTH))}, "prompt_embeds", "numbers are allowed"),
    ({"prompt_embeds": sent(torch.zeros(1, WIDTH).expand(5000, WIDTH))}, "prompt", "has 5000 tokens"),
    ({"prompt_embeds": [sent(ZEROS[:1].expand(150_000, WIDTH))] * 2}, "prompt_embeds[1]", "more than 60 MiB in all"),
    ({"prompt_embeds": ["%%%"] * 1025}, "prompt", "1025 prompts"),
    ({"prompt_embeds": 5}, "prompt_embeds", "prompt_embeds"),
    ({"prompt_embeds": sent(ZEROS), "echo": True}, "echo", "no text"),
    ({"prompt_embeds": sent(ZEROS), "suffix": "x"}, "suffix", "no text"),
    ({"prompt_embeds": sent(ZEROS), "prompt_logprobs": 1}, "prompt_logprobs", "no tokens"),
    ({}, "prompt", "missing"),
    ({"prompt_embeds": []}, "prompt", "missing"),
]


@pytest.mark.parametrize(("body", "param", "message"), WRONG)
def test_what_is_wrong_is_named(server: Server, body: dict[str, Any], param: str, message: str) -> None:
    with server.http() as http:
        answer = http.post("/v1/completions", json=GREEDY | body)
    check_refused(answer, param, message)


def check_refused(answer: httpx.Response, param: str, message: str) -> None:
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert message in error["message"]


def test_where_the_field_is_off_they_are_refused(model: Path, tmp_path: Path) -> None:
    with serving(tmp_path, model) as server, server.http() as http:
        answer = http.post("/v1/completions", json=GREEDY | {"prompt_embeds": sent(ZEROS)})
    check_refused(answer, "prompt_embeds", "model.enable_prompt_embeds")


def test_a_render_has_no_embeddings(server: Server) -> None:
    with server.http() as http:
        answer = http.post("/v1/completions/render", json=GREEDY | {"prompt_embeds": sent(ZEROS)})
    check_refused(answer, "prompt_embeds", "not in this version")


def test_a_line_of_a_batch(appliance: CommandLine, model: Path, table: torch.Tensor, tmp_path: Path) -> None:
    spec, source, target = tmp_path / "spec.yaml", tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    named = f"model: {{source: {model}, served_names: [random], enable_prompt_embeds: true}}\n"
    spec.write_text(f"api_version: appliance/v1\nkind: Deployment\nname: random\n{named}cache: {{num_blocks: 512}}\n")
    prompts = {"text": {"prompt": PROMPT}, "rows": {"prompt_embeds": sent(table[encode(PROMPT)])}, "none": {}}
    line = {"method": "POST", "url": "/v1/completions"}
    lines = [line | {"custom_id": name, "body": GREEDY | prompt} for name, prompt in prompts.items()]
    source.write_text("".join(json.dumps(each) + "\n" for each in lines))
    appliance.json("batch", spec, "-i", source, "-o", target)
    answers = {each["custom_id"]: each for each in map(json.loads, target.read_text().splitlines())}
    texts = [answers[name]["response"]["body"]["choices"][0]["text"] for name in ("text", "rows")]
    assert texts[0] == texts[1]
    assert answers["none"]["response"]["body"]["error"]["param"] == "prompt"
