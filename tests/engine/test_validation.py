"""Every bound of sampling parameters: the edges are allowed, a step beyond them is refused by name."""

import math

import msgspec
import numpy as np
import pytest

from appliance.engine.given_embeds import validate_embeds
from appliance.engine.messages import Constraint, GenerateRequest, SamplingParams
from appliance.engine.prompt_embeds import PromptEmbeds
from appliance.engine.validation import (
    MAX_BAD_WORD_LENGTH,
    MAX_BAD_WORDS,
    MAX_LOGIT_BIAS,
    MAX_STOP_TOKEN_IDS,
    InvalidSamplingError,
    SamplingLimits,
    validate_constraint,
    validate_request,
    validate_sampling,
)
from appliance.engine.wire import decode_message, encode

from .embeds import embeds_of
from .simulator import generate

LIMITS = SamplingLimits(max_n=4, max_logprobs=5)
VOCAB = 1000


@pytest.mark.parametrize(
    "values",
    [
        {"n": 1}, {"n": 4}, {"max_tokens": 1}, {"max_tokens": 10**9}, {"min_tokens": 16}, {"temperature": 0.0},
        {"temperature": 100.0}, {"top_p": 1e-9}, {"top_p": 1.0}, {"top_k": 0}, {"top_k": 10**6}, {"min_p": 0.0},
        {"top_k": (1 << 31) - 1}, {"temperature": 1e-20},
        {"min_p": 1.0}, {"presence_penalty": -2.0}, {"frequency_penalty": 2.0}, {"repetition_penalty": 1e-9},
        {"seed": -(1 << 63)}, {"seed": (1 << 64) - 1}, {"stop_token_ids": (0, 999)}, {"logprobs": 0}, {"logprobs": 5},
        {"prompt_logprobs": 5}, {"logit_bias": {999: 100.0}}, {"allowed_token_ids": (0,)}, {"bad_words": ((1, 2),)},
    ],
)  # fmt: skip
def test_what_is_allowed(values: dict[str, object]) -> None:
    validate_sampling(SamplingParams(**values), VOCAB, LIMITS)  # type: ignore[arg-type] # free keywords


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("n", 0, "between 1 and 4"),
        ("n", 5, "between 1 and 4"),
        ("max_tokens", 0, "between 1 and"),
        ("min_tokens", -1, "between 0 and 16 (max_tokens)"),
        ("min_tokens", 17, "between 0 and 16 (max_tokens)"),
        ("temperature", -0.1, "0, or a number from 1e-20 to 100"),
        ("temperature", math.nan, "0, or a number from 1e-20 to 100"),
        ("temperature", math.inf, "0, or a number from 1e-20 to 100"),
        ("top_p", 0.0, "above 0 and at most 1"),
        ("top_p", 1.1, "above 0 and at most 1"),
        ("top_p", math.nan, "above 0 and at most 1"),
        ("top_k", -1, "from 0 to 2147483647"),
        ("top_k", 1 << 31, "from 0 to 2147483647"),
        ("top_k", 10**12, "from 0 to 2147483647"),
        ("temperature", 1e-21, "from 1e-20"),
        ("temperature", 1e-45, "from 1e-20"),
        ("repetition_penalty", 1e-10, "from 1e-9 to 100"),
        ("max_tokens", 1 << 31, "between 1 and 2147483647"),
        ("min_p", -0.1, "from 0 to 1"),
        ("min_p", math.nan, "from 0 to 1"),
        ("presence_penalty", 2.1, "from -2 to 2"),
        ("frequency_penalty", -2.1, "from -2 to 2"),
        ("repetition_penalty", 0.0, "from 1e-9 to 100"),
        ("repetition_penalty", math.nan, "from 1e-9 to 100"),
        ("seed", 1 << 64, "between"),
        ("stop_token_ids", (VOCAB,), "0 to 999"),
        ("stop_token_ids", tuple(range(MAX_STOP_TOKEN_IDS + 1)), "at most"),
        ("logit_bias", {-1: 1.0}, "0 to 999"),
        ("logit_bias", {1: 101.0}, "between -100 and 100"),
        ("logit_bias", {1: math.nan}, "between -100 and 100"),
        ("logit_bias", dict.fromkeys(range(MAX_LOGIT_BIAS + 1), 1.0), "at most"),
        ("allowed_token_ids", (), "at least one"),
        ("allowed_token_ids", (1, -5), "0 to 999"),
        ("bad_words", ((),), "1 to"),
        ("bad_words", ((1,) * (MAX_BAD_WORD_LENGTH + 1),), "1 to"),
        ("bad_words", ((1,),) * (MAX_BAD_WORDS + 1), "at most"),
        ("bad_words", ((VOCAB,),), "0 to 999"),
        ("logprobs", 6, "at most 5 (max_logprobs)"),
        ("logprobs", -1, "at least 0"),
        ("prompt_logprobs", -2, "at least 0"),
    ],
)
def test_what_is_not(field: str, value: object, words: str) -> None:
    with pytest.raises(InvalidSamplingError) as error:
        validate_sampling(SamplingParams(**{field: value}), VOCAB, LIMITS)  # type: ignore[arg-type] # free keywords
    assert error.value.field == field
    assert words in str(error.value)
    assert len(str(error.value)) < 250


