"""What a request says about sampling, in the engine's words."""

from pathlib import Path

from appliance.requests.fields import CompletionFields
from appliance.requests.sampling import SamplingRules
from tests.engine.plans import scripted_plan
from tests.text.test_vocabularies import tokenizer


def test_bad_words_are_banned_within_words_and_at_their_beginning(tmp_path: Path) -> None:
    """Also by a vocabulary that puts a space before every text."""
    rules = SamplingRules(scripted_plan(tmp_path), tokenizer("llama-spm"))
    params = rules.params(CompletionFields(prompt="x", bad_words=["Hello"]), 5, None, None)
    assert params.bad_words == ((10994,), (15043,))
