"""Codes with their own scales against the compressed-tensors library, which wrote them and takes them back."""

from typing import Any, get_args

import numpy as np
import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams

from appliance.catalog.formats import F32, STORAGES
from appliance.checkpoint.facts import Storage
from appliance.layers.spec import WeightSource
from appliance.loading.formats.groups import FormatError
from appliance.loading.formats.translate import StoredRows, translate_matrix

from .facts import tensor
from .test_blocks import dequantize

ROWS, COLUMNS = 22, 256  # rows that fill no word of zero points
_OTHERS = ("order", "spread")  # of other libraries
STORED = [name for name in get_args(Storage) if name.startswith(("int4", "int8")) and not name.endswith(_OTHERS)]
TYPES: dict[torch.dtype, Storage] = {
    torch.int8: "i8", torch.int32: "i32", torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32",
}  # fmt: skip


def compress(storage: str, strategy: str | None = None, packed: bool | None = None) -> tuple[dict[str, Any], Any]:
    """Returns the library's tensors of a random matrix, and its own f32 of them. By default, int8 rows are unpacked."""
    bits, _, group = storage.removesuffix("_zp").removeprefix("int").partition("_")
    size = None if group == "channel" else int(group.removeprefix("g"))
    weights = QuantizationArgs(
        num_bits=int(bits),
        symmetric=not storage.endswith("_zp"),
        strategy=strategy or ("channel" if size is None else "group"),
        group_size=size,
    )
    generator = torch.Generator().manual_seed(len(storage))
    matrix = torch.randn(ROWS, COLUMNS, generator=generator) * 0.02 + 0.004
    groups = matrix.reshape(1, -1) if strategy == "tensor" else matrix.reshape(ROWS, -1, size or COLUMNS)
    scale, zero_point = calculate_qparams(groups.amin(-1), groups.amax(-1), weights)
    tensors = {"weight": matrix, "weight_scale": scale.bfloat16(), "weight_zero_point": zero_point}
    is_packed = bits == "4" or size is not None if packed is None else packed
    library = BaseCompressor.get_value_from_registry("pack-quantized" if is_packed else "naive-quantized")
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    compressed = library.compress(tensors, scheme)
    widened = compressed | {"weight_scale": compressed["weight_scale"].float()}
    return compressed, library.decompress(widened, scheme)["weight"].float().numpy()


def stored(storage: str, tensors: dict[str, Any], source: WeightSource | None = None) -> StoredRows:
    facts = {
        name: tensor(
            "w" if name in ("weight", "weight_packed") else name,
            tuple(each.shape),
            TYPES[each.dtype],
            each.nbytes,
            stored_name=f"m.{name}",
        )
        for name, each in tensors.items()
        if name != "weight_shape"
    }
    codes = facts.get("weight_packed") or facts["weight"]
    whole = tensor(
        "w",
        (ROWS, COLUMNS),
        storage,
        codes.size_bytes,
        stored_name=codes.stored_name,
        scale=facts["weight_scale"],
        zero_point=facts.get("weight_zero_point"),
    )
    raw = {facts[name].name: tensors[name].reshape(-1).view(torch.uint8).numpy() for name in facts}
    return StoredRows(whole, source or WeightSource("w"), raw.__getitem__)


@pytest.mark.parametrize("storage", STORED)
def test_dequantizes_to_f32(storage: str) -> None:
    tensors, expected = compress(storage)
    found = translate_matrix([stored(storage, tensors)], F32, COLUMNS).data
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("storage", STORED)
def test_takes_its_catalogued_form(storage: str) -> None:
    tensors, expected = compress(storage)
    form = STORAGES[storage].form
    assert form is not None
    weight = translate_matrix([stored(storage, tensors)], form, COLUMNS)
    assert weight.layout == form.layout
    assert weight.scale is not None
    assert weight.scale.dtype.itemsize == form.scale_bytes
    assert (weight.offset is not None) == form.has_offset
    largest = 2.0 ** (form.element_bits + 1) * np.abs(weight.scale.astype(np.float32)).max()
    bound = 1e-6 if STORAGES[storage].error == "exact" else 2.0**-11
    np.testing.assert_allclose(dequantize(weight), expected, atol=bound * largest, rtol=0)


@pytest.mark.parametrize("storage", ["int4_g64_zp", "int4_channel_zp", "int8_g32_zp", "int8_channel"])
def test_pieces_slices_and_permuted_rows(storage: str) -> None:
    tensors, expected = compress(storage)
    piece = translate_matrix([stored(storage, tensors)], F32, COLUMNS, 3, 13)
    np.testing.assert_allclose(piece.data, expected[3:13], rtol=1e-6, atol=1e-8)
    cut = stored(storage, tensors, WeightSource("w", rows=(5, 19)))
    np.testing.assert_allclose(translate_matrix([cut], F32, COLUMNS).data, expected[5:19], rtol=1e-6, atol=1e-8)
    order = np.arange(ROWS).reshape(-1, 2).T.reshape(-1)
    permuted = stored(storage, tensors, WeightSource("w", "unpermute_heads", num_heads=1))
    np.testing.assert_allclose(translate_matrix([permuted], F32, COLUMNS).data, expected[order], rtol=1e-6, atol=1e-8)


def test_one_scale_of_all_rows() -> None:
    tensors, expected = compress("int8_channel", strategy="tensor")
    assert tensors["weight_scale"].numel() == 1
    found = translate_matrix([stored("int8_channel", tensors)], F32, COLUMNS).data
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


def test_int8_rows_that_are_packed() -> None:
    tensors, expected = compress("int8_channel", packed=True)
    assert "weight_packed" in tensors
    found = translate_matrix([stored("int8_channel", tensors)], F32, COLUMNS).data
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


def test_refuses_scales_that_are_not_finite() -> None:
    tensors, _ = compress("int8_channel")
    tensors["weight_scale"][4] = float("nan")
    with pytest.raises(FormatError, match="not finite"):
        translate_matrix([stored("int8_channel", tensors)], F32, COLUMNS)


def test_refuses_to_transpose() -> None:
    tensors, _ = compress("int8_channel")
    with pytest.raises(FormatError, match="cannot be transposed"):
        stored("int8_channel", tensors, WeightSource("w", "transpose"))