def test_all_logprobs_only_where_the_plan_allows_them() -> None:
    unlimited = SamplingLimits(max_n=1, max_logprobs=-1)
    validate_sampling(SamplingParams(logprobs=-1, prompt_logprobs=VOCAB), VOCAB, unlimited)
    with pytest.raises(InvalidSamplingError, match="-1 for all"):
        validate_sampling(SamplingParams(logprobs=-2), VOCAB, unlimited)


def test_prompts_and_end_tokens_are_in_the_vocabulary() -> None:
    validate_request(generate("r", [0, VOCAB - 1], eos=(2,)), VOCAB, LIMITS)
    for request, field in ((generate("r", [1, VOCAB]), "prompt"), (generate("r", [1], eos=(-1,)), "eos_token_ids")):
        with pytest.raises(InvalidSamplingError) as error:
            validate_request(request, VOCAB, LIMITS)
        assert error.value.field == field


def test_the_texts_of_a_constraint_have_bounds() -> None:
    wish = Constraint(kind="regex", source="a", field="guided_regex")
    validate_constraint(wish)
    for changes in ({"source": "a" * (2 << 20)}, {"whitespace": " " * 300}, {"after": "x" * 300}):
        with pytest.raises(InvalidSamplingError) as refused:
            validate_constraint(msgspec.structs.replace(wish, **changes))
        assert refused.value.field == "guided_regex"


def with_embeds(rows: int = 3, width: int = 8, *, tokens: int = 3, **sampling: object) -> GenerateRequest:
    request = generate("r", [0] * tokens, **sampling)
    return msgspec.structs.replace(request, prompt_embeds=embeds_of(np.ones((rows, width))))


def test_embeddings_of_the_width_of_the_model_are_allowed() -> None:
    validate_embeds(with_embeds(), 8)
    validate_embeds(with_embeds(tokens=5), 8)


@pytest.mark.parametrize(
    ("request_", "width", "message"),
    [
        (with_embeds(), 0, "enable_prompt_embeds"),
        (with_embeds(width=9), 8, "rows of 8 numbers"),
        (with_embeds(rows=4), 8, "at most one a token"),
        (with_embeds(prompt_logprobs=1), 8, "prompt_logprobs"),
        (msgspec.structs.replace(with_embeds(), prompt_embeds=PromptEmbeds("f32", 8, b"abc")), 8, "rows of 8"),
        (msgspec.structs.replace(with_embeds(), prompt_embeds=PromptEmbeds("f32", 8, b"")), 8, "rows of 8"),
        (msgspec.structs.replace(with_embeds(), prompt_embeds=PromptEmbeds("f32", 0, b"")), 8, "rows of 8"),
        (
            msgspec.structs.replace(with_embeds(), prompt_embeds=PromptEmbeds("bf16", 8, b"\xff" * 16)),
            8,
            "must be finite",
        ),
    ],
)
def test_other_embeddings_are_refused(request_: GenerateRequest, width: int, message: str) -> None:
    with pytest.raises(InvalidSamplingError, match=message):
        validate_embeds(request_, width)


def test_embeddings_cross_the_wire_as_they_are() -> None:
    """And a request without any is the message that it was."""
    request = with_embeds()
    assert decode_message(encode(request)) == request
    assert b"prompt_embeds" not in encode(generate("r", [1, 2]))
