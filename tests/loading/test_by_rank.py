"""Weights that are written by rank are those of the checkpoint, to the bit, and nothing else is taken for them."""

import errno
import json
import os
import random
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import load_file as torch_load_file

from appliance.base.errors import ApplianceError, SpecError
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.identity import checkpoint_identity
from appliance.checkpoint.read import read_model_facts
from appliance.checkpoint.safetensors import read_header
from appliance.checkpoint.sharded_state import INDEX, read_index
from appliance.loading import shard_writing
from appliance.loading.shard_writing import NotWrittenError, write_by_rank
from appliance.loading.stored_form import stored_names
from tests.e2e.served import make_random_model
from tests.loading.by_rank import SHAPES, check_equal, prepared_from, shares_of, stored_shares, write
from tests.models.gguf_files import GgmlType, architecture_of, write_gguf
from tests.models.stored.scheme import write_mxfp4, write_stored
from tests.models.tiny import FAMILIES, make_tiny
from tests.models.tiny_pooled import POOLED, make_pooled
from tests.parity.test_stored import SCHEMES

ALL_SHAPES = ("llama", "qwen2_moe", "deepseek3", "qwen3_next")
TENSOR, BY_RANK = "parallelism.tensor=2", "loading.load_format=sharded_state"
Model = Callable[[str], Path]


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Model:
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            make_tiny(name, made[name])
        return made[name]

    return get


