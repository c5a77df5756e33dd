"""Folders of the compressed-tensors method: what is one matrix, and what is refused.

Files that the library itself wrote are read in tests/parity.
"""

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance.checkpoint import CheckpointError, read_model_facts
from appliance.checkpoint.facts import TensorFacts
from appliance.checkpoint.reader import open_tensors

from .files import write_folder
from .test_folder import CONFIG

Arrays = dict[str, np.ndarray]

QUANTIZATION: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "kv_cache_scheme": None,
    "sparsity_config": {},
    "transform_config": {},
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": 32},
            "input_activations": None,
            "output_activations": None,
        }
    },
}


def arrays() -> Arrays:
    """Module `a`: 10 x 64 codes of 4 bits in groups of 32. Module `b`: 3 x 5 int8, a scale a row."""
    return {
        "a.weight_packed": np.arange(80, dtype=np.int32).reshape(10, 8),
        "a.weight_scale": np.ones((10, 2), np.float16),
        "a.weight_shape": np.array([10, 64]),
        "a.weight_zero_point": np.zeros((2, 2), np.int32),
        "a.bias": np.zeros(10, np.float32),
        "b.weight": np.arange(15, dtype=np.int8).reshape(3, 5),
        "b.weight_scale": np.ones((3, 1), np.float32),
        "c.weight": np.ones((2, 2), np.float32),
    }


def write(root: Path, tensors: Arrays | None = None, quantization: dict[str, Any] | None = None) -> Path:
    return write_folder(root, CONFIG | {"quantization_config": quantization or QUANTIZATION}, tensors or arrays())


def test_matrices_are_one_tensor_each(tmp_path: Path) -> None:
    facts = read_model_facts(write(tmp_path))
    found: dict[str, TensorFacts] = {tensor.name: tensor for tensor in facts.tensors}
    assert facts.quantization == "compressed-tensors"
    assert found.keys() == {"a.weight", "a.bias", "b.weight", "c.weight"}
    packed, plain = found["a.weight"], found["b.weight"]
    assert (packed.shape, packed.storage, packed.stored_name) == ((10, 64), "int4_g32_zp", "a.weight_packed")
    assert (plain.shape, plain.storage, plain.zero_point) == ((3, 5), "int8_channel", None)
    assert found["c.weight"].storage == "f32"
    assert packed.stored_bytes == 320 + 40 + 16
    assert facts.size_bytes == 376 + 15 + 12 + 40 + 16
    with open_tensors(facts) as reader:
        assert reader.read("a.weight").tobytes() == arrays()["a.weight_packed"].tobytes()
        assert np.array_equal(reader.array("a.weight_scale"), arrays()["a.weight_scale"])
        with pytest.raises(CheckpointError, match="int4_g32_zp and has no plain view"):
            reader.array("a.weight")


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("format", "marlin-24", 'quantization_config.format is "marlin-24", which is not in this version'),
        ("kv_cache_scheme", {"num_bits": 8}, "quantization_config.kv_cache_scheme is not in this version"),
        ("transform_config", {"config_groups": {}}, "quantization_config.transform_config is not in this version"),
        ("sparsity_config", {"format": "sparse-24"}, "sparsity_config.format"),
        ("sparsity_config", ["x"], "sparsity_config.format"),
        ("config_groups", {}, "config_groups must be an object of schemes"),
        ("config_groups", ["Linear"], "config_groups must be an object of schemes"),
        ("config_groups.group_0", None, "group_0 must be an object with weights"),
        ("config_groups.group_0.weights", None, "group_0 must be an object with weights"),
        ("config_groups.group_0.format", "mxfp8-quantized", "group_0.format"),
        ("config_groups.group_0.weights.type", "mxfp6", 'weights.type is "mxfp6"'),
        ("config_groups.group_0.weights.num_bits", 3, "weights.num_bits is 3"),
        ("config_groups.group_0.weights.num_bits", True, "weights.num_bits is true"),
        ("config_groups.group_0.weights.num_bits", "9" * 1000, "weights.num_bits is \"999"),
        ("config_groups.group_0.weights.strategy", "block", "weights.strategy"),
        ("config_groups.group_0.weights.actorder", "group", "weights.actorder"),
        ("config_groups.group_0.output_activations", {"num_bits": 8}, "output_activations"),
        ("config_groups.group_0.input_activations", 8, "input_activations must be an object or null"),
        ("config_groups.group_0.input_activations", {"num_bits": 8, "dynamic": False}, "dynamic is false"),
        ("config_groups.group_0.input_activations", {"num_bits": 4, "dynamic": True}, "num_bits is 4"),
        ("config_groups.group_0.input_activations", {"num_bits": 8, "type": "float"}, "input_activations.type"),
    ],
)  # fmt: skip
def test_schemes_that_are_refused(tmp_path: Path, path: str, value: Any, words: str) -> None:
    quantization = copy.deepcopy(QUANTIZATION)
    *outer, last = path.split(".")
    section = quantization
    for name in outer:
        section = section[name]
    section[last] = value
    with pytest.raises(CheckpointError, match=re.escape(words)) as caught:
        read_model_facts(write(tmp_path, quantization=quantization))
    assert caught.value.where == "config.json"
    assert len(str(caught.value)) < 300


