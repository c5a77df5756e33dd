"""Folders of torchao: values as torchao itself makes them, and what is refused, with the tensor that is wrong."""

import hashlib
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from appliance.catalog.formats import F32
from appliance.checkpoint import CheckpointError, read_model_facts
from appliance.checkpoint.reader import open_tensors
from appliance.layers.spec import WeightSource
from appliance.loading.formats.translate import StoredRows, translate_matrix
from tests.models.stored.torchao import CONFIG as QUANTIZATION
from tests.models.stored.torchao import torchao

from .files import write_folder
from .test_folder import CONFIG

Tensors = dict[str, torch.Tensor]


def parts(**changes: torch.Tensor | None) -> Tensors:
    found: dict[str, torch.Tensor | None] = {
        "qdata": torch.ones(8, 64, dtype=torch.int8), "scale": torch.full((8, 2), 0.5),
        "zero_point": torch.zeros(8, 2, dtype=torch.int8),
    }  # fmt: skip
    return {f"m._weight_{name}": part for name, part in (found | changes).items() if part is not None}


def write(root: Path, tensors: Tensors) -> Path:
    write_folder(root, CONFIG | {"quantization_config": QUANTIZATION})
    save_file(tensors, root / "model.safetensors")
    return root


def values(root: Path, columns: int) -> np.ndarray:
    facts = read_model_facts(root)
    with open_tensors(facts) as reader:
        rows = StoredRows(facts.tensors[0], WeightSource("m.weight"), reader.read)
        return translate_matrix([rows], F32, columns).data


def test_zero_points_that_are_zero_are_left_and_others_are_taken_off(tmp_path: Path) -> None:
    plain = write(tmp_path / "plain", parts(act_quant_scale=torch.ones(1)))
    assert [(each.name, each.storage) for each in read_model_facts(plain).tensors] == [("m.weight", "int8_g32")]
    assert (values(plain, 64) == 0.5).all()
    moved = write(tmp_path / "moved", parts(zero_point=torch.full((8, 2), 3, dtype=torch.int8)))
    assert read_model_facts(moved).tensors[0].storage == "int8_g32_zp"
    assert (values(moved, 64) == -1.0).all()


def test_codes_of_four_bits_in_bytes_have_the_values_of_torchao(tmp_path: Path) -> None:
    """The digest is of what dequantize() of IntxUnpackedToInt8Tensor made of them, version 0.18 on a CPU."""
    matrix = torch.randn(96, 512, generator=torch.Generator().manual_seed(7)) * 0.02 + 0.003
    stored, expected = torchao("intx4", 32).pack(matrix)
    root = write(tmp_path, {f"m.{name}": part.contiguous() for name, part in stored.items()})
    assert hashlib.sha256(expected.contiguous().numpy().tobytes()).hexdigest()[:16] == "b26898a58fc0f755"
    assert np.array_equal(values(root, 512), expected.numpy())


def test_blocks_of_e4m3(tmp_path: Path) -> None:
    codes = torch.ones(200, 256).to(torch.float8_e4m3fn)
    scale = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    root = write(tmp_path, parts(qdata=codes, scale=scale, zero_point=None))
    expected = scale.repeat_interleave(100, 0).repeat_interleave(128, 1)
    facts = read_model_facts(root)
    assert (facts.quantization, facts.tensors[0].storage, facts.tensors[0].block_rows) == ("torchao", "f8_g128", 100)
    assert np.array_equal(values(root, 256), expected.numpy())


BROKEN: dict[str, tuple[Tensors, str]] = {
    "no codes": (parts(qdata=None), "m has no _weight_qdata beside 'm._weight_scale'"),
    "no scale": (parts(scale=None), "m has no _weight_scale beside"),
    "packed codes": (parts(qdata=torch.ones(8, 32, dtype=torch.int32)), "m._weight_qdata' is i32.*read: f8_e4m3, i8"),
    "another scale": (parts(scale=torch.ones(8, 3)), r"m._weight_scale' of shape \(8, 3\) does not scale 8 x 64"),
    "wide zero points": (parts(zero_point=torch.ones(8, 2)), "m._weight_zero_point' is f32.*read: i8"),
    "zero points": (parts(zero_point=torch.ones(8, 1, dtype=torch.int8)), "m._weight_zero_point'.*does not fit"),
    "scaled activations": (parts(act_pre_scale=torch.ones(64)), "m._weight_act_pre_scale' scales activations"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_refused(what: str, tmp_path: Path) -> None:
    tensors, expected = BROKEN[what]
    with pytest.raises(CheckpointError) as error:
        read_model_facts(write(tmp_path, tensors))
    message = f"{error.value} {error.value.hint}"
    assert re.search(expected, message), message
