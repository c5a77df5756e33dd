"""Folders of quark: values by the formulas of its export, and what is refused, with the field or tensor."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from appliance.catalog.formats import F32
from appliance.checkpoint import CheckpointError, read_model_facts
from appliance.checkpoint.reader import open_tensors
from appliance.layers.spec import WeightSource
from appliance.loading.formats.groups import FormatError
from appliance.loading.formats.translate import StoredRows, translate_matrix
from tests.models.stored.e2m1 import mxfp4

from .files import write_folder
from .test_folder import CONFIG

ROWS, COLUMNS = 12, 64
Tensors = dict[str, torch.Tensor]
MATRIX = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(6))


def config(dtype: str, qscheme: str, **more: Any) -> dict[str, Any]:
    weight = {"dtype": dtype, "qscheme": qscheme, "symmetric": True, "is_dynamic": False} | more
    export = {"pack_method": "reorder", "weight_format": "real_quantized", "kv_cache_group": []}
    return {"quant_method": "quark", "global_quant_config": {"weight": weight, "input_tensors": None}, "export": export}


MXFP4 = config("fp4", "per_group", group_size=32, scale_format="e8m0")
FP8, FP8_ROWS, INT8 = (config(*each) for each in (("fp8_e4m3", "per_tensor"), ("fp8_e4m3", "per_channel"),
                                                  ("int8", "per_channel")))  # fmt: skip


def stored(settings: dict[str, Any]) -> tuple[Tensors, torch.Tensor]:
    """The tensors of module `m`, and what they stand for."""
    if settings is MXFP4:
        codes, scales, values = mxfp4(MATRIX)
        return {"m.weight": codes.reshape(ROWS, -1), "m.weight_scale": scales}, values
    scale = MATRIX.abs().amax() / 448 if settings is FP8 else MATRIX.abs().amax(1) / (127 if settings is INT8 else 448)
    steps = scale.reshape(-1, 1)
    if settings is INT8:
        codes = (MATRIX / steps).round().to(torch.int8)
        tensors = {"m.weight_zero_point": torch.zeros(ROWS, dtype=torch.int32)}
    else:
        codes = (MATRIX / steps).to(torch.float8_e4m3fn)
        tensors = {"m.input_scale": torch.tensor(0.5)}
    return tensors | {"m.weight": codes, "m.weight_scale": scale}, codes.float() * steps


def write(root: Path, settings: dict[str, Any], tensors: Tensors) -> Path:
    write_folder(root, CONFIG | {"quantization_config": settings})
    save_file(tensors | {"norm.weight": torch.ones(4)}, root / "model.safetensors")
    return root


def values_of(root: Path) -> np.ndarray:
    facts = read_model_facts(root)
    (tensor,) = (each for each in facts.tensors if each.name == "m.weight")
    with open_tensors(facts) as reader:
        return translate_matrix([StoredRows(tensor, WeightSource("m.weight"), reader.read)], F32, COLUMNS).data


@pytest.mark.parametrize(
    ("settings", "storage"),
    [(FP8, "f8_channel"), (FP8_ROWS, "f8_channel"), (INT8, "int8_channel"), (MXFP4, "mxfp4")],
)
def test_values(settings: dict[str, Any], storage: str, tmp_path: Path) -> None:
    tensors, expected = stored(settings)
    root = write(tmp_path, settings, tensors)
    found = {tensor.name: tensor.storage for tensor in read_model_facts(root).tensors}
    assert found == {"m.weight": storage, "norm.weight": "f32"}
    np.testing.assert_array_equal(values_of(root), expected.numpy())


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "int4": (config("int4", "per_group"), 'global_quant_config.weight.dtype is "int4".*read: fp8_e4m3, int8, fp4'),
    "uint4": (config("uint4", "per_channel"), 'global_quant_config.weight.dtype is "uint4"'),
    "mx6": (config("mx6", "per_group"), 'weight.dtype is "mx6"'),
    "int8 in groups": (config("int8", "per_group"), 'weight.qscheme is "per_group".*read: per_tensor, per_channel'),
    "other groups": (MXFP4 | config("fp4", "per_group", group_size=16, scale_format="e8m0"), "weight.group_size is 16"),
    "other scales": (config("fp4", "per_group", group_size=32, scale_format="e5m3"), 'scale_format is "e5m3"'),
    "two steps": (FP8 | {"global_quant_config": {"weight": [{}, {}]}}, "weight must be an object"),
    "a layer": (FP8 | {"layer_quant_config": {"*.up": {"weight": {"dtype": "int3"}}}}, r'\*.up.weight.dtype is "int3"'),
    "not packed": (FP8 | {"export": {"weight_format": "fake_quantized"}}, 'export.weight_format is "fake_quantized"'),
}
BROKEN: dict[str, tuple[dict[str, Any], str, torch.Tensor | None, str]] = {
    "no scale": (FP8, "weight_scale", None, "m has no weight_scale"),
    "no codes": (FP8, "weight", None, "has no weight beside it"),
    "other scales": (FP8_ROWS, "weight_scale", torch.ones(11), "m.weight_scale' has the shape"),
    "zero points": (INT8, "weight_zero_point", torch.ones(ROWS).int(), "m.weight_zero_point' is not all zeros"),
    "exponents": (MXFP4, "weight_scale", torch.ones(ROWS, 2), "m.weight_scale' is f32.*read: u8"),
    "few exponents": (MXFP4, "weight_scale", torch.ones(ROWS, 1, dtype=torch.uint8), "m.weight_scale' has the shape"),
    "words": (INT8, "weight", torch.ones(ROWS, 8).int(), "m: beside weight_scale lies i32"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_settings_that_are_refused(what: str, tmp_path: Path) -> None:
    settings, expected = REFUSED[what]
    with pytest.raises(CheckpointError) as error:
        read_model_facts(write(tmp_path, settings, stored(FP8)[0]))
    assert error.value.where == "config.json"
    message = f"{error.value} {error.value.hint}"
    assert re.search(expected, message), message


@pytest.mark.parametrize("what", BROKEN)
def test_tensors_that_are_refused(what: str, tmp_path: Path) -> None:
    settings, name, value, expected = BROKEN[what]
    tensors: dict[str, torch.Tensor | None] = {**stored(settings)[0], f"m.{name}": value}
    with pytest.raises(CheckpointError) as error:
        read_model_facts(write(tmp_path, settings, {key: part for key, part in tensors.items() if part is not None}))
    message = f"{error.value} {error.value.hint}"
    assert re.search(expected, message), message


def test_a_scale_that_is_not_a_number(tmp_path: Path) -> None:
    tensors = stored(FP8)[0] | {"m.weight_scale": torch.tensor(float("nan"))}
    with pytest.raises(FormatError, match="a scale is not finite"):
        values_of(write(tmp_path, FP8, tensors))
