"""Sparse matrices of compressed-tensors: values as its version 0.10 decompresses them, and what is refused."""

import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from appliance.catalog.formats import BF16, F32, INT8_G32
from appliance.checkpoint import CheckpointError
from appliance.checkpoint.read import read_model_facts
from appliance.checkpoint.reader import open_tensors
from appliance.kernels.reference.weights import dequantize
from appliance.layers.spec import WeightSource
from appliance.loading.formats.groups import FormatError
from appliance.loading.formats.translate import StoredRows, translate_matrix
from tests.checkpoint.files import write_folder
from tests.checkpoint.test_folder import CONFIG

ROWS, COLUMNS = 12, 20
Tensors = dict[str, torch.Tensor]


def config(form: str, groups: dict[str, Any] | None = None) -> dict[str, Any]:
    sparsity = {"format": form, "sparsity_structure": "2:4", "ignore": ["lm_head"]}
    return {"quant_method": "compressed-tensors", "format": "dense", "sparsity_config": sparsity,
            "config_groups": groups or {}}  # fmt: skip


def plain(columns: int = COLUMNS) -> torch.Tensor:
    return torch.randn(ROWS, columns, generator=torch.Generator().manual_seed(4)).bfloat16()


def halved(matrix: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """The two largest of each four columns."""
    largest = matrix.abs().float().reshape(-1, 4).topk(2, dim=1).indices
    mask = torch.zeros(largest.shape[0], 4, dtype=torch.bool).scatter_(1, largest, value=True).reshape(matrix.shape)
    return parts(matrix, mask, (len(matrix), -1)), matrix * mask


def parts(matrix: torch.Tensor, mask: torch.Tensor, shape: tuple[int, ...]) -> Tensors:
    bits = np.packbits(mask.numpy(), axis=-1, bitorder="little")
    return {
        "m.compressed": matrix[mask].reshape(shape), "m.bitmask": torch.from_numpy(bits),
        "m.shape": torch.tensor(matrix.shape).reshape(-1, 1),
    }  # fmt: skip


def some(matrix: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """Any number of values."""
    mask = matrix.abs() > 0.9
    found = parts(matrix, mask, (-1,))
    offsets = torch.cat([torch.zeros(1), mask.sum(1).cumsum(0)[:-1]]).long()
    return {f"m.weight.{name[2:]}": part for name, part in found.items()} | {"m.weight.row_offsets": offsets}, (
        matrix * mask
    )


def write(root: Path, settings: dict[str, Any], tensors: Tensors) -> Path:
    write_folder(root, CONFIG | {"quantization_config": settings})
    save_file({name: part.contiguous() for name, part in tensors.items()}, root / "model.safetensors")
    return root


def rows_of(root: Path, source: WeightSource | None = None) -> StoredRows:
    facts = read_model_facts(root)
    with open_tensors(facts) as reader:
        return StoredRows(facts.tensors[0], source or WeightSource("m.weight"), reader.read)


def digest(*arrays: torch.Tensor) -> str:
    raw = b"".join(array.contiguous().view(torch.uint8).numpy().tobytes() for array in arrays)
    return hashlib.sha256(raw).hexdigest()[:16]


@pytest.mark.parametrize(
    ("pack", "form", "stored", "expected"),
    [
        (halved, "sparse-24-bitmask", "10d13dd65375de5e", "86928514bc7d44e9"),
        (some, "sparse-bitmask", "293ba46a61911fbc", "727aeaa66048656a"),
    ],
)
def test_values_are_those_of_the_library(pack: Any, form: str, stored: str, expected: str, tmp_path: Path) -> None:
    """The digests are of what the library wrote of the same matrix, and of what it decompressed."""
    tensors, values = pack(plain())
    assert digest(*(part for name, part in tensors.items() if name.endswith(("compressed", "bitmask")))) == stored
    root = write(tmp_path, config(form), tensors)
    (tensor,) = read_model_facts(root).tensors
    assert (tensor.name, tensor.shape, tensor.storage) == ("m.weight", (ROWS, COLUMNS), "bf16")
    assert tensor.stored_bytes == sum(part.nbytes for name, part in tensors.items() if "comp" in name or "bit" in name)
    found = translate_matrix([rows_of(root)], BF16, COLUMNS)
    assert digest(torch.from_numpy(found.data.copy())) == expected
    cut = translate_matrix([rows_of(root, WeightSource("m.weight", rows=(1, 12, 3)))], F32, COLUMNS, 1, 3)
    np.testing.assert_array_equal(cut.data, values.float()[[4, 7]].numpy())


def test_sparse_values_are_quantized_while_loading(tmp_path: Path) -> None:
    tensors, values = halved(plain(64))
    found = dequantize(translate_matrix([rows_of(write(tmp_path, config("sparse-24-bitmask"), tensors))], INT8_G32, 64))
    torch.testing.assert_close(found, values.float(), rtol=0, atol=float(values.abs().max()) / 250)


@pytest.mark.parametrize("kind", ["float", "int"])
def test_sparse_codes_have_scales(kind: str, tmp_path: Path) -> None:
    codes = (plain().float() * 20).to(torch.float8_e4m3fn if kind == "float" else torch.int8)
    kept = (torch.arange(COLUMNS) % 4 < 2).expand(ROWS, -1)
    scale = torch.linspace(0.5, 2.0, ROWS)[:, None]
    stored = codes.view(torch.int8)[kept].view(codes.dtype).reshape(ROWS, -1)
    tensors = parts(codes.float(), kept, (ROWS, -1)) | {"m.compressed": stored, "m.weight_scale": scale}
    weights = {"num_bits": 8, "type": kind, "strategy": "channel"}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    root = write(tmp_path, config("sparse-24-bitmask", groups), tensors)
    found = translate_matrix([rows_of(root)], F32, COLUMNS).data
    np.testing.assert_array_equal(found, (codes.float() * kept * scale).numpy())


BROKEN = {
    "no bits": ({"m.bitmask": None}, "m has no bitmask"),
    "no shape": ({"m.shape": None}, "m has no shape"),
    "no values": ({"m.compressed": None}, "has no compressed beside it"),
    "other bits": ({"m.bitmask": torch.zeros(ROWS, 4, dtype=torch.uint8)}, r"m.bitmask' .* \(12, 4\); m calls"),
    "shape": ({"m.shape": torch.tensor([12, 20, 1])}, r"m.shape' of shape \(3,\) has not 2 numbers"),
    "few values": ({"m.compressed": torch.zeros(ROWS, 9)}, "m.compressed' .* does not hold values of 12 x 20 elements"),
    "type": ({"m.compressed": torch.zeros(ROWS, 10, dtype=torch.int64)}, "m.compressed' is i64"),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_refused(what: str, tmp_path: Path) -> None:
    changes, expected = BROKEN[what]
    tensors = {name: part for name, part in (halved(plain())[0] | changes).items() if part is not None}
    with pytest.raises(CheckpointError) as error:
        read_model_facts(write(tmp_path, config("sparse-24-bitmask"), tensors))
    assert re.search(expected, str(error.value)), str(error.value)


def test_bits_that_mark_other_elements_than_are_stored(tmp_path: Path) -> None:
    tensors, _ = halved(plain())
    tensors["m.bitmask"][3, 1] = 255
    with pytest.raises(FormatError, match=r"the bitmask marks 12\d elements, and 120 are stored"):
        rows_of(write(tmp_path, config("sparse-24-bitmask"), tensors))
