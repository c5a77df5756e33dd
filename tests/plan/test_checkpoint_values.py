"""What a checkpoint says of sampling and ends: taken, or left out and said so; never met by requests as an error."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from appliance.base.errors import SpecError
from appliance.catalog.sampling import SAMPLING_BOUNDS
from appliance.checkpoint.facts import LeftOut
from appliance.engine.messages import SamplingParams
from appliance.engine.validation import InvalidSamplingError, SamplingLimits, validate_sampling
from appliance.plan.checkpoint_values import SAMPLING_NAMES
from appliance.plan.inputs import ResolvedFiles
from appliance.plan.prepare import prepare
from appliance.plan.render import render_text

from .machines import LAPTOP, MODEL, decision, load, plan, small_model, write_spec

GOOD: dict[str, list[Any]] = {
    "temperature": [0, 0.7, 100],
    "top_p": [1e-9, 1, 1.0],
    "top_k": [-1, 0, 1, 50],
    "min_p": [0, 1],
    "presence_penalty": [-2, 2],
    "frequency_penalty": [-2, 0.5, 2],
    "repetition_penalty": [1e-9, 1, 100],
    "max_new_tokens": [1, 4096],
}
WRONG: dict[str, list[Any]] = {
    "temperature": ["0.7", -0.1, 101, float("nan"), float("inf"), True, [0.7], {}],
    "top_p": [0, -1, 1.1, "1", float("nan"), False],
    "top_k": [-2, 50.0, "50", 1 << 31, True],
    "min_p": [-0.1, 2, "0"],
    "repetition_penalty": [0, -1, 101, float("nan"), "1.1"],
    "max_new_tokens": [0, -1, 1.5, "20", 10**30],
}
CASES = [(name, value) for name, values in WRONG.items() for value in values]


def with_values(**values: Any) -> Any:
    return msgspec.structs.replace(small_model(), generation_config=values)


@pytest.mark.parametrize(("name", "value"), CASES)
def test_a_default_that_cannot_be_is_left_out_and_said(name: str, value: Any) -> None:
    found = plan(load(), with_values(**{name: value, "transformers_version": "5"}))
    assert found.model.default_sampling == {}
    [warning] = found.warnings
    assert warning.startswith(f"generation_config.json: {name} is {value!r}, which is left out; ")
    assert f"warning: {warning}" in render_text(found)
    said = decision(found, f"model.default_sampling.{SAMPLING_NAMES[name]}")
    assert (said.value, said.source, said.reason) == (None, "model", warning)


def test_the_others_stay() -> None:
    found = plan(load(), with_values(temperature=0.6, top_p=0, top_k=20, min_p=None))
    assert found.model.default_sampling == {"temperature": 0.6, "top_k": 20}
    assert len(found.warnings) == 1


def test_what_the_spec_says_stands_in_its_place() -> None:
    text = MODEL + "decoding: {override_generation_config: {top_p: 0.5}}\n"
    assert plan(load(text), with_values(top_p=0)).model.default_sampling == {"top_p": 0.5}
    none = plan(load(MODEL + "decoding: {generation_config: none}\n"), with_values(top_p=0))
    assert (none.model.default_sampling, none.warnings) == ({}, ())


def test_a_file_that_the_spec_names_is_refused() -> None:
    text = MODEL + "decoding: {generation_config: ./other}\n"
    files = ResolvedFiles(generation_config={"temperature": "0.7", "top_p": 0, "top_k": 5})
    with pytest.raises(SpecError) as caught:
        plan(load(text), files=files)
    assert [(each.path, each.rule) for each in caught.value.diagnostics] == [
        ("decoding.generation_config", "plan/generation-config")
    ] * 2
    assert "temperature is '0.7' in generation_config.json of ./other" in str(caught.value.diagnostics[0].message)


@pytest.mark.parametrize("value", [".inf", ".nan", "-1", "101", "'0.7'"])
def test_the_specs_own_values_are_held_to_the_same(value: str) -> None:
    with pytest.raises(SpecError):
        load(MODEL + f"decoding: {{override_generation_config: {{temperature: {value}}}}}\n")


def test_bounds_are_those_of_the_engine() -> None:
    def engine_takes(name: str, value: Any) -> bool:
        value = 0 if (name, value) == ("top_k", -1) else value  # the front end's older word for "all"
        params = SamplingParams(**{SAMPLING_NAMES.get(name, name): value})
        try:
            validate_sampling(params, 320, SamplingLimits(16, 20))
        except InvalidSamplingError:
            return False
        return True

    assert set(GOOD) == set(SAMPLING_BOUNDS)
    for name, values in GOOD.items():
        for value in (*values, SAMPLING_BOUNDS[name].high):
            assert SAMPLING_BOUNDS[name].holds(value), (name, value)
            assert engine_takes(name, value), (name, value)
    for name, value in CASES:
        if isinstance(value, float) and name != "max_new_tokens" and not isinstance(value, bool) and name != "top_k":
            assert not engine_takes(name, value), (name, value)


def test_ends_that_are_left_out_are_said() -> None:
    left_out = LeftOut(file="generation_config.json", field="eos_token_id", value="99999", allowed="a token id")
    tokenizer = msgspec.structs.replace(small_model().tokenizer, eos_token_ids=(2,), left_out=(left_out,))
    found = plan(load(), msgspec.structs.replace(small_model(), tokenizer=tokenizer))
    assert found.warnings == (str(left_out),)
    assert decision(found, "model.eos_token_ids").value == [2]
    tokenizer = msgspec.structs.replace(tokenizer, eos_token_ids=())
    found = plan(load(), msgspec.structs.replace(small_model(), tokenizer=tokenizer))
    assert found.warnings[1].startswith("the checkpoint names no token that ends a text")


def test_from_a_folder_to_the_screen(tmp_path: Path) -> None:
    """As `appliance plan` does it."""
    from tests.checkpoint.files import llama_folder_tensors, write_folder
    from tests.checkpoint.test_folder import CONFIG

    root = write_folder(tmp_path / "model", CONFIG, llama_folder_tensors())
    values = {"eos_token_id": [0, 99999], "top_p": 0, "temperature": "0.7"}
    (root / "generation_config.json").write_text(json.dumps(values))
    (root / "tokenizer.json").write_text("{}")
    text = render_text(prepare(write_spec(tmp_path, MODEL), hardware=LAPTOP, to_run=False).plan)
    for field, value in (("eos_token_id", "99999"), ("top_p", "0"), ("temperature", "'0.7'")):
        assert f"warning: generation_config.json: {field} is {value}, which is left out" in text
