"""Experts of MXFP4 in stacks, as gpt-oss stores them, against transformers' own conversion."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from appliance.catalog.formats import F32, STORAGES
from appliance.checkpoint import CheckpointError
from appliance.checkpoint.facts import ModelFacts
from appliance.checkpoint.read import read_model_facts
from appliance.checkpoint.reader import open_tensors
from appliance.kernels.reference.weights import dequantize
from appliance.layers.spec import WeightSource
from appliance.loading.formats.groups import FormatError
from appliance.loading.formats.translate import StoredRows, translate_matrix
from appliance.models.tensors import shape_of
from tests.checkpoint.files import write_folder
from tests.checkpoint.test_folder import CONFIG
from tests.models.stored.e2m1 import mxfp4

EXPERTS, ROWS, COLUMNS = 3, 48, 96
NAME = "experts.gate_up_proj"
Tensors = dict[str, torch.Tensor]


def tensors() -> Tensors:
    matrix = torch.randn(EXPERTS, ROWS, COLUMNS, generator=torch.Generator().manual_seed(5)) * 0.02
    blocks, scales, _ = mxfp4(matrix)
    return {f"{NAME}_blocks": blocks.reshape(EXPERTS, ROWS, -1, 16), f"{NAME}_scales": scales}


def write(root: Path, stored: Tensors) -> Path:
    write_folder(root, CONFIG | {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["a"]}})
    save_file(stored | {f"{NAME}_bias": torch.ones(EXPERTS, ROWS)}, root / "model.safetensors")
    return root


def rows_of(facts: ModelFacts, source: WeightSource) -> StoredRows:
    tensor = next(each for each in facts.tensors if each.name == NAME)
    with open_tensors(facts) as reader:
        return StoredRows(tensor, source, reader.read)


def test_every_expert(tmp_path: Path) -> None:
    stored = tensors()
    facts = read_model_facts(write(tmp_path, stored))
    found = {tensor.name: tensor for tensor in facts.tensors}
    assert found.keys() == {NAME, f"{NAME}_bias"}
    assert (found[NAME].shape, found[NAME].storage) == ((EXPERTS, COLUMNS, ROWS), "mxfp4")
    expected = convert_moe_packed_tensors(stored[f"{NAME}_blocks"], stored[f"{NAME}_scales"], dtype=torch.float32)
    assert tuple(expected.shape) == found[NAME].shape
    form = STORAGES["mxfp4"].form
    assert form is not None
    for expert in range(EXPERTS):
        source = WeightSource(NAME, "transpose", index=expert)
        assert shape_of(found[NAME], source) == (ROWS, COLUMNS)
        weight = translate_matrix([rows_of(facts, source)], form, COLUMNS)
        assert weight.scale is not None
        assert weight.scale.dtype == np.uint8
        np.testing.assert_array_equal(dequantize(weight).numpy(), expected[expert].T.numpy())


def test_rows_of_gate_and_up_alternate(tmp_path: Path) -> None:
    stored = tensors()
    facts = read_model_facts(write(tmp_path, stored))
    expected = convert_moe_packed_tensors(stored[f"{NAME}_blocks"], stored[f"{NAME}_scales"], dtype=torch.float32)
    up = WeightSource(NAME, "transpose", index=1, rows=(1, ROWS, 2))
    np.testing.assert_array_equal(
        translate_matrix([rows_of(facts, up)], F32, COLUMNS).data, expected[1].T[1::2].numpy()
    )


def test_a_scale_that_is_not_a_number(tmp_path: Path) -> None:
    stored = tensors()
    stored[f"{NAME}_scales"][1, 2, 1] = 255
    facts = read_model_facts(write(tmp_path, stored))
    with pytest.raises(FormatError, match="a scale of e8m0 is not a number"):
        translate_matrix([rows_of(facts, WeightSource(NAME, "transpose", index=1))], F32, COLUMNS)


def test_sources_that_do_not_fit(tmp_path: Path) -> None:
    facts = read_model_facts(write(tmp_path, tensors()))
    with pytest.raises(FormatError, match="cannot be transposed"):
        rows_of(facts, WeightSource(NAME, index=1))
    with pytest.raises(FormatError, match="a matrix of a stack is asked"):
        rows_of(facts, WeightSource(NAME, "transpose"))
    with pytest.raises(FormatError, match="matrix 3 is asked"):
        rows_of(facts, WeightSource(NAME, "transpose", index=3))


BROKEN: dict[str, tuple[Tensors, str]] = {
    "no scales": ({f"{NAME}_scales": torch.empty(0)}, f"has no '{NAME}_scales' beside it"),
    "no blocks": ({f"{NAME}_blocks": torch.empty(0)}, f"has no '{NAME}_blocks' beside it"),
    "shape": ({f"{NAME}_scales": torch.ones(EXPERTS, ROWS, 2, dtype=torch.uint8)}, r"shape \(3, 48, 2\).*\(3, 48, 3\)"),
    "type": ({f"{NAME}_scales": torch.ones(EXPERTS, ROWS, 3)}, f"'{NAME}_scales' is f32"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_stacks_that_are_refused(what: str, tmp_path: Path) -> None:
    changes, message = BROKEN[what]
    stored = {name: each for name, each in (tensors() | changes).items() if each.numel()}
    with pytest.raises(CheckpointError, match=message):
        read_model_facts(write(tmp_path, stored))
