"""Cascade attention: who has it, and what becomes of `model.disable_cascade_attn`."""

import pytest

from .machines import MODEL, decision, load, plan, small_model

DISABLED = MODEL + "  disable_cascade_attn: true\n"


def test_decodes_share_prefixes_where_the_set_can_and_nobody_disables_it() -> None:
    assert plan(load()).kernels.share_prefixes
    found = plan(load(DISABLED))
    assert not found.kernels.share_prefixes
    assert decision(found, "kernels.share_prefixes").source == "spec"
    assert found.engine_sha256 != plan(load()).engine_sha256


@pytest.mark.parametrize(
    ("text", "config", "reason"),
    [("hardware: {kernels: {kernel_set: reference}}\n", {}, "reference shares none"),
     ("", {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 32},
      "no layer sees all tokens")],
)  # fmt: skip
def test_where_there_is_none_the_plan_says_that_nothing_changes(text: str, config: dict, reason: str) -> None:
    found = plan(load(DISABLED + text), small_model(**config))
    assert not found.kernels.share_prefixes
    assert reason in decision(found, "kernels.share_prefixes").reason
    assert not plan(load(MODEL + text), small_model(**config)).kernels.share_prefixes
