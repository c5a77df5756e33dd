"""Folders of bitsandbytes and HQQ, whose matrices say their own shapes: what is refused, and with which tensor."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from appliance.checkpoint import CheckpointError, read_model_facts
from tests.models.stored.bitsandbytes import eight_bits, four_bits
from tests.models.stored.hqq import hqq
from tests.models.stored.scheme import Scheme

from .files import write_folder
from .test_folder import CONFIG

Tensors = dict[str, torch.Tensor]
Change = Callable[[Tensors], Any]
STATE = "weight.quant_state.bitsandbytes__nf4"
FOUR, NESTED, EIGHT, HQQ = four_bits("nf4"), four_bits("nf4", nested=True), eight_bits(), hqq(4, 64)


def without(name: str) -> Change:
    return lambda tensors: tensors.pop(name)


def having(name: str, tensor: torch.Tensor) -> Change:
    return lambda tensors: tensors.update({name: tensor})


def stating(**changes: object) -> Change:
    def change(tensors: Tensors) -> None:
        settings = json.loads(bytes(tensors[STATE].tolist())) | changes
        tensors[STATE] = torch.tensor(list(json.dumps(settings).encode()), dtype=torch.uint8)

    return change


BROKEN: dict[str, tuple[Scheme, Change, str]] = {
    "no codes": (FOUR, without("weight"), "m.weight has no weight beside 'm.weight."),
    "no scales": (FOUR, without("weight.absmax"), "m.weight has no absmax"),
    "no state": (FOUR, without(STATE), "m.weight has no quant_state.bitsandbytes__nf4"),
    "no JSON": (FOUR, having(STATE, torch.tensor([123], dtype=torch.uint8)), "__nf4' is not JSON"),
    "no object": (FOUR, having(STATE, torch.tensor([91, 93], dtype=torch.uint8)), "__nf4' is not a JSON object"),
    "no shape": (FOUR, stating(shape=[12]), "has no shape of two numbers"),
    "impossible sizes": (FOUR, stating(blocksize=0), "has impossible sizes"),
    "blocks across rows": (FOUR, stating(shape=[256, 96]), "256 x 96 in blocks of 64.*whole blocks of 64 or more"),
    "more codes": (FOUR, stating(shape=[97, 256]), "has not the 24832 codes of its quant_state"),
    "other blocks": (FOUR, stating(blocksize=128), "m.weight.absmax' has not a scale for each block of 128"),
    "scales' type": (NESTED, having("weight.absmax", torch.ones(384)), "m.weight.absmax' is f32.*read: u8"),
    "no SCB": (EIGHT, without("SCB"), "m.weight' is int8 and has no SCB"),
    "SCB's shape": (EIGHT, having("SCB", torch.ones(5)), r"m.SCB' has the shape \(5,\); m calls for \(96,\)"),
    "row order": (EIGHT, having("weight_format", torch.tensor(2, dtype=torch.uint8)), "m.weight_format' is not 0"),
    "axis": (HQQ, having("axis", torch.tensor(2, dtype=torch.int32)), "m.scale' of shape .* do not fit"),
    "scales that no row has": (
        HQQ,
        lambda tensors: tensors.update({name: torch.ones(64) for name in ("scale", "zero")}),
        "m.scale' has 64 scales for 96 rows",
    ),
    "scales of scales": (HQQ, having("quant_scale", torch.tensor(1, dtype=torch.uint8)), "m.quant_scale' is not 0"),
    "bits": (HQQ, having("nbits", torch.tensor(2)), "m.W_q' of shape .* does not hold 96 x 256 codes of 2 bits"),
    "words": (HQQ, having("nbits", torch.tensor(3)), "m.W_q' is u8.*read: i32"),
    "HQQ's shape": (HQQ, having("shape", torch.tensor([96, 256, 1])), "m.shape' of shape .* has not 2 numbers"),
    "HQQ's scales": (HQQ, having("scale", torch.ones(7)), "m.scale' of shape .7,. and 'm.zero'"),
    "HQQ without zeros": (HQQ, without("zero"), "m has no zero"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_refused(what: str, tmp_path: Path) -> None:
    scheme, change, expected = BROKEN[what]
    tensors, _ = scheme.pack(torch.randn(96, 256, generator=torch.Generator().manual_seed(1)))
    change(tensors)
    write_folder(tmp_path, CONFIG | {"quantization_config": scheme.config})
    save_file({f"m.{name}": each.contiguous() for name, each in tensors.items()}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError) as error:
        read_model_facts(tmp_path)
    message = f"{error.value} {error.value.hint}"
    assert re.search(expected, message), message
