"""Matrices as the methods of quantization store them, read from files: the values are their library's, bit for bit."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from appliance.catalog.formats import F32, STORAGES
from appliance.checkpoint.facts import TensorFacts
from appliance.checkpoint.read import read_model_facts
from appliance.checkpoint.reader import open_tensors
from appliance.kernels.reference.weights import dequantize
from appliance.layers.spec import WeightSource
from appliance.loading.formats.groups import FormatError
from appliance.loading.formats.translate import StoredRows, translate_matrix
from tests.checkpoint.files import write_folder
from tests.checkpoint.test_folder import CONFIG
from tests.models.stored.bitsandbytes import eight_bits, four_bits
from tests.models.stored.floats import compressed, e4m3, nvfp4
from tests.models.stored.hqq import hqq
from tests.models.stored.integers import awq, gptq
from tests.models.stored.scheme import Packed, Scheme
from tests.models.stored.torchao import torchao

ROWS, COLUMNS = 96, 512
FLOAT8 = {"num_bits": 8, "type": "float"}
FLOAT4 = {"num_bits": 4, "type": "float", "strategy": "group"}
BLOCK = {"strategy": "block", "block_structure": [128, 128]}
SCHEMES = {
    "gptq 2": gptq(2, 64),
    "gptq 2, asymmetric": gptq(2, 32, symmetric=False),
    "gptq 3": gptq(3, 128),
    "gptq 3, asymmetric": gptq(3, 32, symmetric=False),
    "gptq 4": gptq(4, 128),
    "gptq 4, one group": gptq(4, -1),
    "gptq 4, asymmetric": gptq(4, 32, symmetric=False),
    "gptq 8": gptq(8, 128),
    "gptq 8, asymmetric": gptq(8, -1, symmetric=False),
    "gptq v2": gptq(4, 64, symmetric=False, version=2),
    "gptq act-order": gptq(4, 32, ordered=True),
    "gptq act-order, 3 bits, asymmetric": gptq(3, 64, symmetric=False, ordered=True),
    "awq": awq(128),
    "awq, one group": awq(-1),
    "hqq 4": hqq(4, 64),
    "hqq 8": hqq(8, 128),
    "hqq 2": hqq(2, 16),
    "hqq 3": hqq(3, 64),
    "hqq 4 down the rows": hqq(4, 32, axis=0),
    "hqq 3 down the rows": hqq(3, 64, axis=0),
    "bitsandbytes nf4": four_bits("nf4"),
    "bitsandbytes nf4, nested": four_bits("nf4", nested=True),
    "bitsandbytes nf4, long blocks": four_bits("nf4", 512),
    "bitsandbytes fp4, nested": four_bits("fp4", 128, nested=True),
    "bitsandbytes int8": eight_bits(),
    "torchao int8": torchao("int8"),
    "torchao e4m3": torchao("e4m3"),
    "fp8 by matrix": e4m3("matrix"),
    "fp8 by row": e4m3("row"),
    "fp8 by block": e4m3("block"),
    "fp8, static activations": e4m3("matrix", static=True),
    "fbgemm_fp8": e4m3("row", "fbgemm_fp8"),
    "modelopt FP8": e4m3("matrix", "modelopt"),
    "modelopt NVFP4": nvfp4(),
    "compressed-tensors e4m3 by matrix": compressed("float-quantized", "f8_channel", FLOAT8 | {"strategy": "tensor"}),
    "compressed-tensors e4m3 by row": compressed("float-quantized", "f8_channel", FLOAT8 | {"strategy": "channel"}),
    "compressed-tensors e4m3 by block": compressed("float-quantized", "f8_g128", FLOAT8 | BLOCK),
    "compressed-tensors NVFP4": compressed("nvfp4-pack-quantized", "nvfp4", FLOAT4 | {"group_size": 16}),
    "compressed-tensors MXFP4": compressed("mxfp4-pack-quantized", "mxfp4", FLOAT4 | {"group_size": 32}),
}
Read = tuple[Path, TensorFacts, torch.Tensor]


def read(scheme: Scheme, root: Path, num_rows: int = ROWS) -> Read:
    matrix = torch.randn(num_rows, COLUMNS, generator=torch.Generator().manual_seed(len(scheme.storage))) * 0.02 + 0.003
    parts, values = scheme.pack(matrix)
    write_folder(root, CONFIG | {"quantization_config": scheme.config})
    tensors = {f"m.{name}": part.contiguous() for name, part in parts.items()}
    save_file(tensors | {"norm.weight": torch.ones(4)}, root / "model.safetensors")
    facts = read_model_facts(root)
    found = {tensor.name: tensor for tensor in facts.tensors}
    assert found.keys() == {"m.weight", "norm.weight"}
    return root, found["m.weight"], values


@pytest.fixture(scope="module", params=SCHEMES)
def matrix(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Read:
    return read(SCHEMES[request.param], tmp_path_factory.mktemp("stored"))


def rows_of(matrix: Read, source: WeightSource | None = None) -> StoredRows:
    with open_tensors(read_model_facts(matrix[0])) as reader:
        return StoredRows(matrix[1], source or WeightSource("m.weight"), reader.read)


def assert_same(found: np.ndarray, expected: torch.Tensor) -> None:
    """To the bit, in the type in which the library computes."""
    assert torch.equal(torch.from_numpy(found).to(expected.dtype), expected)


@pytest.mark.parametrize("name", SCHEMES)
def test_headers_say_what_it_is(name: str, tmp_path: Path) -> None:
    _, tensor, _ = read(SCHEMES[name], tmp_path)
    assert (tensor.shape, tensor.storage) == ((ROWS, COLUMNS), SCHEMES[name].storage)


def test_values(matrix: Read) -> None:
    assert_same(translate_matrix([rows_of(matrix)], F32, COLUMNS).data, matrix[2])


def test_canonical_form(matrix: Read) -> None:
    """What kernels get stands for the same values, to the bit; where the form is f16, for the library's f16."""
    form = STORAGES[matrix[1].storage].form
    assert form is not None
    weight = translate_matrix([rows_of(matrix)], form, COLUMNS)
    assert_same(dequantize(weight).numpy(), matrix[2].half() if form.layout == "f16" else matrix[2])


