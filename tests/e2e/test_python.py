"""Python, the server, a batch and a benchmark give the same tokens for one spec."""

import json
from pathlib import Path
from typing import Any

from appliance import LLM, SamplingParams
from appliance.base.hashing import sha256_json
from appliance.bench.result import load
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


def from_bench(spec: Path, folder: Path, prompts: list[list[int]], length: int) -> list[str | None]:
    """The digests of the answers to token ids, which is what a benchmark in this process sends."""
    trace, target = folder / "trace.jsonl", folder / "bench.json"
    trace.write_text("".join(json.dumps({"prompt": each, "output_len": length}) + "\n" for each in prompts))
    fields = {"workload": "trace", "trace_file": trace, "temperature": 0.7, "top_p": 0.9, "seed": 11, "num_warmups": 0}
    words = [word for name, value in fields.items() for word in ("--with", f"{name}={value}")]
    sets = [word for each in OVERRIDES for word in ("--set", each)]
    assert main(["bench", "throughput", str(spec), "-o", str(target), *words, *sets]) == 0
    return [record.answer_sha256 for record in load(target).records]


def _choice(body: dict[str, Any]) -> tuple[str, list[float]]:
    [choice] = body["choices"]
    return choice["text"], choice["logprobs"]["token_logprobs"]


def test_python_server_batch_and_bench_say_the_same(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    make_random_model(model)
    spec = tmp_path / "deploy.yaml"
    spec.write_text(SPEC.format(source=json.dumps(str(model))))
    in_python = from_python(spec)
    assert len({text for text, _ in in_python}) == len(PROMPTS)
    assert in_python == from_batch(spec, tmp_path)
    params = SamplingParams(temperature=0.7, seed=11, max_tokens=32, top_p=0.9, ignore_eos=True)
    with LLM.from_spec(spec, OVERRIDES) as llm:
        answers = llm.generate(PROMPTS, params, use_tqdm=False)
    digests = [sha256_json(answer.outputs[0].token_ids) for answer in answers]
    assert len(set(digests)) == len(PROMPTS)
    assert digests == from_bench(spec, tmp_path, [answer.prompt_token_ids for answer in answers], 32)
    with serving(tmp_path, model, *OVERRIDES) as server, server.http() as http:
        served = [_choice(http.post("/v1/completions", json={"prompt": each, **SETTINGS}).json()) for each in PROMPTS]
    assert in_python == served
