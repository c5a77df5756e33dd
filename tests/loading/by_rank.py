"""Checkpoints that are written by rank, and the weights of each rank from both."""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import numpy as np

from appliance.checkpoint.sharded_state import ShardedIndex
from appliance.kernels.layout import CanonicalWeight
from appliance.loading.decoder import planned_decoder
from appliance.loading.model import tensor_source
from appliance.loading.shard_writing import shares, write_by_rank
from appliance.loading.stored_form import Planned
from appliance.loading.stored_share import StoredShare, open_share
from appliance.loading.weights import DecoderWeights
from appliance.plan.prepare import Prepared, prepare
from tests.e2e.served import make_random_model
from tests.engine.test_rank_group import machine_with

SPEC = """
api_version: appliance/v1
kind: Deployment
name: tiny
model: {{source: {source}, max_model_len: 128, skip_tokenizer_init: true}}
hardware: {{num_threads: 1}}
scheduler: {{max_num_seqs: 6, max_num_batched_tokens: 48}}
"""
SHAPES = {
    "one": (),
    "tensor": ("parallelism.tensor=2",),
    "stages": ("parallelism.pipeline=2",),
    "both": ("parallelism.tensor=2", "parallelism.pipeline=2"),
}


def random_spec(folder: Path) -> Path:
    """Writes a random model, and a spec that names it."""
    (folder / "model").mkdir()
    make_random_model(folder / "model")
    spec = folder / "spec.yaml"
    spec.write_text(SPEC.format(source=folder / "model"))
    return spec


def prepared_from(source: Path, folder: Path, *overrides: str) -> Prepared:
    """Plans for a machine with as many cores as four ranks need. folder: of the spec."""
    spec = folder / "spec.yaml"
    spec.write_text(SPEC.format(source=source))
    return prepare(spec, overrides, machine_with(4, folder), to_run=False)


def write(source: Path, folder: Path, *overrides: str) -> tuple[Prepared, ShardedIndex]:
    """Writes the checkpoint of a folder by rank into `folder / "state"`."""
    prepared = prepared_from(source, folder, *overrides)
    return prepared, write_by_rank(prepared.plan, prepared.model, folder / "state", lambda *_: None)


def shares_of(prepared: Prepared) -> Iterator[Planned]:
    """The weights of each rank, as they are read from a checkpoint."""
    plan, decoder = prepared.plan, planned_decoder(prepared.plan, prepared.model)
    with tensor_source(plan, prepared.model, decoder.described) as reader:
        whole = DecoderWeights(decoder.compiled, decoder.inventory, reader, plan.model.max_model_len)
        yield from (share for _, share in shares(plan, decoder, whole))


def stored_shares(prepared: Prepared) -> Iterator[StoredShare]:
    """The same, as they are read from what was written."""
    for rank, planned in enumerate(shares_of(prepared)):
        with open_share(prepared.model, planned, rank) as share:
            yield share


def check_equal(one: CanonicalWeight, other: CanonicalWeight) -> None:
    for field in fields(CanonicalWeight):
        own, theirs = getattr(one, field.name), getattr(other, field.name)
        if isinstance(own, np.ndarray):
            assert own.dtype == theirs.dtype
            np.testing.assert_array_equal(own.view(np.uint8), theirs.view(np.uint8))
        else:
            assert own == theirs, field.name
