"""Mistral's own format: params.json and consolidated.safetensors run as transformers' module of the same weights."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from appliance.checkpoint import CheckpointError, read_model_facts
from appliance.kernels.interface import KernelSet
from tests.models.mistral_files import write_mistral
from tests.models.tiny import VOCAB_SIZE
from tests.parity.harness import Driver, bind, execution_of

PROMPT = [int(token) for token in np.random.default_rng(3).integers(3, VOCAB_SIZE, 37)]
TOLERANCE = {"rtol": 2e-4, "atol": 2e-4}
Written = tuple[Path, torch.nn.Module]


@pytest.fixture(scope="module", params=["mistral", "mixtral"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder = tmp_path_factory.mktemp("mistral")
    return folder, write_mistral(request.param, folder)


def test_logits_equal_those_of_transformers(written: Written, kernel_set: KernelSet) -> None:
    facts, bounds = read_model_facts(written[0]), execution_of(max_model_len=64)
    assert (facts.format, facts.tokenizer.eos_token_ids) == ("mistral", (2,))
    with torch.inference_mode():
        expected = written[1](torch.tensor([PROMPT])).logits[0].numpy()
    found = Driver(bind(facts, kernel_set, execution=bounds), bounds).all_logits(PROMPT)
    np.testing.assert_allclose(found, expected, **TOLERANCE)


def test_config_json_comes_first_unless_the_form_is_named(written: Written, tmp_path: Path) -> None:
    for file in (*written[0].glob("*.*"), written[0] / "plain" / "config.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert read_model_facts(tmp_path).format == "safetensors"
    assert read_model_facts(tmp_path, None, "mistral").format == "mistral"


def test_codes_of_e4m3_have_a_scale_by_its_own_name(tmp_path: Path) -> None:
    write_mistral("mistral", tmp_path)
    params = json.loads((tmp_path / "params.json").read_text())
    (tmp_path / "params.json").write_text(json.dumps(params | {"quantization": {"qformat_weight": "fp8_e4m3"}}))
    tensors = load_file(tmp_path / "consolidated.safetensors")
    name = "layers.0.attention.wq"
    tensors[f"{name}.weight"] = tensors[f"{name}.weight"].to(torch.float8_e4m3fn)
    scales = {f"{name}.qscale_weight": torch.tensor(0.5), f"{name}.qscale_act": torch.tensor(2.0)}
    save_file(tensors | scales, tmp_path / "consolidated.safetensors")
    facts = read_model_facts(tmp_path)
    found = {tensor.name: tensor.storage for tensor in facts.tensors}
    assert (facts.quantization, found["model.layers.0.self_attn.q_proj.weight"]) == ("fp8", "f8_channel")
    assert not any("scale" in name for name in found)


BROKEN: dict[str, tuple[dict[str, object], str]] = {
    "vision": ({"vision_encoder": {"hidden_size": 8}}, "params.json: vision_encoder is stated, which is not in this"),
    "latent": ({"qk_nope_head_dim": 8}, "qk_nope_head_dim is stated"),
    "another model": ({"model_type": "mamba"}, "another model than a transformer"),
    "an encoder": ({"causal": False}, "another model than a transformer"),
    "shared experts": ({"moe": {"num_experts": 4, "num_shared_experts": 1}}, "moe states num_shared_experts"),
    "windows": ({"sliding_window": [8, 16]}, r"sliding_window is \[8, 16\]"),
    "yarn": ({"yarn": {"factor": 2, "gamma": 3}}, "yarn states gamma"),
    "codes": ({"quantization": {"qformat_weight": "int4"}}, "quantization is .*fp8_e4m3 and compressed-tensors are"),
    "no width": ({"dim": None}, "hidden_size is missing"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_refused(what: str, written: Written, tmp_path: Path) -> None:
    changes, message = BROKEN[what]
    params = json.loads((written[0] / "params.json").read_text())
    (tmp_path / "params.json").write_text(json.dumps(params | changes))
    (tmp_path / "consolidated.safetensors").symlink_to(written[0] / "consolidated.safetensors")
    with pytest.raises(CheckpointError, match=message):
        read_model_facts(tmp_path)


def test_other_tensors_and_none_are_refused(written: Written, tmp_path: Path) -> None:
    (tmp_path / "params.json").symlink_to(written[0] / "params.json")
    with pytest.raises(CheckpointError, match=r"no file consolidated\*\.safetensors"):
        read_model_facts(tmp_path)
    save_file({"layers.0.attention.wx.weight": torch.zeros(2, 2)}, tmp_path / "consolidated.safetensors")
    with pytest.raises(CheckpointError, match=r"layers\.0\.attention\.wx\.weight' is none that Mistral's"):
        read_model_facts(tmp_path)
    save_file({"norm.weight": torch.zeros(2)}, tmp_path / "consolidated.00.safetensors")
    with pytest.raises(CheckpointError, match=r"2 files consolidated\*\.safetensors and no"):
        read_model_facts(tmp_path)


def test_windows_in_turns(written: Written, tmp_path: Path) -> None:
    params = json.loads((written[0] / "params.json").read_text()) | {"sliding_window": [None, 8]}
    (tmp_path / "params.json").write_text(json.dumps(params))
    (tmp_path / "consolidated.safetensors").symlink_to(written[0] / "consolidated.safetensors")
    groups = read_model_facts(tmp_path).geometry.groups
    assert [(group.layers, group.window) for group in groups] == [((0,), None), ((1,), 8)]
