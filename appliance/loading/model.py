"""Loads a planned model: the family's decoder, its program and its weights, bound by a kernel set."""

import functools
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from appliance.base.hashing import sha256_json
from appliance.checkpoint.facts import ModelFacts
from appliance.checkpoint.identity import checkpoint_identity
from appliance.checkpoint.opening import open_source
from appliance.checkpoint.reader import TensorSource
from appliance.checkpoint.streamed import StreamedReader
from appliance.kernels.execution import Execution
from appliance.kernels.interface import Executable, KernelSet, Lending, MovesExperts
from appliance.kernels.layout import CanonicalWeight, WeightPieces
from appliance.kernels.packed_cache import MIN_BYTES, SPARE_BYTES, PackedCache
from appliance.kernels.reports import WeightsReport
from appliance.kernels.stage_inputs import StageInputs
from appliance.layers.adapters import Wanted, with_adapters
from appliance.layers.program import CompiledDecoder
from appliance.loading.base_weights import BaseWeights
from appliance.loading.decoder import PlannedDecoder, planned_decoder
from appliance.loading.inventory import InventoryItem
from appliance.loading.moved_experts import MovedExperts
from appliance.loading.random_tensors import RandomTensors
from appliance.loading.sharded_weights import ShardedWeights, share_of
from appliance.loading.stored_share import open_share
from appliance.loading.updates import OtherWeights
from appliance.loading.weights import DecoderWeights, Progress
from appliance.models.adapter_places import AdapterPlaces
from appliance.models.adapters import place_filter, trained_weights
from appliance.models.describe import Described
from appliance.plan.types import EnginePlan
from appliance.program.operators import StepProgram

ReadWeights = Callable[[], AbstractContextManager[Mapping[str, CanonicalWeight]]]


class LoadedModel(NamedTuple):
    """A bound model. parts: the rows of logical weights that adapters change, where a rank has some only. read_weights:
    opens the checkpoint again. stage: what a stage of it sees of a step. source: of other weights for it."""

    executable: Executable
    weights: WeightsReport
    adapters: AdapterPlaces | None = None  # None: the plan has no places for adapters
    parts: Mapping[str, tuple[int, int]] = MappingProxyType({})
    read_weights: ReadWeights | None = None
    stage: StageInputs | None = None
    source: OtherWeights | None = None  # None: its experts move
    experts: MovedExperts | None = None  # of one of several ranks whose experts move


class BoundHead(NamedTuple):
    """A bound head, or a stage of one. read_weights: as in LoadedModel."""

    executable: Executable
    read_weights: ReadWeights


class Lent(NamedTuple):
    """Weights of a model that a head reads as its own: by the head's names, those of the model."""

    lender: Lending
    names: Mapping[str, str]


def load_model(
    plan: EnginePlan,
    facts: ModelFacts,
    kernel_set: KernelSet,
    execution: Execution,
    progress: Progress | None = None,
    cache: Path | None = None,
) -> LoadedModel:
    """Translates and binds all weights, or loads the packed weights that an earlier start kept.

    `progress` gets the bytes read and the total bytes after each piece. `cache`: the folder of packed weights if the
    plan names none; if neither names one, no packed weights are kept.

    Raises ModelError or WeightError (both say what is wrong with the checkpoint), or an error of the kernel set.
    """
    described, inventory, compiled = planned_decoder(plan, facts)
    with tensor_source(plan, facts, described) as reader:
        weights = DecoderWeights(compiled, inventory, reader, execution.limits.max_model_len, progress)
        adapted, places = _adapted(plan, facts, compiled)
        share = share_of(compiled.program, adapted, weights, execution)
        packed = packed_cache(plan, facts, share.weights, cache)
        started = time.monotonic()
        with _as_written(facts, share.weights, execution, progress) as own:
            executable = kernel_set.bind(share.program, own, execution, packed, share.adapted)
    read = functools.partial(_read_again, plan, facts, described, compiled, inventory, execution)
    rows = share.weights if isinstance(share.weights, ShardedWeights) else None
    again: ReadWeights = read if rows is None else functools.partial(_read_rows, read, rows)
    if facts.shards is not None:
        again = functools.partial(_as_written, facts, share.weights, execution)
    source = None
    # Experts that move, or that other replicas have too, are read from the planned checkpoint.
    if execution.lockstep is None and not execution.experts.is_balanced:
        base = None if places is None or not isinstance(places.base, BaseWeights) else places.base
        source = OtherWeights(plan, facts, described, compiled, execution, base, rows)
    moved = None
    if execution.experts.is_balanced and isinstance(executable, MovesExperts):
        assert isinstance(share.weights, ShardedWeights), "experts move between ranks"
        moved = MovedExperts(executable, share.program, share.weights.rows, functools.partial(read, streams=False))
    if packed is not None and packed.report is not None:
        return LoadedModel(executable, packed.report, places, share.parts, again, share.stage, source, moved)
    seconds, size = time.monotonic() - started, executable.memory_bytes.get("weights", 0)
    report = WeightsReport(origin="checkpoint", seconds=seconds, size_bytes=size, reason="packed weights are not kept")
    return LoadedModel(executable, report, places, share.parts, again, share.stage, source, moved)


