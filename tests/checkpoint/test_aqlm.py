"""Folders of AQLM: values as its library dequantizes them, and what is refused, with the tensor that is wrong."""

import hashlib
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from appliance.catalog.formats import F32, STORAGES
from appliance.checkpoint import CheckpointError, read_model_facts
from appliance.checkpoint.reader import open_tensors
from appliance.layers.spec import WeightSource
from appliance.loading.formats.groups import FormatError
from appliance.loading.formats.translate import StoredRows, translate_matrix

from .files import write_folder
from .test_folder import CONFIG

QUANTIZATION = {"quant_method": "aqlm", "in_group_size": 8, "out_group_size": 1, "nbits_per_codebook": 16}
ROWS, COLUMNS, WIDE = 16, 64, 8
Tensors = dict[str, torch.Tensor]


def tensors(books: int = 2, bits: int = 8, high: int = 1, dtype: torch.dtype = torch.float16) -> Tensors:
    """Codes as the library packs them: numbers of `bits` bits, the upper half negative."""
    generator = torch.Generator().manual_seed(11)
    codes = torch.randint(0, 2**bits, (ROWS // high, COLUMNS // WIDE, books), generator=generator)
    packed = torch.where(codes >= 2 ** (bits - 1), codes - 2**bits, codes)
    return {
        "m.codes": packed.to(torch.int8 if bits <= 8 else torch.int16),
        "m.codebooks": (torch.randn(books, 2**bits, high, WIDE, generator=generator) * 0.02).to(dtype),
        "m.scales": (torch.rand(ROWS // high, 1, 1, 1, generator=generator) + 0.5).to(dtype),
    }


def write(root: Path, stored: Tensors) -> Path:
    write_folder(root, CONFIG | {"quantization_config": QUANTIZATION})
    save_file(stored, root / "model.safetensors")
    return root


def rows_of(root: Path, source: WeightSource) -> StoredRows:
    facts = read_model_facts(root)
    with open_tensors(facts) as reader:
        return StoredRows(facts.tensors[0], source, reader.read)


@pytest.mark.parametrize(
    ("books", "bits", "high", "dtype", "expected"),
    [
        (1, 16, 1, torch.float16, "17b3799ff391de1a"),
        (2, 8, 1, torch.float16, "0b0f9df7cd1fb913"),
        (1, 16, 1, torch.bfloat16, "4e089a3597cf4268"),
        (2, 8, 1, torch.bfloat16, "14b920a2a7579ea5"),
        (2, 6, 2, torch.float16, "c7075d3cc0d6be31"),
    ],
)
def test_values_are_those_of_the_library(
    books: int, bits: int, high: int, dtype: torch.dtype, expected: str, tmp_path: Path
) -> None:
    """The digests are of what `_dequantize_weight` of aqlm 1.1.7 made of the same tensors on a CPU; for two codebooks
    of bf16, of torch's sum and product: the library's sum rounds ties away from zero there."""
    stored = tensors(books, bits, high, dtype)
    root = write(tmp_path, stored)
    (tensor,) = read_model_facts(root).tensors
    storage = "f16" if dtype is torch.float16 else "bf16"
    assert (tensor.name, tensor.shape, tensor.storage) == ("m.weight", (ROWS, COLUMNS), f"aqlm_{storage}")
    assert tensor.stored_bytes == sum(part.nbytes for part in stored.values())
    form = STORAGES[tensor.storage].form
    assert form is not None
    weight = translate_matrix([rows_of(root, WeightSource("m.weight"))], form, COLUMNS)
    assert hashlib.sha256(weight.data.tobytes()).hexdigest()[:16] == expected
    values = translate_matrix([rows_of(root, WeightSource("m.weight"))], F32, COLUMNS).data
    cut = translate_matrix([rows_of(root, WeightSource("m.weight", rows=(1, 16, 3)))], F32, COLUMNS, 1, 4)
    np.testing.assert_array_equal(cut.data, values[[4, 7, 10]])


BROKEN: dict[str, tuple[str, torch.Tensor | None, str]] = {
    "no codes": ("codes", None, "has no codes beside it"),
    "no codebooks": ("codebooks", None, "m has no codebooks"),
    "no scales": ("scales", None, "m has no scales"),
    "wide codes": ("codes", torch.zeros(16, 8, 2).int(), "m.codes' is i32.*read: i16, i8"),
    "other codes": ("codes", torch.zeros(16, 8, 3).to(torch.int8), r"m.codes' .* does not fit codebooks \(2, 256"),
    "no groups": ("codes", torch.zeros(0, 8, 2).to(torch.int8), "m.codes' .* does not fit codebooks"),
    "short codes": ("codebooks", torch.zeros(2, 512, 1, 8).half(), r"m.codes' \(i8 .* does not fit codebooks"),
    "sizes": ("codebooks", torch.zeros(2, 200, 1, 8).half(), "m.codebooks' has the shape .*a power of two"),
    "flat books": ("codebooks", torch.zeros(2, 256, 8).half(), "m.codebooks' has the shape"),
    "types": ("scales", torch.ones(16, 1, 1, 1).bfloat16(), "m.scales' is bf16.*read: f16"),
    "other scales": ("scales", torch.ones(8, 1, 1, 1).half(), "m.scales' .* has not one scale for each of 16"),
    "a scale of no shape": ("scales", torch.ones(()).half(), "m.scales' .* has not one scale for each of 16"),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_refused(what: str, tmp_path: Path) -> None:
    name, value, expected = BROKEN[what]
    stored: dict[str, torch.Tensor | None] = {**tensors(), f"m.{name}": value}
    with pytest.raises(CheckpointError) as error:
        read_model_facts(write(tmp_path, {key: part for key, part in stored.items() if part is not None}))
    message = f"{error.value} {error.value.hint}"
    assert re.search(expected, message), message


@pytest.mark.parametrize("name", ["scales", "codebooks"])
def test_what_is_not_a_number(name: str, tmp_path: Path) -> None:
    stored = tensors()
    stored[f"m.{name}"].fill_(float("nan"))
    with pytest.raises(FormatError, match="a scale or an element of a codebook is not finite"):
        translate_matrix([rows_of(write(tmp_path, stored), WeightSource("m.weight"))], F32, COLUMNS)
