"""Folders of GPTQ and AWQ: what is refused, with the tensor or field that is wrong. What is read: loading/formats."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance.checkpoint import CheckpointError, read_model_facts

from .files import write_folder
from .test_folder import CONFIG

Arrays = dict[str, np.ndarray]
GPTQ: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
AWQ: dict[str, Any] = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}


def arrays(rows: int = 32, columns: int = 128, bits: int = 4) -> Arrays:
    return {
        "m.qweight": np.zeros((columns * bits // 32, rows), np.int32),
        "m.qzeros": np.zeros((columns // 32, rows * bits // 32), np.int32),
        "m.scales": np.ones((columns // 32, rows), np.float16),
        "m.g_idx": (np.arange(columns) // 32).astype(np.int32),
    }


def awq_arrays() -> Arrays:
    return {
        "m.qweight": np.zeros((128, 4), np.int32),
        "m.qzeros": np.zeros((4, 4), np.int32),
        "m.scales": np.ones((4, 32), np.float16),
    }


def refusal(root: Path, tensors: Arrays, quantization: dict[str, Any]) -> str:
    write_folder(root, CONFIG | {"quantization_config": quantization}, tensors)
    with pytest.raises(CheckpointError) as error:
        read_model_facts(root)
    return f"{error.value} {error.value.hint}"


CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "bits": ({"bits": 5}, "quantization_config.bits is 5.*read: 2, 3, 4, 8"),
    "marlin": ({"checkpoint_format": "marlin"}, "checkpoint_format is \"marlin\""),
    "an adapter": ({"adapter": {"name": "lora"}}, "quantization_config.adapter"),
    "a group size": ({"group_size": 0}, "group_size is 0"),
    "other groups": ({"group_size": 64}, "m.scales' has groups of 32 columns.*says 64"),
    "other bits": ({"bits": 8}, "m.qzeros' of shape .* has no codes of 8 bits for 32 rows"),
    "a rule": ({"dynamic": {"+:.*": {"adapter": {}}}}, "a key of quantization_config.dynamic is \"adapter\""),
    "a rule's bits": ({"dynamic": {".*": {"bits": 7}}}, "quantization_config.dynamic.bits is 7"),
    "rules": ({"dynamic": ["a"]}, "quantization_config.dynamic must be an object"),
}  # fmt: skip


@pytest.mark.parametrize("what", CONFIGS)
def test_configs_that_are_refused(what: str, tmp_path: Path) -> None:
    change, expected = CONFIGS[what]
    message = refusal(tmp_path, arrays(), GPTQ | change)
    assert re.search(expected, message), message


def without(name: str) -> Callable[[Arrays], None]:
    return lambda tensors: tensors.pop(f"m.{name}") is None


def with_tensor(name: str, array: np.ndarray) -> Callable[[Arrays], None]:
    return lambda tensors: tensors.update({f"m.{name}": array})


TENSORS: dict[str, tuple[Callable[[Arrays], Any], str]] = {
    "no codes": (without("qweight"), "m.qzeros' has no qweight beside it"),
    "no zero points": (without("qzeros"), "m has no qzeros"),
    "no scales": (without("scales"), "m has no scales"),
    "rows": (with_tensor("qweight", np.zeros((16, 31), np.int32)), "m.qweight' has the shape .16, 31.*for .16, 32"),
    "types": (with_tensor("scales", np.ones((4, 32), np.int8)), "m.scales' is i8"),
    "groups": (with_tensor("qweight", np.zeros((15, 32), np.int32)), "m.scales' of shape .4, 32. has 4 groups of 120"),
    "order": (with_tensor("g_idx", np.zeros(127, np.int32)), "m.g_idx' has the shape .127"),
}  # fmt: skip


@pytest.mark.parametrize("what", TENSORS)
def test_tensors_that_are_refused(what: str, tmp_path: Path) -> None:
    change, expected = TENSORS[what]
    tensors = arrays()
    change(tensors)
    message = refusal(tmp_path, tensors, GPTQ)
    assert re.search(expected, message), message


def test_act_order_without_order(tmp_path: Path) -> None:
    tensors = arrays()
    del tensors["m.g_idx"]
    assert "m has no g_idx, the order of its columns" in refusal(tmp_path, tensors, GPTQ | {"desc_act": True})


def test_an_order_that_is_plain_is_none(tmp_path: Path) -> None:
    """AutoGPTQ's static groups: act-order only while quantizing."""
    write_folder(tmp_path, CONFIG | {"quantization_config": GPTQ | {"desc_act": True}}, arrays())
    assert [tensor.storage for tensor in read_model_facts(tmp_path).tensors] == ["int4_g32"]


def test_dynamic_rules_are_read_by_shapes(tmp_path: Path) -> None:
    """One module of other bits, and one that is left plain."""
    eight = {name.replace("m.", "lm_head."): array for name, array in arrays(bits=8).items()}
    plain = {"p.weight": np.ones((32, 128), np.float16)}
    rules = {"+:lm_head": {"bits": 8}, "-:p": {}}
    config = CONFIG | {"quantization_config": GPTQ | {"dynamic": rules, "lm_head": True}}
    write_folder(tmp_path, config, arrays() | eight | plain)
    found = {tensor.name: tensor.storage for tensor in read_model_facts(tmp_path).tensors}
    assert found == {"m.weight": "int4_g32", "lm_head.weight": "int8_g32", "p.weight": "f16"}


AWQ_CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "bits": ({"bits": 3}, "quantization_config.bits is 3"),
    "version": ({"version": "gemv"}, "quantization_config.version is \"gemv\""),
    "no zero points": ({"zero_point": False}, "quantization_config.zero_point is false"),
}  # fmt: skip


@pytest.mark.parametrize("what", AWQ_CONFIGS)
def test_configs_of_awq_that_are_refused(what: str, tmp_path: Path) -> None:
    change, expected = AWQ_CONFIGS[what]
    assert expected in refusal(tmp_path, awq_arrays(), AWQ | change)


def test_shapes_of_awq_that_are_refused(tmp_path: Path) -> None:
    tensors = awq_arrays() | {"m.qzeros": np.zeros((4, 5), np.int32)}
    assert "m.qzeros' has the shape (4, 5); m calls for (4, 4)" in refusal(tmp_path, tensors, AWQ)