def without(name: str) -> Callable[[Arrays], None]:
    return lambda tensors: tensors.__delitem__(name)


def with_(name: str, array: np.ndarray) -> Callable[[Arrays], None]:
    return lambda tensors: tensors.update({name: array})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without("a.weight_shape"), "'a.weight_packed' lacks a weight_shape of two integers"),
        (with_("a.weight_shape", np.array([10.0, 64.0])), "lacks a weight_shape of two integers"),
        (with_("a.weight_shape", np.array([10, 64, 1])), "lacks a weight_shape of two integers"),
        (with_("a.weight_shape", np.array([10, 1 << 40])), "does not hold 10 x 1099511627776 codes"),
        (with_("a.weight_shape", np.array([-10, -64])), "does not hold -10 x -64 codes"),
        (with_("a.weight_packed", np.zeros((10, 8), np.int64)), "does not hold 10 x 64 codes"),
        (without("a.weight_scale"), "'a.weight_packed' has no weight_scale beside it"),
        (with_("a.weight_scale", np.ones((10, 3), np.float16)), "does not scale 10 x 64 codes"),
        (with_("a.weight_scale", np.ones((9, 2), np.float16)), "does not scale 10 x 64 codes"),
        (with_("a.weight_scale", np.ones((10, 2), np.int32)), "scale' is i32"),
        (with_("a.weight_zero_point", np.zeros((10, 2), np.int32)), "does not fit its scales"),
        (with_("a.weight_zero_point", np.zeros((4, 1), np.int32)), "does not fit its scales"),
        (with_("a.weight_zero_point", np.zeros((2, 10), np.int8)), "does not fit its scales"),
        (with_("a.weight_zero_point", np.zeros((10, 2), np.float32)), "does not fit its scales"),
        (with_("b.weight_zero_point", np.zeros((2, 1), np.int8)), "does not fit its scales"),
        (without("b.weight"), "b: beside weight_scale lies nothing"),
        (with_("b.weight", np.zeros((3, 5), np.float32)), "b: beside weight_scale lies f32 of shape (3, 5)"),
        (with_("b.weight", np.zeros(15, np.int8)), "b: beside weight_scale lies i8 of shape (15,)"),
    ],
)
def test_tensors_that_do_not_go_together(tmp_path: Path, change: Callable[[Arrays], None], words: str) -> None:
    tensors = arrays()
    change(tensors)
    with pytest.raises(CheckpointError, match=re.escape(words)) as caught:
        read_model_facts(write(tmp_path, tensors))
    assert caught.value.where == "model.safetensors"