def test_pieces_and_slices(matrix: Read) -> None:
    form = STORAGES[matrix[1].storage].form
    assert form is not None
    piece = translate_matrix([rows_of(matrix)], form, COLUMNS, 16, 48)
    whole = dequantize(translate_matrix([rows_of(matrix)], form, COLUMNS)).numpy()
    np.testing.assert_array_equal(dequantize(piece).numpy(), whole[16:48])
    cut = rows_of(matrix, WeightSource("m.weight", rows=(5, 90, 3)))
    assert_same(translate_matrix([cut], F32, COLUMNS).data, matrix[2][5:90:3])
    heads = rows_of(matrix, WeightSource("m.weight", "unpermute_heads", num_heads=4))
    order = np.arange(ROWS).reshape(4, -1, 2).swapaxes(1, 2).reshape(-1)
    assert_same(translate_matrix([heads], F32, COLUMNS).data, matrix[2][order])


NAN = float("nan")
NOT_NUMBERS = {
    "fp8 codes": (e4m3("block"), "weight", NAN, "a code of e4m3 is not a number"),
    "fp8 scales": (e4m3("row"), "weight_scale_inv", NAN, "a scale is not finite"),
    "nvfp4 scales": (nvfp4(), "weight_scale", NAN, "a code of e4m3 is not a number"),
    "nvfp4's whole": (nvfp4(), "weight_scale_2", NAN, "a scale is not finite"),
    "nf4 scales": (four_bits("nf4"), "weight.absmax", NAN, "a scale is not finite"),
    "nf4 scales of scales": (four_bits("nf4", nested=True), "weight.nested_absmax", NAN, "a scale is not finite"),
    "nf4's map": (four_bits("nf4"), "weight.quant_map", 0.5, "quant_map is not the map of nf4"),
    "int8 scales": (eight_bits(), "SCB", NAN, "a scale is not finite"),
    "hqq zeros": (hqq(4, 64), "zero", NAN, "a scale is not finite"),
    "awq scales": (awq(128), "scales", NAN, "a scale is not finite"),
}


@pytest.mark.parametrize("what", NOT_NUMBERS)
def test_what_is_not_a_number_is_refused(what: str, tmp_path: Path) -> None:
    scheme, part, value, message = NOT_NUMBERS[what]

    def pack(matrix: torch.Tensor) -> Packed:
        parts, values = scheme.pack(matrix)
        changed = parts[part].float().contiguous()
        changed.view(-1)[0] = value
        return parts | {part: changed.to(parts[part].dtype)}, values

    matrix = read(Scheme(scheme.config, scheme.storage, pack), tmp_path)
    with pytest.raises(FormatError, match=message):
        translate_matrix([rows_of(matrix)], F32, COLUMNS)


