"""Every GGUF block type against the gguf package's own dequantizer, on random blocks."""

import gguf
import numpy as np
import pytest

from appliance.catalog.formats import BF16, F32, STORAGES, WeightForm
from appliance.checkpoint.storage import BLOCKS
from appliance.kernels.layout import CanonicalWeight
from appliance.kernels.reference.weights import dequantize
from appliance.layers.spec import WeightSource
from appliance.loading.formats.groups import FormatError
from appliance.loading.formats.translate import BLOCK_READERS, StoredRows, translate_matrix

from .facts import tensor

ROWS, COLUMNS = 6, 512


def random_blocks(storage: str, seed: int = 0, largest: float = 0.02) -> np.ndarray:
    """Blocks of random bits with f16 scales up to a largest one, uint8 [ROWS, row bytes]."""
    block, size = BLOCKS[storage]
    generator = np.random.default_rng(seed)
    raw = generator.integers(0, 256, (ROWS, COLUMNS // block, size), dtype=np.uint8)
    for at in scale_positions(storage):
        scales = generator.uniform(largest / 20, largest, raw.shape[:2]).astype("<f2")
        raw[..., at : at + 2] = scales[..., None].view(np.uint8)
    if storage == "iq1_m":  # the highest bits of its f16, which make it less than 1/64, are in the last byte
        raw[..., -1] = raw[..., -1] & 15 | 0x20
    if storage == "mxfp4":
        raw[..., 0] = generator.integers(0, 252, raw.shape[:2])  # e8m0 whose values f32 holds
    if storage == "tq2_0":
        raw[..., :64] = 0  # two bits of three values
        for shift in range(0, 8, 2):
            raw[..., :64] |= generator.integers(0, 3, (*raw.shape[:2], 64), dtype=np.uint8) << shift
    return raw.reshape(ROWS, -1)


def scale_positions(storage: str) -> tuple[int, ...]:
    """Returns the offsets of a block's f16 values."""
    two = {"q4_1": (0, 2), "q5_1": (0, 2), "q4_k": (0, 2), "q5_k": (0, 2), "q2_k": (80, 82)}
    one = {"q3_k": (108,), "q6_k": (208,), "tq1_0": (52,), "tq2_0": (64,)}
    return () if storage == "iq1_m" else two.get(storage) or one.get(storage, (0,))


def stored(storage: str, raw: np.ndarray, source: WeightSource | None = None) -> StoredRows:
    facts = tensor("w", (ROWS, COLUMNS), storage, raw.nbytes)
    return StoredRows(facts, source or WeightSource("w"), lambda _: raw.reshape(-1))


def in_turn(raw: np.ndarray, bits: int) -> np.ndarray:
    """What dequantize_row_q1_0 and dequantize_row_q2_0 in ggml-quants.c compute."""
    blocks = raw.reshape(ROWS, -1, 18)
    codes = (blocks[..., 2:, None] >> np.arange(0, 8, bits)).reshape(*blocks.shape[:2], -1) & (1 << bits) - 1
    values = codes.astype(np.float32) * 2 - 1 if bits == 1 else codes.astype(np.float32) - 1
    return (values * blocks[..., :2].copy().view("<f2").astype(np.float32)).reshape(ROWS, -1)


def expected(storage: str, raw: np.ndarray) -> np.ndarray:
    if storage in ("q1_0", "q2_0"):  # which the gguf package of the tests does not dequantize yet
        return in_turn(raw, int(storage[1]))
    return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[storage.upper()])


def dequantized(weight: CanonicalWeight) -> np.ndarray:
    return dequantize(weight).numpy()


@pytest.mark.parametrize("storage", BLOCK_READERS)
def test_dequantizes_to_f32_exactly(storage: str) -> None:
    raw = random_blocks(storage)
    weight = translate_matrix([stored(storage, raw)], F32, COLUMNS)
    np.testing.assert_array_equal(weight.data, expected(storage, raw))


@pytest.mark.parametrize("storage", BLOCK_READERS)
def test_takes_its_catalogued_form_exactly(storage: str) -> None:
    raw = random_blocks(storage)
    catalogued = STORAGES[storage]
    assert catalogued.error == "exact"
    weight = translate_matrix([stored(storage, raw)], catalogued.form, COLUMNS)
    assert weight.layout == catalogued.form.layout
    assert (weight.offset is not None) == catalogued.form.has_offset
    # Symmetric forms add minus the middle of the codes in another order; both sides are exact in f32.
    np.testing.assert_array_equal(dequantized(weight), expected(storage, raw))


@pytest.mark.parametrize("storage", BLOCK_READERS)
def test_its_form_is_exact_for_subnormal_scales(storage: str) -> None:
    raw = random_blocks(storage, largest=2e-5)
    weight = translate_matrix([stored(storage, raw)], STORAGES[storage].form, COLUMNS)
    np.testing.assert_array_equal(dequantized(weight), expected(storage, raw))


@pytest.mark.parametrize("storage", [storage for storage in BLOCK_READERS if storage != "iq1_m"])
def test_a_scale_that_is_no_number_is_refused(storage: str) -> None:
    raw = random_blocks(storage)
    if storage == "mxfp4":
        raw[2, 0] = 255  # e8m0 has one NaN
    else:
        at = scale_positions(storage)[-1]
        raw[2, at : at + 2] = np.array([np.nan], "<f2").view(np.uint8)
    for form in (F32, STORAGES[storage].form):
        with pytest.raises(FormatError, match=r"is not (finite|a number)"):
            translate_matrix([stored(storage, raw)], form, COLUMNS)


def test_a_group_scale_beyond_f16_is_refused() -> None:
    raw = random_blocks("q6_k")
    raw[:, 208:210] = np.array([60000], "<f2").view(np.uint8)  # times -32, the offset that symmetric codes stand for
    with pytest.raises(FormatError, match="beyond the range of f16"):
        translate_matrix([stored("q6_k", raw)], STORAGES["q6_k"].form, COLUMNS)


def test_dequantizes_to_bf16_by_rounding_to_nearest() -> None:
    raw = random_blocks("q6_k")
    weight = translate_matrix([stored("q6_k", raw)], BF16, COLUMNS)
    widened = (weight.data.astype(np.uint32) << 16).view(np.float32)
    exact = expected("q6_k", raw)
    assert (np.abs(widened - exact) <= np.abs(exact) * 2.0**-8).all()


def test_joins_rows_and_undoes_the_head_permutation() -> None:
    first, second = random_blocks("q8_0", 1), random_blocks("q8_0", 2)
    permuted = WeightSource("w", "unpermute_heads", num_heads=1)
    joined = translate_matrix([stored("q8_0", first, permuted), stored("q8_0", second)], STORAGES["q8_0"].form, COLUMNS)
    exact = expected("q8_0", first)[[0, 2, 4, 1, 3, 5]]
    np.testing.assert_array_equal(dequantized(joined), np.concatenate((exact, expected("q8_0", second))))


def test_takes_a_slice_of_rows() -> None:
    raw = random_blocks("q4_k")
    weight = translate_matrix([stored("q4_k", raw, WeightSource("w", rows=(2, 5)))], F32, COLUMNS)
    np.testing.assert_array_equal(weight.data, expected("q4_k", raw)[2:5])


def test_refuses_a_form_that_cannot_hold_the_codes() -> None:
    with pytest.raises(FormatError, match="do not fit int4"):
        translate_matrix([stored("q5_0", random_blocks("q5_0"))], WeightForm("int4", 32, True), COLUMNS)
    with pytest.raises(FormatError, match="groups of 256 with sub-groups of 16 do not become int8 in groups of 32"):
        translate_matrix([stored("q6_k", random_blocks("q6_k"))], WeightForm("int8", 32), COLUMNS)
