"""Kept weights outlive the code that translated them: when a translation changes, formats.translate.VERSION is raised.

A failure here that was meant: raise the version, and write the new digests down.
"""

import hashlib

import numpy as np
import pytest

from appliance.catalog.formats import STORAGES, WeightForm
from appliance.checkpoint.facts import Storage
from appliance.checkpoint.storage import stored_bytes
from appliance.layers.rope import RopeSpec
from appliance.layers.spec import WeightSource
from appliance.loading.formats.translate import BLOCK_READERS, VERSION, StoredRows, translate_matrix
from appliance.loading.rope import rope_table

from .facts import tensor

WATCHED_VERSION = 4
ROWS, COLUMNS = 3, 512
DIGESTS = {
    "q4_0": "6d4277991aec9b49",
    "q4_1": "99f63e627acf7978",
    "q5_0": "b92ef564e597d51f",
    "q5_1": "17bbdab599cde394",
    "q8_0": "1adbce26f08e040e",
    "q2_k": "fc7285e7fbd5b0ba",
    "q3_k": "a704fdb9dac37842",
    "q4_k": "5602391dc1c7440b",
    "q5_k": "be02b653e2e4905f",
    "q6_k": "34e01aedc2ab5ccc",
    "iq4_nl": "ae95b47b516dfcf5",
    "iq4_xs": "a7e50f06eeba37d8",
    "iq1_s": "95abaf3df84652df",
    "iq1_m": "f973e7ad0d424a40",
    "iq2_xxs": "4be6f97a07cec9c0",
    "iq2_xs": "122f4d5490ca807b",
    "iq2_s": "74d68e4413766808",
    "iq3_xxs": "d20749494883c4fe",
    "iq3_s": "4e14ed87e6ef32e8",
    "q1_0": "f4135f563ccf5283",
    "q2_0": "95308d9093f37ede",
    "mxfp4": "acce20e700958253",
    "tq1_0": "76eaf9ef219c171a",
    "tq2_0": "8131cd749799f355",
}
ROUNDED = {
    "int8": "9c6e0d4640e55cab",
    "int8 in groups": "156716b810ff5f24",
    "int4": "ebaaf3eb45f2cf59",
    "bf16": "3b4f2ded10bf33a2",
}
CODES = {
    "int8_channel": "25f30d1a24b322bd",
    "int8_g128_zp": "2607ee8ad5e38c68",
    "int4_g32": "eb0c99af627b730e",
    "int4_channel_zp": "7dcfce791ab172d5",
}
ROPE = "52e8bc71993220af"


def digest(*arrays: np.ndarray | None) -> str:
    found = hashlib.sha256()
    for array in arrays:
        found.update(b"none" if array is None else np.ascontiguousarray(array).tobytes())
    return found.hexdigest()[:16]


def translated(storage: Storage, raw: np.ndarray, form: WeightForm) -> str:
    facts = tensor("w", (ROWS, COLUMNS), storage, raw.size)
    rows = StoredRows(facts, WeightSource("w"), lambda _: raw.reshape(-1))
    weight = translate_matrix([rows], form, COLUMNS)
    arrays = (weight.data, weight.scale, weight.offset)
    return digest(*arrays) if weight.sub_scale is None else digest(*arrays, weight.sub_scale, weight.sub_offset)


def of_blocks(storage: Storage) -> str:
    """Bytes that count up from 0 to 59 make every f16 in a block small and finite."""
    form = STORAGES[storage].form
    assert form is not None
    size = stored_bytes(storage, (ROWS, COLUMNS))
    return translated(storage, (np.arange(size) * 31 % 60).astype(np.uint8), form)


def of_codes(storage: Storage) -> str:
    """Packed codes and zero points, and scales of f16 ones."""
    form = STORAGES[storage].form
    assert form is not None
    groups = COLUMNS // (form.group_size or COLUMNS)
    raw = {
        "w": np.arange(ROWS * COLUMNS * form.element_bits // 8).astype(np.uint8) * np.uint8(37),
        "s": (np.arange(ROWS * groups) % 5 + 1).astype("<f2").view(np.uint8),
        "z": np.arange(groups * 4).astype(np.uint8) * np.uint8(11),
    }
    facts = tensor(
        "w",
        (ROWS, COLUMNS),
        storage,
        raw["w"].size,
        stored_name="m.weight_packed",
        scale=tensor("s", (ROWS, groups), "f16", raw["s"].size),
        zero_point=tensor("z", (1, groups), "i32", raw["z"].size) if storage.endswith("_zp") else None,
    )
    weight = translate_matrix([StoredRows(facts, WeightSource("w"), raw.__getitem__)], form, COLUMNS)
    return digest(weight.data, weight.scale, weight.offset)


def of_floats(form: WeightForm) -> str:
    values = ((np.arange(ROWS * COLUMNS) * 7919 % 1021).astype(np.float32) - 510) / 256
    return translated("f32", values.view(np.uint8), form)


FORMS = {
    "int8": WeightForm("int8"),
    "int8 in groups": WeightForm("int8", 32),
    "int4": WeightForm("int4", 32, has_offset=True),
    "bf16": WeightForm("bf16"),
}


def test_the_version_is_the_watched_one() -> None:
    assert VERSION == WATCHED_VERSION
    assert set(DIGESTS) == set(BLOCK_READERS)
    assert set(ROUNDED) == set(FORMS)


@pytest.mark.parametrize("storage", BLOCK_READERS)
def test_blocks(storage: Storage) -> None:
    assert of_blocks(storage) == DIGESTS[storage]


@pytest.mark.parametrize("storage", CODES)
def test_codes(storage: Storage) -> None:
    assert of_codes(storage) == CODES[storage]


@pytest.mark.parametrize("form", FORMS)
def test_rounding(form: str) -> None:
    assert of_floats(FORMS[form]) == ROUNDED[form]


def test_rotary_table() -> None:
    assert digest(rope_table(RopeSpec(4, 4.0), 2).data.round(5)) == ROPE
