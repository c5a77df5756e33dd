"""LLM.beam_search in vLLM's words: the same beams as the server's search, which is compared with transformers."""

from pathlib import Path
from typing import Any

import pytest

from appliance import LLM, BeamSearchParams
from appliance.offline.errors import InvalidRequestError


def test_beams_are_the_best_sequences(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    prompts: list[Any] = ["abc", {"prompt": "Once"}]
    outputs = llm.beam_search(prompts, BeamSearchParams(beam_width=3, max_tokens=6))
    assert len(outputs) == 2
    for prompt, output in zip(("abc", "Once"), outputs, strict=True):
        assert len(output.sequences) == 3
        scores = [each.cum_logprob for each in output.sequences]
        assert scores == sorted(scores, reverse=True)
        for each in output.sequences:
            assert each.tokens[: -len(each.logprobs)] == tokenizer.encode(prompt)
            assert each.text == tokenizer.decode(each.tokens)
            assert len(each.logprobs) == 6
            assert each.finish_reason == "length"
    assert llm.beam_search("abc", BeamSearchParams(beam_width=3, max_tokens=6), concurrency_limit=1) == outputs[:1]


def test_too_many_beams_say_what_they_need(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="max_logprobs is 20") as found:
        llm.beam_search("abc", BeamSearchParams(beam_width=11, max_tokens=4))
    assert found.value.hint == "LLM(model, max_logprobs=22)"
    with pytest.raises(ValueError, match="beam_width"):
        BeamSearchParams(beam_width=0, max_tokens=4)


def test_beams_of_a_plan_with_processors_are_refused_as_by_a_server(model: Path, tmp_path: Path) -> None:
    spec = tmp_path / "deploy.yaml"
    spec.write_text(
        f"api_version: appliance/v1\nkind: Deployment\nname: a\nmodel: {{source: {model}, max_model_len: 256}}\n"
        f"cache: {{num_blocks: 64}}\ndecoding: {{trust_plugins: true, logits_processors: [{__name__}.unchanged]}}\n"
    )
    with LLM.from_spec(spec) as llm, pytest.raises(InvalidRequestError, match=r"decoding\.logits_processors has some"):
        llm.beam_search("abc", BeamSearchParams(beam_width=2, max_tokens=4))


def unchanged(token_ids: list[int], logits: Any) -> Any:
    return logits