BROKEN = {
    "scales": ("scales", torch.tensor(float("nan")), "a scale is not finite"),
    "zero points": ("qzeros", torch.tensor(0), "a zero point is not 8, and the config says that"),
    "order": ("g_idx", torch.tensor(1), "g_idx is not in the order of its columns, and the config"),
    "groups": ("g_idx", torch.tensor(9), "g_idx names groups from 0 to 9 of 4"),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_broken_data_of_gptq_is_refused(what: str, tmp_path: Path) -> None:
    part, value, message = BROKEN[what]
    scheme = gptq(4, 128)

    def pack(matrix: torch.Tensor) -> Packed:
        parts, values = scheme.pack(matrix)
        parts[part] = parts[part].clone(memory_format=torch.contiguous_format)
        parts[part].reshape(-1)[3] = value
        return parts, values

    matrix = read(Scheme(scheme.config, scheme.storage, pack), tmp_path)
    with pytest.raises(FormatError, match=message):
        translate_matrix([rows_of(matrix)], F32, COLUMNS)


@pytest.mark.parametrize("rows", [None, (0, 20), (4, 24)])
def test_columns_of_each_part_become_rows(matrix: Read, rows: tuple[int, int] | None) -> None:
    """Whatever the matrix is stored as: such a matrix is dense from then on."""
    turned = rows_of(matrix, WeightSource("m.weight", "transpose_parts", rows=rows, num_parts=4))
    start, stop = rows or (0, 24)
    expected = matrix[2].reshape(4, 24, COLUMNS)[:, start:stop].swapaxes(1, 2).reshape(4 * COLUMNS, stop - start)
    assert not turned.is_quantized
    assert_same(turned.values(0, len(turned)), expected)
    assert_same(turned.values(COLUMNS - 3, COLUMNS + 5), expected[COLUMNS - 3 : COLUMNS + 5])
    translated = translate_matrix([turned], F32, stop - start, 100, 1100)
    assert_same(translated.data, expected[100:1100])


def test_columns_of_whole_blocks_stay_codes(tmp_path: Path) -> None:
    """The keys that a latent is expanded to, in DeepSeek's FP8: each head's part, transposed."""
    matrix = read(e4m3("block"), tmp_path, 512)
    turned = rows_of(matrix, WeightSource("m.weight", "transpose_parts", rows=(0, 128), num_parts=2))
    form = STORAGES["f8_g128"].form
    assert form is not None
    expected = matrix[2].reshape(2, 256, COLUMNS)[:, :128].swapaxes(1, 2).reshape(2 * COLUMNS, 128)
    assert turned.is_quantized
    assert_same(dequantize(translate_matrix([turned], form, 128)).numpy(), expected)
    assert_same(dequantize(translate_matrix([turned], form, 128, 500, 700)).numpy(), expected[500:700])
    odd = rows_of(matrix, WeightSource("m.weight", "transpose_parts", rows=(64, 192), num_parts=2))
    assert not odd.is_quantized
    with pytest.raises(FormatError, match="not rounded to f8"):
        translate_matrix([odd], form, 128)
    assert not rows_of(matrix, WeightSource("m.weight", "transpose_parts", rows=(0, 256, 2), num_parts=2)).is_quantized


# Digests of what the libraries made of these tensors on a CPU: functional.dequantize_4bit of bitsandbytes 0.50.2, and
# dequantize() of the tensor subclasses of torchao 0.18.
LIBRARIES: dict[str, str] = {
    "bitsandbytes nf4": "886c9c31d9ad15ef",
    "bitsandbytes nf4, nested": "a62d494ae2ed3265",
    "bitsandbytes nf4, long blocks": "2ae8c37221d09f90",
    "bitsandbytes fp4, nested": "bb40e3af09d667fa",
    "torchao int8": "c9c75b3fb2c1af3d",
    "torchao e4m3": "a3c818a4027829fa",
}


@pytest.mark.parametrize("name", LIBRARIES)
def test_the_libraries_themselves_make_the_same(name: str) -> None:
    matrix = torch.randn(96, 512, generator=torch.Generator().manual_seed(7)) * 0.02 + 0.003
    _, values = SCHEMES[name].pack(matrix)
    assert hashlib.sha256(values.contiguous().numpy().tobytes()).hexdigest()[:16] == LIBRARIES[name]


def test_rows_of_length_one(matrix: Read) -> None:
    stored = matrix[2].float().numpy()
    expected = stored / np.sqrt(np.square(stored).sum(axis=1, keepdims=True))
    rows = translate_matrix([rows_of(matrix, WeightSource("m.weight", "unit_rows"))], F32, COLUMNS).data
    tolerance = 1e-6 if matrix[2].dtype is torch.float32 else 1e-2  # the library rounds what it reads
    np.testing.assert_allclose(rows, expected, rtol=tolerance, atol=1e-7)
