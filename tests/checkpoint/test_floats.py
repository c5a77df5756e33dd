"""Folders of e4m3 and NVFP4: what is refused, with the tensor or field that is wrong. What is read: loading/formats."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from appliance.checkpoint import CheckpointError, read_model_facts

from .files import write_folder
from .test_folder import CONFIG

Tensors = dict[str, torch.Tensor]
FP8: dict[str, Any] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
NVFP4: dict[str, Any] = {"quant_method": "modelopt", "quant_algo": "NVFP4"}


def codes(rows: int = 200, columns: int = 256) -> torch.Tensor:
    return torch.zeros(rows, columns).to(torch.float8_e4m3fn)


def fp8(**changes: torch.Tensor | None) -> Tensors:
    parts: dict[str, torch.Tensor | None] = {"weight": codes(), "weight_scale_inv": torch.ones(2, 2)}
    return {f"m.{name}": part for name, part in (parts | changes).items() if part is not None}


def nvfp4(**changes: torch.Tensor | None) -> Tensors:
    parts: dict[str, torch.Tensor | None] = {
        "weight": torch.zeros(8, 32, dtype=torch.uint8), "weight_scale": codes(8, 4),
        "weight_scale_2": torch.tensor(1.0), "input_scale": torch.tensor(1.0), "k_scale": torch.tensor(1.0),
    }  # fmt: skip
    return {f"m.{name}": part for name, part in (parts | changes).items() if part is not None}


def write(root: Path, tensors: Tensors, quantization: dict[str, Any] | None) -> Path:
    write_folder(root, CONFIG | ({} if quantization is None else {"quantization_config": quantization}))
    save_file(tensors, root / "model.safetensors")
    return root


BROKEN: dict[str, tuple[Tensors, dict[str, Any], str]] = {
    "no scale": (fp8(weight_scale_inv=None), FP8, "m.weight' is e4m3 and has no scale beside it"),
    "no codes": (fp8(weight=None), FP8, "m.weight_scale_inv' has no weight beside it"),
    "scaled integers": (fp8(weight=torch.zeros(200, 256, dtype=torch.int8)), FP8, "m.weight' is i8.*read: f8_e4m3"),
    "scales' type": (fp8(weight_scale_inv=codes(2, 2)), FP8, "m.weight_scale_inv' is f8_e4m3.*read: bf16, f16, f32"),
    "blocks": (fp8(weight_scale_inv=torch.ones(2, 3)), FP8, r"shape \(2, 3\); m calls for \(2, 2\)"),
    "a part of a block": (fp8(weight=codes(200, 200)), FP8, "has scales for 128 of 200 columns.*whole groups"),
    "a vector": (fp8(weight=codes(1, 256)[0]), FP8, r"of shape \(256,\) is no matrix"),
    "block sizes": (fp8(), FP8 | {"weight_block_size": [128, 96]}, "columns of .*weight_block_size is 96.*read: 32"),
    "no block": (fp8(), FP8 | {"weight_block_size": 128}, "must be two numbers of rows and columns, or null"),
    "another fp8": (fp8(), FP8 | {"fmt": "e5m2"}, 'quantization_config.fmt is "e5m2".*read: null, e4m3'),
    "an algorithm": (nvfp4(), NVFP4 | {"quant_algo": "W4A8_AWQ"}, 'quant_algo is "W4A8_AWQ".*read: FP8'),
    "NVFP4 without scales": (nvfp4(weight_scale=None), NVFP4, "m has no weight_scale"),
    "NVFP4 without the whole": (nvfp4(weight_scale_2=None), NVFP4, "m has no weight_scale_2"),
    "NVFP4's groups": (nvfp4(weight_scale=codes(8, 5)), NVFP4, r"shape \(8, 5\); m calls for \(8, 4\)"),
    "NVFP4's whole": (nvfp4(weight_scale_2=torch.ones(2)), NVFP4, "m.weight_scale_2' of shape .2,. is not one number"),
    "NVFP4's columns": (nvfp4(weight=torch.zeros(8, 24, dtype=torch.uint8)), NVFP4, "no matrix of whole groups of 32"),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_refused(what: str, tmp_path: Path) -> None:
    tensors, quantization, expected = BROKEN[what]
    with pytest.raises(CheckpointError) as error:
        read_model_facts(write(tmp_path, tensors, quantization))
    message = f"{error.value} {error.value.hint}"
    assert re.search(expected, message), message


def test_scales_of_activations_and_of_the_cache_are_left(tmp_path: Path) -> None:
    facts = read_model_facts(write(tmp_path, nvfp4(), NVFP4))
    assert [tensor.name for tensor in facts.tensors] == ["m.weight"]
    assert facts.tensors[0].stored_bytes == 8 * 32 + 8 * 4 + 4


def test_settings_of_modelopt_beside_a_silent_config(tmp_path: Path) -> None:
    write(tmp_path, fp8(weight_scale_inv=None, weight_scale=torch.tensor(1.0)), None)
    settings = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(settings))
    facts = read_model_facts(tmp_path)
    assert (facts.quantization, facts.tensors[0].storage) == ("modelopt", "f8_channel")
