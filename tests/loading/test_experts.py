"""Weights of experts: from a tensor each or from stacks, whole and in pieces, and never more read than asked."""

import json
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from safetensors.numpy import save_file

from appliance.catalog.formats import F32
from appliance.checkpoint.facts import ModelFacts
from appliance.checkpoint.read import read_model_facts
from appliance.checkpoint.reader import TensorReader, open_tensors
from appliance.layers.spec import WeightSource
from appliance.loading.formats.groups import FormatError
from appliance.loading.formats.translate import StoredRows
from appliance.loading.inventory import WeightError, take_inventory
from appliance.models.describe import describe

from .formats.facts import tensor
from .test_weights import CONFIG, LAYER, Tensors, plan, tensors, weights_of

NUM_EXPERTS, WIDTH = 5, 6
BLOCK = f"{LAYER}block_sparse_moe."
MIXTRAL = CONFIG | {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "intermediate_size": WIDTH,
    "num_local_experts": NUM_EXPERTS,
    "num_experts_per_tok": 2,
}


def stacks() -> dict[str, np.ndarray]:
    """w1 (gates), w3 (ups) and w2 (downs) of all experts."""
    rng = np.random.default_rng(1)
    shapes = {"w1": (WIDTH, 8), "w3": (WIDTH, 8), "w2": (8, WIDTH)}
    return {name: rng.normal(size=(NUM_EXPERTS, *shape)).astype(np.float32) for name, shape in shapes.items()}


def saved(folder: Path, *, is_stacked: bool) -> ModelFacts:
    weights: Tensors = {name: value for name, value in tensors().items() if ".mlp." not in name}
    weights[f"{BLOCK}gate.weight"] = np.zeros((NUM_EXPERTS, 8), np.float32)
    for name, stack in stacks().items():
        if is_stacked:
            weights[f"{BLOCK}experts.{name}.weight"] = stack
        else:
            weights |= {f"{BLOCK}experts.{e}.{name}.weight": stack[e] for e in range(NUM_EXPERTS)}
    (folder / "config.json").write_text(json.dumps(MIXTRAL))
    save_file(weights, folder / "model.safetensors")
    return read_model_facts(folder)


@pytest.mark.parametrize("is_stacked", [False, True])
def test_experts_are_the_rows_of_one_weight(tmp_path: Path, is_stacked: bool) -> None:
    facts, stored = saved(tmp_path, is_stacked=is_stacked), stacks()
    with open_tensors(facts) as reader:
        weights = weights_of(facts, reader)
        both, down = weights["layers.0.experts.gate+up"], weights["layers.0.experts.down"]
    expected = np.concatenate((stored["w1"], stored["w3"]), axis=1).reshape(-1, 8)
    np.testing.assert_array_equal(both.data, expected)
    np.testing.assert_array_equal(down.data, stored["w2"].reshape(-1, WIDTH))


@pytest.mark.parametrize("is_stacked", [False, True])
@pytest.mark.parametrize("step", [1, 4, 7, 16, 60])
def test_pieces_are_those_of_the_whole(tmp_path: Path, is_stacked: bool, step: int) -> None:
    facts, name = saved(tmp_path, is_stacked=is_stacked), "layers.0.experts.gate+up"
    seen: list[tuple[int, int]] = []
    with open_tensors(facts) as reader:
        weights = weights_of(facts, reader, progress=lambda *at: seen.append(at))
        whole = weights[name].data
        rows, columns = weights.shape(name)
        pieces = [weights.piece(name, start, min(start + step, rows)).data for start in range(0, rows, step)]
    assert (rows, columns) == (NUM_EXPERTS * 2 * WIDTH, 8)
    np.testing.assert_array_equal(np.concatenate(pieces), whole)
    assert seen[-1][0] == 2 * NUM_EXPERTS * 2 * WIDTH * 8 * 4  # the whole, and its pieces


def test_a_piece_reads_the_experts_that_it_has_rows_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts, asked = saved(tmp_path, is_stacked=False), []
    read = TensorReader.read

    def watched(reader: TensorReader, name: str) -> np.ndarray:
        asked.append(name.removeprefix(f"{BLOCK}experts."))
        return read(reader, name)

    with open_tensors(facts) as reader:
        weights = weights_of(facts, reader)
        monkeypatch.setattr(TensorReader, "read", watched)
        weights.piece("layers.0.experts.gate+up", 2 * WIDTH + 1, 3 * WIDTH + 1)
    assert asked == ["1.w1.weight", "1.w3.weight"]


def test_experts_stored_unlike_each_other_are_refused(tmp_path: Path) -> None:
    facts = saved(tmp_path, is_stacked=False)
    odd = f"{BLOCK}experts.2.w2.weight"
    changed = replace(
        facts, tensors=tuple(replace(each, storage="bf16") if each.name == odd else each for each in facts.tensors)
    )
    precision = plan(changed)
    forms = {"bf16": "bf16", "f32": "f32"}
    weights = tuple(
        replace(each, layout=forms[each.storage] if each.role == "linear" else "f32") for each in precision.weights
    )
    with pytest.raises(WeightError, match=r"layers\.0\.experts\.down is one weight, and its parts are stored unlike"):
        take_inventory(describe(changed, 16), changed, replace(precision, weights=weights))


def rows_of(values: np.ndarray, source: WeightSource) -> np.ndarray:
    facts = tensor("t", values.shape, "f32", values.nbytes)
    rows = StoredRows(facts, source, lambda _: values.view(np.uint8).reshape(-1))
    assert not rows.is_plain(F32.layout) or source.transform == "none"
    return rows.values(0, len(rows))


def test_matrices_of_a_stack_may_be_transposed_and_alternate() -> None:
    """As gpt-oss has its gates and ups: [E, in, 2 * out], the columns of both in turn."""
    values = np.arange(2 * 3 * 8, dtype=np.float32).reshape(2, 3, 8)
    gates = rows_of(values, WeightSource("t", "transpose", rows=(0, 8, 2), index=1))
    np.testing.assert_array_equal(gates, values[1].T[0::2])
    ups = rows_of(values, WeightSource("t", "transpose", rows=(1, 8, 2), index=1))
    np.testing.assert_array_equal(ups, values[1].T[1::2])
    np.testing.assert_array_equal(rows_of(values, WeightSource("t", rows=(1, 3), index=0)), values[0, 1:3])


def test_a_matrix_that_a_stack_does_not_have_is_refused() -> None:
    with pytest.raises(FormatError, match="matrix 2 is asked of a tensor of the shape"):
        rows_of(np.zeros((2, 3, 4), np.float32), WeightSource("t", index=2))
