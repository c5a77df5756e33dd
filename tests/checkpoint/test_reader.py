import gc
import os
from pathlib import Path

import numpy as np
import pytest

from appliance.checkpoint import CheckpointError, read_model_facts
from appliance.checkpoint.reader import open_tensors

from .files import write_folder
from .test_folder import CONFIG

ARRAYS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.arange(4, dtype=np.float16),
    "c": np.array([0x3F80, 0x4000], dtype=np.uint16),  # bf16 1.0 and 2.0
    "d": np.array([True, False]),
    "e": np.zeros((0, 4), np.float32),
}


def mapped_files() -> str:
    return Path("/proc/self/maps").read_text()


def opened_under(folder: Path) -> list[str]:
    """Returns the open descriptors of this folder only, as those of other tests come and go."""
    links = Path("/proc/self/fd").iterdir()
    # The listing's own descriptor is in the listing and gone when it is read, hence no strict resolution.
    return [str(target) for link in links if (target := link.resolve(strict=False)).is_relative_to(folder)]


def test_views_hold_the_stored_bytes(tmp_path: Path) -> None:
    facts = read_model_facts(write_folder(tmp_path, CONFIG, ARRAYS))
    with open_tensors(facts) as reader:
        for name, array in ARRAYS.items():
            assert reader.read(name).tobytes() == array.tobytes()
            view = reader.array(name)
            assert view.dtype == array.dtype
            assert np.array_equal(view, array)
            assert not view.flags.writeable
            assert not view.flags.owndata
            reader.will_need(name)


def test_closing_unmaps_and_views_outlive_it(tmp_path: Path) -> None:
    facts = read_model_facts(write_folder(tmp_path, CONFIG, ARRAYS))
    with open_tensors(facts) as reader:
        kept = reader.array("a")
        assert str(tmp_path) in mapped_files()
        assert opened_under(tmp_path)
    assert np.array_equal(kept, ARRAYS["a"])
    del kept
    gc.collect()
    assert str(tmp_path) not in mapped_files()
    assert opened_under(tmp_path) == []


def test_faults(tmp_path: Path) -> None:
    facts = read_model_facts(write_folder(tmp_path, CONFIG, ARRAYS))
    with open_tensors(facts) as reader, pytest.raises(CheckpointError, match="no tensor 'zz'"):
        reader.read("zz")
    weights = tmp_path / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 16)
    with open_tensors(facts) as reader, pytest.raises(CheckpointError, match="after the end of the file"):
        reader.read("b"), reader.read("c"), reader.read("d")
    weights.unlink()
    with open_tensors(facts) as reader, pytest.raises(CheckpointError, match="cannot be mapped"):
        reader.read("a")
