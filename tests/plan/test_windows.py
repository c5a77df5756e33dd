"""`model.disable_sliding_window`: the context ends where the smallest window does, and layers share block tables."""

import pytest

from appliance.base.errors import SpecError

from .machines import MODEL, decision, load, plan, small_model

DISABLED = MODEL + "  disable_sliding_window: true\n"
MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 32}


def test_a_model_without_windows_sees_its_smallest_window_at_most() -> None:
    before, found = plan(load(), small_model(**MISTRAL)), plan(load(DISABLED), small_model(**MISTRAL))
    assert (before.model.max_model_len, found.model.max_model_len) == (128, 32)
    assert {group.window for group in before.memory[0].kv_groups} == {32}
    assert {group.window for group in found.memory[0].kv_groups} == {None}
    assert found.model.config_overrides == {"disable_sliding_window": True}
    assert "smallest window of 32 tokens" in decision(found, "model.disable_sliding_window").reason


def test_it_changes_nothing_in_a_model_that_has_no_windows() -> None:
    found = plan(load(DISABLED))
    assert found.model == plan(load()).model
    assert "changes nothing" in decision(found, "model.disable_sliding_window").reason


def test_a_longer_context_is_refused() -> None:
    with pytest.raises(SpecError, match="without windows the model sees 32 tokens"):
        plan(load(DISABLED + "  max_model_len: 64\n"), small_model(**MISTRAL))
    shorter = plan(load(DISABLED + "  max_model_len: 24\n"), small_model(**MISTRAL))
    assert shorter.model.max_model_len == 24