@pytest.fixture(scope="module")
def written(model_of: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama that was written for two ranks."""
    folder = tmp_path_factory.mktemp("written")
    write(model_of("llama"), folder, TENSOR)
    return folder / "state"


@pytest.fixture
def state(written: Path, tmp_path: Path) -> Path:
    """The same, to be changed."""
    return Path(shutil.copytree(written, tmp_path / "state"))


def check(source: Path, folder: Path, *overrides: str, reading: tuple[str, ...] = ()) -> None:
    """Writes a checkpoint by rank, and compares the weights of every rank with those that are read from it. reading:
    overrides for the checkpoint alone."""
    before, _ = write(source, folder, *overrides, *reading)
    after = prepared_from(folder / "state", folder, *overrides, BY_RANK)
    assert after.plan.model.format == "sharded_state"
    assert after.plan.memory == before.plan.memory
    for made, stored in zip(shares_of(before), stored_shares(after), strict=True):
        assert list(made) == list(stored)
        for name in stored:
            check_equal(made[name], stored[name])
        names = stored_names(made)
        assert len(names) > 5
        for name in filter(made.is_matrix, names):
            last = made.shape(name)[0] - 1
            assert made.shape(name) == stored.shape(name)
            check_equal(made.piece(name, last, last + 1), stored.piece(name, last, last + 1))


@pytest.mark.parametrize(
    ("name", "shape"),
    [(name, "tensor") for name in FAMILIES if name not in ALL_SHAPES]
    + [(name, shape) for name in ALL_SHAPES for shape in SHAPES],
)
def test_they_are_those_of_the_checkpoint(name: str, shape: str, model_of: Model, tmp_path: Path) -> None:
    check(model_of(name), tmp_path, *SHAPES[shape])


@pytest.mark.parametrize("method", SCHEMES)
def test_codes_stay_as_they_are(method: str, tmp_path: Path) -> None:
    write_stored("llama", tmp_path / "model", SCHEMES[method])
    check(tmp_path / "model", tmp_path, TENSOR)


def test_experts_of_mxfp4(tmp_path: Path) -> None:
    write_mxfp4("gpt-oss", tmp_path / "model")
    check(tmp_path / "model", tmp_path, TENSOR)


@pytest.mark.parametrize("quantization", ["int8", "int4", "fp8", "bitsandbytes"])
def test_what_is_rounded_while_it_loads(quantization: str, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    make_random_model(tmp_path / "model", inner=128)
    check(tmp_path / "model", tmp_path, TENSOR, f"model.quantization={quantization}")


@pytest.mark.parametrize("name", ["pt", "streamed", "custom"])
def test_whatever_reads_the_checkpoint(name: str, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    make_random_model(model)
    if name == "pt":
        torch.save(torch_load_file(model / "model.safetensors"), model / "pytorch_model.bin")
        (model / "model.safetensors").unlink()
    reading = {
        "pt": (),
        "streamed": ("loading.load_format=runai_streamer",),
        "custom": (
            "loading={load_format: custom, loader_cls: tests.checkpoint.own_loaders.OfSafetensors}",
            "decoding.trust_plugins=true",
        ),
    }[name]
    check(model, tmp_path, TENSOR, reading=reading)
    assert not list((tmp_path / "state").glob("*.bin"))


@pytest.mark.parametrize("name", ["bert-mean", "qwen3-classify"])
def test_models_that_pool(name: str, tmp_path: Path) -> None:
    make_pooled(name, tmp_path / "model")
    check(tmp_path / "model", tmp_path, "model.max_model_len=32", f"model.task={POOLED[name].task}")


def test_modules_of_sentence_transformers(tmp_path: Path) -> None:
    """Their matrices are a rank's weights too, and what they say lies in folders."""
    model = tmp_path / "model"
    make_pooled("bert-mean", model)
    kinds = ("Transformer", "Pooling", "Dense")
    paths = ("", "1_Pooling", "2_Dense")
    modules = [
        {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for at, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    (model / "modules.json").write_text(json.dumps(modules))
    for path in paths[1:]:
        (model / path).mkdir()
    (model / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    activation = {"activation_function": "torch.nn.modules.activation.Tanh"}
    (model / "2_Dense/config.json").write_text(json.dumps({"in_features": 48, "out_features": 24, **activation}))
    dense = {"linear.weight": np.ones((24, 48), np.float32), "linear.bias": np.ones(24, np.float32)}
    save_file(dense, model / "2_Dense/model.safetensors")
    check(model, tmp_path, "model.max_model_len=32", "model.task=embed")
    (header,) = (read_header(tmp_path / "state", name) for name in read_index(tmp_path / "state").ranks[0].files)
    assert [tensor for tensor in header.tensors if tensor.shape == (24, 48)]


def test_tables_of_tensors_are_refused(tmp_path: Path) -> None:
    make_pooled("mpnet-mean", tmp_path / "model")
    with pytest.raises(NotWrittenError, match="tables of position biases are made at the start"):
        write(tmp_path / "model", tmp_path, "model.max_model_len=32", "model.task=embed")


def test_parts_are_of_bounded_size(model_of: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_writing, "PART_BYTES", 60_000)
    monkeypatch.setattr(shard_writing, "PIECE_ELEMENTS", 1000)
    check(model_of("llama"), tmp_path, TENSOR)
    index = read_index(tmp_path / "state")
    assert all(len(rank.files) > 1 for rank in index.ranks)


def test_writing_takes_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the size of the model: a few pieces of a weight."""
    monkeypatch.setattr(shard_writing, "PIECE_ELEMENTS", 1 << 14)
    (tmp_path / "model").mkdir()
    make_random_model(tmp_path / "model", inner=16_384)
    prepared = prepared_from(tmp_path / "model", tmp_path, TENSOR, "model.quantization=int8")
    tracemalloc.start()
    index = write_by_rank(prepared.plan, prepared.model, tmp_path / "state", lambda *_: None)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(size for rank in index.ranks for size in rank.files.values()) > 6_000_000
    assert most < 4_000_000


def test_a_rank_needs_no_file_of_another(state: Path, tmp_path: Path) -> None:
    """And it may run with longer sequences than it was written for."""
    prepared = prepared_from(state, tmp_path, TENSOR, "model.max_model_len=96")
    assert prepared.plan.model.format == "sharded_state"  # it is found by its index
    for path in state.glob("model-rank-1-*"):
        path.unlink()
    assert "model.embed_tokens.weight" in {tensor.name for tensor in prepared.model.tensors}
    share = next(stored_shares(prepared))
    assert all(share[name].data.size for name in share)


def test_a_changed_file_is_another_checkpoint(state: Path) -> None:
    facts = read_model_facts(state)
    before = checkpoint_identity(facts, None)
    path = next(state.glob("model-rank-1-*"))
    os.utime(path, ns=(1, 1))
    assert checkpoint_identity(facts, None) != before


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ((), "written for tensor: 2, and the plan has 1"),
        ((TENSOR, "parallelism.pipeline=2"), "written for pipeline: 1, and the plan has 2"),
        (
            (TENSOR, "model.quantization=int8"),
            "embedding weights were written as bf16, and the plan has int8 in groups",
        ),
        ((TENSOR, "lora={runtime_paths: [./]}"), "take no adapters"),
        ((TENSOR, "model.model_impl=transformers"), "the weights are sharded_state, and modelling code reads"),
        (
            (TENSOR, "loading.load_format=safetensors"),
            "load_format is safetensors, and the checkpoint is sharded_state",
        ),
        ((TENSOR, "loading.model_loader_extra_config={pattern: x}", BY_RANK), "sharded_state has no option 'pattern'"),
    ],
)
def test_another_plan_is_refused(overrides: tuple[str, ...], problem: str, written: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        prepared_from(written, tmp_path, *overrides)
    assert problem in caught.value.report()


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ((TENSOR, "parallelism.expert=true", "parallelism.enable_eplb=true"), "experts that move"),
        ((TENSOR, "parallelism.expert_placement_strategy=round_robin"), "for expert_placement_strategy: linear"),
    ],
)
def test_other_experts_are_refused(overrides: tuple[str, ...], problem: str, model_of: Model, tmp_path: Path) -> None:
    write(model_of("mixtral"), tmp_path, TENSOR)
    with pytest.raises(SpecError) as caught:
        prepared_from(tmp_path / "state", tmp_path, *overrides)
    assert problem in caught.value.report()


def test_a_head_of_the_checkpoint_and_a_draft_model_by_rank_are_refused(
    written: Path, model_of: Model, tmp_path: Path
) -> None:
    with pytest.raises(SpecError, match="this one was written by rank"):
        prepared_from(model_of("llama"), tmp_path, f"speculative.model={written}")
    with pytest.raises(SpecError) as caught:
        prepared_from(written, tmp_path, TENSOR, "speculative.method=mtp")
    assert "the head of mtp reads tensors of the checkpoint" in caught.value.report()


def test_other_weights_for_a_rank_are_refused(state: Path, tmp_path: Path) -> None:
    """Whatever made them others, as a later version might join weights in another way."""
    prepared = prepared_from(state, tmp_path, TENSOR)
    index = read_index(state)
    ranks = tuple(msgspec.structs.replace(rank, identity="0" * 64) for rank in index.ranks)
    (state / INDEX).write_bytes(msgspec.json.encode(msgspec.structs.replace(index, ranks=ranks, raw=b"")))
    with pytest.raises(CheckpointError, match="rank 0 of this plan takes other weights than those that appliance"):
        next(stored_shares(prepared))


def _gguf(folder: Path) -> Path:
    path = folder / "model.gguf"
    write_gguf(FAMILIES["llama"].config(), architecture_of("llama"), path, lambda *_: GgmlType.F32)
    return path


@pytest.mark.parametrize(
    ("source", "overrides", "problem"),
    [
        ("gguf", (), "each rank maps its rows of a GGUF file already"),
        ("written", (TENSOR,), "was written by rank already, for tensor: 2, pipeline: 1"),
        ("llama", ("loading.load_format=dummy",), "random weights are made at each start"),
        ("llama", ("lora={runtime_paths: [./]}",), "take no adapters"),
        ("llama", ("model.model_impl=transformers",), "modelling code that is not ours"),
        ("mixtral", (TENSOR, "parallelism.expert=true", "parallelism.enable_eplb=true"), "experts that move"),
    ],
)
def test_what_is_not_written(
    source: str, overrides: tuple[str, ...], problem: str, model_of: Model, written: Path, tmp_path: Path
) -> None:
    path = _gguf(tmp_path) if source == "gguf" else written if source == "written" else model_of(source)
    with pytest.raises(NotWrittenError, match=problem):
        write(path, tmp_path, *overrides)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("is_there", [False, True])
def test_what_breaks_off_leaves_nothing(
    is_there: bool, model_of: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared, state = prepared_from(model_of("llama"), tmp_path, TENSOR), tmp_path / "state"
    if is_there:
        state.mkdir()

    def interrupted(*_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_by_rank(prepared.plan, prepared.model, state, interrupted)
    assert state.exists() == is_there

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(NotWrittenError, match="No space left on device") as caught:
        write_by_rank(prepared.plan, prepared.model, state, lambda *_: None)
    assert caught.value.hint is not None
    assert "make room on its disk" in caught.value.hint
    assert list(state.iterdir() if is_there else ()) == []


def test_a_folder_with_files_is_not_written_to(model_of: Model, state: Path, tmp_path: Path) -> None:
    before = sorted(path.name for path in state.iterdir())
    with pytest.raises(NotWrittenError, match="is not empty"):
        write(model_of("llama"), tmp_path, TENSOR)
    assert sorted(path.name for path in state.iterdir()) == before


def _cut(state: Path) -> None:
    path = next(state.glob("model-rank-0-*"))
    os.truncate(path, path.stat().st_size - 8)


def _other_header(state: Path) -> None:
    path = next(state.glob("model-rank-0-*"))
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b'"F32"', b'"I32"', 1))


def _renamed(state: Path) -> None:
    raw = (state / INDEX).read_text()
    (state / INDEX).write_text(raw.replace("model-rank-0-part-0.safetensors", "../../etc/passwd"))


def _of_another_version(state: Path) -> None:
    raw = (state / INDEX).read_text()
    (state / INDEX).write_text(raw.replace('"version":1', '"version":2', 1))


def _with_fewer_ranks(state: Path) -> None:
    index = read_index(state)
    (state / INDEX).write_bytes(msgspec.json.encode(msgspec.structs.replace(index, ranks=index.ranks[:1], raw=b"")))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_cut, "bytes, and was written with"),
        (_other_header, "is not as it was written"),
        (_renamed, "names the file '../../etc/passwd'"),
        (_of_another_version, "is of version 2"),
        (_with_fewer_ranks, "has 1 ranks, and is for 2 x 1"),
        (lambda state: (state / INDEX).unlink(), "vLLM wrote them for kernels of its own, or writing was cut off"),
        (lambda state: next(state.glob("model-rank-0-*")).unlink(), "cannot be read: No such file"),
    ],
)
def test_what_is_broken_is_named(change: Callable[[Path], None], problem: str, state: Path, tmp_path: Path) -> None:
    change(state)
    with pytest.raises(CheckpointError, match=problem):
        list(stored_shares(prepared_from(state, tmp_path, TENSOR, BY_RANK)))


def test_a_checkpoint_is_not_taken_for_weights_by_rank(model_of: Model, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="the weights are not written by rank") as caught:
        prepared_from(model_of("llama"), tmp_path, TENSOR, BY_RANK)
    assert caught.value.hint is not None
    assert "appliance shard" in caught.value.hint


def test_an_index_of_a_stranger_is_read_or_refused(written: Path, tmp_path: Path) -> None:
    """Bytes of the index and of the headers change at random; what then loads has the sizes of the plan."""
    random_source, num_refused = random.Random(7), 0
    for number in range(60):
        state = Path(shutil.copytree(written, tmp_path / f"state-{number}"))
        path = state / INDEX if number % 2 else next(state.glob("model-rank-0-*"))
        raw = bytearray(path.read_bytes())
        for _ in range(random_source.randint(1, 3)):
            raw[random_source.randrange(min(len(raw), 20_000))] = random_source.randrange(256)
        path.write_bytes(raw)
        try:
            prepared = prepared_from(state, tmp_path, TENSOR, BY_RANK)
            for share in stored_shares(prepared):
                assert all(share[name].data.size for name in share)
        except ApplianceError:
            num_refused += 1
        shutil.rmtree(state)
    assert num_refused > 10
