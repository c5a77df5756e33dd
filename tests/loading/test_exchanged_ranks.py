"""Files by rank of which one has the name of another: tensors of the same shapes do not tell them apart."""

import json
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.safetensors import read_header
from appliance.checkpoint.sharded_state import file_name
from tests.e2e.served import make_random_model
from tests.loading.by_rank import prepared_from, stored_shares, write

TENSOR = "parallelism.tensor=2"
EVEN = {"vocab_size": 256, "intermediate_size": 64}  # which two ranks have in halves


def make_even_model(folder: Path) -> None:
    make_random_model(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | EVEN))
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if name in ("model.embed_tokens.weight", "lm_head.weight"):
            tensors[name] = tensor[: EVEN["vocab_size"]].copy()
        elif name.endswith(("gate_proj.weight", "up_proj.weight")):
            tensors[name] = tensor[: EVEN["intermediate_size"]].copy()
        elif name.endswith("down_proj.weight"):
            tensors[name] = tensor[:, : EVEN["intermediate_size"]].copy()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_file_of_another_rank_is_named(tmp_path: Path) -> None:
    model, state = tmp_path / "model", tmp_path / "state"
    model.mkdir()
    make_even_model(model)
    write(model, tmp_path, TENSOR)
    first, second = (state / file_name(rank, 0) for rank in range(2))
    shapes = [[(each.name, each.shape) for each in read_header(state, path.name).tensors] for path in (first, second)]
    assert shapes[0] == shapes[1]
    assert first.stat().st_size == second.stat().st_size
    assert len(list(stored_shares(prepared_from(state, tmp_path, TENSOR)))) == 2
    second.write_bytes(first.read_bytes())
    with pytest.raises(CheckpointError, match=f"{second.name}: is another file than was written under this name"):
        list(stored_shares(prepared_from(state, tmp_path, TENSOR)))
