"""Python, the server and a batch give the same tokens for one spec."""

import json
from pathlib import Path
from typing import Any

from appliance import LLM, SamplingParams
from appliance.cli.app import main
from tests.e2e.served import _SPEC as SPEC
from tests.e2e.served import NAME, make_random_model, serving

PROMPTS = [f"{number}: " + "The quick brown fox " * (number % 5) for number in range(12)]
SETTINGS = {"temperature": 0.7, "seed": 11, "max_tokens": 32, "top_p": 0.9, "logprobs": 2}
OVERRIDES = ("model.max_model_len=512", "cache.num_blocks=512")


def from_python(spec: Path) -> list[tuple[str, list[float]]]:
    params = SamplingParams(temperature=0.7, seed=11, max_tokens=32, top_p=0.9, logprobs=2)
    with LLM.from_spec(spec, OVERRIDES) as llm:
        answers = llm.generate(PROMPTS, params, use_tqdm=False)
    found = []
    for answer in answers:
        completion = answer.outputs[0]
        chosen = zip(completion.logprobs or [], completion.token_ids, strict=True)
        found.append((completion.text, [at[token].logprob for at, token in chosen]))
    return found


def from_batch(spec: Path, folder: Path) -> list[tuple[str, list[float]]]:
    source, target = folder / "in.jsonl", folder / "out.jsonl"
    body = [{"model": NAME, "prompt": prompt, **SETTINGS} for prompt in PROMPTS]
    request = {"method": "POST", "url": "/v1/completions"}
    source.write_text(
        "".join(json.dumps({"custom_id": str(at), **request, "body": each}) + "\n" for at, each in enumerate(body))
    )
    sets = [word for each in OVERRIDES for word in ("--set", each)]
    assert main(["batch", str(spec), "-i", str(source), "-o", str(target), *sets]) == 0
    return [_choice(json.loads(line)["response"]["body"]) for line in target.read_text().splitlines()]


def _choice(body: dict[str, Any]) -> tuple[str, list[float]]:
    [choice] = body["choices"]
    return choice["text"], choice["logprobs"]["token_logprobs"]


def test_python_server_and_batch_say_the_same(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    make_random_model(model)
    spec = tmp_path / "deploy.yaml"
    spec.write_text(SPEC.format(source=json.dumps(str(model))))
    in_python = from_python(spec)
    assert len({text for text, _ in in_python}) == len(PROMPTS)
    assert in_python == from_batch(spec, tmp_path)
    with serving(tmp_path, model, *OVERRIDES) as server, server.http() as http:
        served = [_choice(http.post("/v1/completions", json={"prompt": each, **SETTINGS}).json()) for each in PROMPTS]
    assert in_python == served
