"""Stacks of experts as compressed-tensors writes them, and several schemes in one checkpoint."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from appliance.catalog.formats import F32, STORAGES
from appliance.checkpoint import CheckpointError
from appliance.checkpoint.read import read_model_facts
from appliance.checkpoint.reader import open_tensors
from appliance.kernels.reference.weights import dequantize
from appliance.layers.spec import WeightSource
from appliance.loading.formats.groups import FormatError
from appliance.loading.formats.translate import StoredRows, translate_matrix
from tests.checkpoint.files import write_folder
from tests.checkpoint.test_folder import CONFIG
from tests.models.stored.floats import compressed
from tests.models.stored.scheme import Scheme

EXPERTS, ROWS, COLUMNS = 3, 80, 256
FLOAT8, INT4 = {"num_bits": 8, "type": "float"}, {"num_bits": 4, "type": "int"}
FLOAT4 = {"num_bits": 4, "type": "float", "strategy": "group"}
BLOCK = {"strategy": "block", "block_structure": [32, 128]}
GROUP = {"strategy": "group", "group_size": 32}
SCHEMES = {
    "e4m3 by matrix": compressed("float-quantized", "f8_channel", FLOAT8 | {"strategy": "tensor"}),
    "e4m3 by row": compressed("naive-quantized", "f8_channel", FLOAT8 | {"strategy": "channel"}),
    "e4m3 by block": compressed("float-quantized", "f8_g128", FLOAT8 | BLOCK),
    "NVFP4": compressed("nvfp4-pack-quantized", "nvfp4", FLOAT4 | {"group_size": 16}),
    "MXFP4": compressed("mxfp4-pack-quantized", "mxfp4", FLOAT4 | {"group_size": 32}),
    "int4": compressed("pack-quantized", "int4_g32", INT4 | GROUP),
    "int4, asymmetric": compressed("pack-quantized", "int4_g32_zp", INT4 | GROUP | {"symmetric": False}),
    "int8 by row": compressed("naive-quantized", "int8_channel", {"num_bits": 8, "strategy": "channel"}),
}
Tensors = dict[str, torch.Tensor]


def stack(scheme: Scheme) -> tuple[Tensors, torch.Tensor]:
    """What the library makes of each matrix, one on the other, and the values."""
    matrices = torch.randn(EXPERTS, ROWS, COLUMNS, generator=torch.Generator().manual_seed(8)) * 0.02
    packed = [scheme.pack(matrix) for matrix in matrices]
    parts = {name: torch.stack([each[name] for each, _ in packed]) for name in packed[0][0]}
    if "weight_shape" in parts:
        parts["weight_shape"] = torch.tensor(matrices.shape)
    return {f"m.{name}": part for name, part in parts.items()}, torch.stack([values for _, values in packed])


def write(root: Path, config: dict[str, Any], tensors: Tensors) -> Path:
    write_folder(root, CONFIG | {"quantization_config": config})
    save_file(tensors, root / "model.safetensors")
    return root


def rows_of(root: Path, source: WeightSource) -> StoredRows:
    facts = read_model_facts(root)
    (tensor,) = (each for each in facts.tensors if each.name == source.tensor)
    with open_tensors(facts) as reader:
        return StoredRows(tensor, source, reader.read)


@pytest.mark.parametrize("name", SCHEMES)
def test_every_expert(name: str, tmp_path: Path) -> None:
    scheme = SCHEMES[name]
    tensors, values = stack(scheme)
    root = write(tmp_path, scheme.config, tensors)
    (tensor,) = read_model_facts(root).tensors
    assert (tensor.shape, tensor.storage) == ((EXPERTS, ROWS, COLUMNS), scheme.storage)
    form = STORAGES[scheme.storage].form
    assert form is not None
    for expert in range(EXPERTS):
        rows = rows_of(root, WeightSource("m.weight", index=expert, rows=(7, 71)))
        found = torch.from_numpy(translate_matrix([rows], F32, COLUMNS).data)
        assert torch.equal(found.to(values.dtype), values[expert, 7:71])
        kept = dequantize(translate_matrix([rows], form, COLUMNS))
        torch.testing.assert_close(kept, found, rtol=2**-11 if form.scale_bytes == 2 else 0, atol=0)


def test_one_scale_of_all_experts(tmp_path: Path) -> None:
    """It is what three equal ones are."""
    tensors, _ = stack(SCHEMES["NVFP4"])
    found = []
    for shape in ((1,), (EXPERTS, 1)):
        tensors["m.weight_global_scale"] = torch.full(shape, 3.0)
        root = write(tmp_path / str(len(shape)), SCHEMES["NVFP4"].config, tensors)
        found.append(translate_matrix([rows_of(root, WeightSource("m.weight", index=2))], F32, COLUMNS).data)
    np.testing.assert_array_equal(*found)


def test_a_scale_of_one_expert_that_is_not_a_number(tmp_path: Path) -> None:
    scheme = SCHEMES["e4m3 by block"]
    tensors, _ = stack(scheme)
    tensors["m.weight_scale"][1, 0, 0] = float("nan")
    root = write(tmp_path, scheme.config, tensors)
    translate_matrix([rows_of(root, WeightSource("m.weight", index=0))], F32, COLUMNS)
    with pytest.raises(FormatError, match="a scale is not finite"):
        translate_matrix([rows_of(root, WeightSource("m.weight", index=1))], F32, COLUMNS)


def test_schemes_side_by_side(tmp_path: Path) -> None:
    """Blocks of two sizes, NVFP4 and int4 in one checkpoint: shapes tell them apart."""
    square = compressed("float-quantized", "f8_g128", FLOAT8 | {"strategy": "block", "block_structure": [128, 128]})
    schemes = {"a": SCHEMES["e4m3 by block"], "b": square, "c": SCHEMES["NVFP4"], "d": SCHEMES["int4, asymmetric"]}
    tensors: Tensors = {}
    groups, expected = {}, {}
    for module, scheme in schemes.items():
        parts, expected[module] = scheme.pack(torch.randn(200, COLUMNS, generator=torch.Generator().manual_seed(3)))
        tensors |= {f"{module}.{name}": part.contiguous() for name, part in parts.items()}
        groups[module] = scheme.config["config_groups"]["group_0"] | {"format": scheme.config["format"]}
    config = {"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": groups}
    root = write(tmp_path, config, tensors)
    storages = {tensor.name: tensor.storage for tensor in read_model_facts(root).tensors}
    assert storages == {f"{module}.weight": scheme.storage for module, scheme in schemes.items()}
    for module, values in expected.items():
        found = torch.from_numpy(translate_matrix([rows_of(root, WeightSource(f"{module}.weight"))], F32, COLUMNS).data)
        assert torch.equal(found.to(values.dtype), values)


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape)


BROKEN = {
    "other scales": ("e4m3 by row", "weight_scale", ones(2, ROWS, 1), r"shape \(2, 80, 1\); m calls for 3 of them"),
    "other rows": ("e4m3 by row", "weight_scale", ones(3, 81, 1), r"m.weight_scale' .* \(3, 81, 1\); m calls"),
    "too many groups": ("e4m3 by row", "weight_scale", ones(3, 80, 512), r"shape \(3, 80, 512\); m calls for"),
    "no groups": ("e4m3 by row", "weight_scale", ones(3, 80, 0), r"shape \(3, 80, 0\); m calls for"),
    "no codes": ("e4m3 by row", "weight", ones(3, 0, 256).to(torch.float8_e4m3fn), "m.weight' .* is no matrix"),
    "wholes": ("NVFP4", "weight_global_scale", ones(2, 1), r"m.weight_global_scale' .* \(2, 1\); m calls for 3"),
    "wide wholes": ("NVFP4", "weight_global_scale", ones(3, 2), "m.weight_global_scale' .* is not one number"),
    "exponents": ("MXFP4", "weight_scale", ones(3, 80, 9).to(torch.uint8), r"\(3, 80, 9\); m calls for \(3, 80, 8\)"),
    "two sizes": ("int4", "weight_shape", torch.tensor([80, 256]), "lacks a weight_shape of three integers"),
    "other sizes": ("int4", "weight_shape", torch.tensor([4, 80, 256]), "does not hold 4 x 80 x 256 codes"),
    "groups": ("int4", "weight_scale", ones(3, 80, 5), "m.weight_scale' of shape .* does not scale 3 x 80 x 256 codes"),
    "zeros": ("int4, asymmetric", "weight_zero_point", ones(3, 8, 8).int(), "m.weight_zero_point' .* does not fit its"),
    "stacked zeros": ("int4, asymmetric", "weight_zero_point", ones(80, 8).int(), "m.weight_zero_point' has the shape"),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_stacks_that_are_refused(what: str, tmp_path: Path) -> None:
    name, part, value, expected = BROKEN[what]
    tensors, _ = stack(SCHEMES[name])
    root = write(tmp_path, SCHEMES[name].config, tensors | {f"m.{part}": value})
    with pytest.raises(CheckpointError) as error:
        read_model_facts(root)
    assert re.search(expected, str(error.value)), str(error.value)


def test_blocks_that_shapes_do_not_tell_apart(tmp_path: Path) -> None:
    config = SCHEMES["e4m3 by block"].config
    (group,) = config["config_groups"].values()
    tall = group | {"weights": group["weights"] | {"block_structure": [64, 128]}}
    tensors = {"m.weight": torch.zeros(32, COLUMNS).to(torch.float8_e4m3fn), "m.weight_scale": torch.ones(1, 2)}
    root = write(tmp_path, config | {"config_groups": {"a": group, "b": tall}}, tensors)
    with pytest.raises(CheckpointError, match=r"m.weight_scale' of shape \(1, 2\) may scale blocks of several sizes"):
        read_model_facts(root)
