"""`cache.disable_hybrid_kv_cache_manager`: windowed layers keep all tokens, at a price that the plan tells."""

import pytest

from appliance.base.errors import SpecError

from .checkpoints import described_by_itself, from_config
from .machines import MODEL, decision, load, plan, small_model

PATH = "cache.disable_hybrid_kv_cache_manager"
KEEPING = MODEL + "cache: {disable_hybrid_kv_cache_manager: true}\n"
MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 32}


def test_caches_are_of_full_attention_and_the_price_is_told() -> None:
    before, found = plan(load(), small_model(**MISTRAL)), plan(load(KEEPING), small_model(**MISTRAL))
    assert {group.window for group in before.memory[0].kv_groups} == {32}
    assert {group.window for group in found.memory[0].kv_groups} == {None}
    assert found.model.max_model_len == before.model.max_model_len == 128
    assert found.model.config_overrides == {"disable_hybrid_kv_cache_manager": True}
    # Two layers, two heads, keys and values of 16 numbers in bfloat16: 8 blocks of 16 tokens, or 3 below a window.
    assert "128 holds 32.0 KiB of cache, and 12.0 KiB if windows" in decision(found, PATH).reason
    assert found.engine_sha256 != before.engine_sha256


def test_it_changes_nothing_in_a_model_that_has_no_windows() -> None:
    found = plan(load(KEEPING))
    assert found.model == plan(load()).model
    assert "changes nothing" in decision(found, PATH).reason


def test_without_windows_there_is_nothing_left_to_keep() -> None:
    text = KEEPING.replace("cache:", "  disable_sliding_window: true\ncache:")
    found = plan(load(text), small_model(**MISTRAL))
    assert found.model.max_model_len == 32
    assert "changes nothing" in decision(found, PATH).reason


def test_recurrent_states_are_refused_by_name() -> None:
    with pytest.raises(SpecError, match="the model keeps recurrent states") as caught:
        plan(load(KEEPING), described_by_itself(from_config("granite-4.0-h-small")))
    assert [each.path for each in caught.value.diagnostics] == [PATH]