def _as_written(
    facts: ModelFacts,
    weights: DecoderWeights | ShardedWeights,
    execution: Execution,
    progress: Progress | None = None,
) -> AbstractContextManager[WeightPieces]:
    """Returns the weights of a rank: those that were written for it, where the checkpoint was written by rank."""
    if facts.shards is None:
        return nullcontext(weights)
    ranks, stage = execution.ranks, execution.stage
    if ranks is None:
        return open_share(facts, weights, 0, progress)
    number = ranks.rank + (0 if stage is None else stage.number * ranks.num_ranks)
    return open_share(facts, weights, number, progress)


@contextmanager
def _read_again(
    plan: EnginePlan,
    facts: ModelFacts,
    described: Described,
    compiled: CompiledDecoder,
    inventory: Mapping[str, InventoryItem],
    execution: Execution,
    *,
    streams: bool = True,
) -> Iterator[DecoderWeights]:
    """Opens the checkpoint of a model that was loaded. streams: as the plan says; else it is mapped, for what needs a
    few rows of its tensors. Raises like `load_model`."""
    with tensor_source(plan, facts, described, streams=streams) as reader:
        yield DecoderWeights(compiled, inventory, reader, execution.limits.max_model_len)


@contextmanager
def _read_rows(
    read: Callable[[], AbstractContextManager[DecoderWeights]], rows: ShardedWeights
) -> Iterator[ShardedWeights]:
    """Opens the checkpoint again for a rank. Raises like `load_model`."""
    with read() as whole:
        yield rows.of(whole)


def load_head(
    plan: EnginePlan,
    facts: ModelFacts,
    described: Described,
    kernel_set: KernelSet,
    execution: Execution,
    progress: Progress | None = None,
    cache: Path | None = None,
    lent: Lent | None = None,
) -> BoundHead:
    """Loads a drafting head, or a stage of one, as `load_model` loads a model. plan: of an engine that would run it
    alone."""
    _, inventory, compiled = PlannedDecoder.of(described, facts, plan.precision)
    names = {} if lent is None else lent.names
    own = msgspec.structs.replace(
        compiled, weights={name: use for name, use in compiled.weights.items() if name not in names}
    )
    with tensor_source(plan, facts, described) as reader:
        weights = DecoderWeights(own, inventory, reader, execution.limits.max_model_len, progress)
        packed = packed_cache(plan, facts, weights, cache)
        if lent is None:
            executable = kernel_set.bind(compiled.program, weights, execution, packed)
        else:
            executable = lent.lender.bind_beside(compiled.program, weights, execution, names, packed)
    return BoundHead(executable, functools.partial(_read_again, plan, facts, described, own, inventory, execution))


def _adapted(
    plan: EnginePlan, facts: ModelFacts, compiled: CompiledDecoder
) -> tuple[StepProgram | None, AdapterPlaces | None]:
    """Returns the program with places for adapters, and the places; None if the plan has none."""
    if plan.adapters is None:
        return None, None
    length, adapters = plan.model.max_model_len, plan.adapters
    is_target = place_filter(trained_weights(facts, length), adapters.target_modules, adapters.also)
    wanted = Wanted(adapters.max_rank, is_target, frozenset(adapters.whole))
    program = with_adapters(compiled, wanted)
    return program, AdapterPlaces.of(facts, length, program, BaseWeights(facts, length))


def tensor_source(
    plan: EnginePlan, facts: ModelFacts, described: Described, *, streams: bool = True
) -> AbstractContextManager[TensorSource]:
    """Opens the tensors that a plan reads. streams: as it says; else they are mapped. Raises CheckpointError, and
    PluginError for a loader of the operator's own that cannot be made."""
    stream = plan.loading.stream
    if facts.format == "dummy":
        return nullcontext(RandomTensors(facts, described.spec.weights.values(), plan.model.seed))
    if stream is not None and streams:
        return StreamedReader(Path(facts.root), facts.tensors, stream.num_threads, stream.memory_bytes)
    return open_source(facts)


def packed_cache(
    plan: EnginePlan, facts: ModelFacts, weights: DecoderWeights | ShardedWeights, folder: Path | None
) -> PackedCache | None:
    """Returns the cache of these packed weights; None if the plan or the caller keeps none."""
    loading = plan.loading
    folder = folder if loading.packed_dir is None else Path(loading.packed_dir)
    if not loading.keep_packed or folder is None:
        return None
    identity = sha256_json([checkpoint_identity(facts, loading.checkpoint_sha256), weights.identity])
    label = re.sub(r"[^A-Za-z0-9._-]", "_", Path(facts.root).stem)[:64]
    return PackedCache(
        folder, identity, label, loading.packed_max_bytes, MIN_BYTES, SPARE_BYTES, loading.packed_access == "copy"
    )
