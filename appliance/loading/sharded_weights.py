"""The weights of one rank: some rows of those of a whole model, read from the checkpoint and no others."""

import copy
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple

import msgspec
import numpy as np

from appliance.base.hashing import sha256_json
from appliance.catalog.formats import WeightForm
from appliance.kernels.execution import Execution
from appliance.kernels.layout import CanonicalWeight, WeightPieces
from appliance.kernels.lockstep import Lockstep
from appliance.kernels.stage_inputs import StageInputs
from appliance.loading.weights import DecoderWeights
from appliance.program.adapters import places_of
from appliance.program.operators import Embed, StepProgram
from appliance.program.placement import ExpertPlacing
from appliance.program.shard_layout import Rows, Shard, ShardLayout
from appliance.program.sharding import ShardedProgram, WeightRows, shard_program
from appliance.program.spreading import spread_experts
from appliance.program.stages import Stage, stage_program


class BoundShare(NamedTuple):
    """What a rank binds: its programs and weights, or those of the whole model. parts: as in ShardedProgram. stage:
    what its stage sees of a step; None if there is one stage."""

    program: StepProgram
    adapted: StepProgram | None
    weights: "DecoderWeights | ShardedWeights"
    parts: Mapping[str, tuple[int, int]]
    stage: StageInputs | None = None


def share_of(
    program: StepProgram, adapted: StepProgram | None, weights: DecoderWeights, execution: Execution
) -> BoundShare:
    """Returns the share of the rank, or of the replica, that the execution names; else all. Raises UncutError."""
    spread: Mapping[str, WeightRows] = {}
    if execution.lockstep is not None:
        of_replica, adapted = _spread(program, adapted, execution.lockstep, execution.experts)
        if execution.ranks is None:
            return BoundShare(of_replica.program, adapted, ShardedWeights(weights, of_replica), {})
        program, spread = of_replica.program, of_replica.rows
    if execution.ranks is None:
        return BoundShare(program, adapted, weights, {})
    shard = Shard(execution.ranks.rank, execution.ranks.num_ranks)
    share = share_of_rank(program, adapted, weights, shard, execution.stage, execution.experts)
    assert isinstance(share.weights, ShardedWeights), "a rank has rows of its own"
    return share._replace(weights=share.weights.with_rows(spread))


def share_of_rank(
    program: StepProgram,
    adapted: StepProgram | None,
    weights: DecoderWeights,
    shard: Shard,
    stage: Stage | None,
    placing: ExpertPlacing,
) -> BoundShare:
    """Returns the share of one rank of a stage, or of the whole model. Raises UncutError."""
    sees = None
    if stage is not None:
        program, adapted, sees = _staged(program, adapted, stage)
    if shard.num_ranks == 1:
        return BoundShare(program, adapted, ShardedWeights(weights, ShardedProgram(program, {}, {})), {}, sees)
    layout = ShardLayout(adapted or program, shard)
    with_places = None if adapted is None else shard_program(adapted, shard, layout, placing)
    own = shard_program(program, shard, layout, placing)
    # Views and twins of one program are slots of the other as well, so both know all of them.
    slots, shared = layout.slots, layout.shared
    programs = [
        None if each is None else msgspec.structs.replace(each.program, slots=slots, shared=shared)
        for each in (own, with_places)
    ]
    assert programs[0] is not None, "the program without places is always there"
    parts = {} if with_places is None else with_places.parts
    return BoundShare(programs[0], programs[1], ShardedWeights(weights, own), parts, sees)


def _spread(
    program: StepProgram, adapted: StepProgram | None, lockstep: Lockstep, placing: ExpertPlacing
) -> tuple[ShardedProgram, StepProgram | None]:
    """Returns the programs of a replica that has some of the experts; of one with ranks, those of a rank's experts."""
    of = (Shard(lockstep.number, lockstep.num_replicas), placing, lockstep.shard)
    return spread_experts(program, *of), None if adapted is None else spread_experts(adapted, *of).program


def _staged(
    program: StepProgram, adapted: StepProgram | None, stage: Stage
) -> tuple[StepProgram, StepProgram | None, StageInputs]:
    """Returns the programs of a stage, and what it sees of a step. The second is None if it has no places."""
    own = stage_program(program, stage, adapted)
    with_places = None if adapted is None else stage_program(adapted, stage, program).program
    found = () if with_places is None else places_of(with_places.operators)
    places = frozenset(name for place in found for name in place.parts)
    sees = StageInputs(
        groups=own.groups,
        has_states=bool(own.program.states),
        places=places,
        embeds=any(isinstance(op, Embed) for op in own.program.operators),
    )
    return own.program, with_places if places else None, sees


class ShardedWeights(WeightPieces):
    """Every weight that a rank's program names. Raises WeightError like the weights of the whole model."""

    def __init__(self, whole: DecoderWeights, sharded: ShardedProgram) -> None:
        self._whole, self._rows = whole, sharded.rows
        order = {name: at for at, name in enumerate(whole)}

        def place(name: str) -> tuple[int, str]:
            return order[self._source_of(name)], name

        self._names: list[str] = sorted(sharded.program.matrices() | sharded.program.vectors(), key=place)

    def with_rows(self, rows: Mapping[str, WeightRows]) -> "ShardedWeights":
        """Returns these weights, of which those in `rows` were divided before."""
        found = copy.copy(self)
        found._rows = {**rows, **self._rows}
        return found

    def of(self, whole: DecoderWeights) -> "ShardedWeights":
        """Returns the same rows of other weights of the model; of some weights, those that are made of them."""
        found, there = copy.copy(self), set(whole)  # a look into a lazy mapping would translate the weight
        found._whole = whole
        found._names = [name for name in self._names if self._source_of(name) in there]
        return found

    def _source_of(self, name: str) -> str:
        return self._rows[name].source if name in self._rows else name

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        yield from self._names

    def __getitem__(self, name: str) -> CanonicalWeight:
        if name not in self._rows:
            return self._whole[name]
        return some_rows(self._whole, *self._rows[name])

    @property
    def rows(self) -> Mapping[str, WeightRows]:
        """The rows of weights that are not whole."""
        return self._rows

    @property
    def identity(self) -> str:
        """A digest of the whole weights' identity, of the names and of the rows, so that ranks do not adopt each
        other's."""
        return self._identity(self._whole.identity)

    @property
    def translated_identity(self) -> str:
        """A digest like `identity`, which does not change with the length of computed tables."""
        return self._identity(self._whole.translated_identity)

    def _identity(self, whole: str) -> str:
        kept = {name: [rows.source, rows.rows] for name, rows in sorted(self._rows.items())}
        return sha256_json([whole, self._names, kept])

    @property
    def computed(self) -> Collection[str]:
        """The names of tables that are computed, at least in part, for a longest sequence."""
        computed = self._whole.computed
        return {name for name in self._names if self._source_of(name) in computed}

    def form(self, name: str) -> WeightForm:
        """Returns the form of a weight that is not computed."""
        return self._whole.form(self._source_of(name))

    def is_matrix(self, name: str) -> bool:
        """Returns whether a weight that is not computed is a matrix; else it is a vector."""
        return self._whole.is_matrix(self._source_of(name))

    def full_shape(self, name: str) -> tuple[int, int]:
        """Returns (N, K) of a weight that is not computed; a vector has one row."""
        num_rows, num_columns = self._whole.full_shape(self._source_of(name))
        if name not in self._rows:
            return num_rows, num_columns
        kept = _num_rows(self._rows[name].rows)
        return (kept, num_columns) if self.is_matrix(name) else (1, kept)

    def shape(self, name: str) -> tuple[int, int]:
        if name not in self._rows:
            return self._whole.shape(name)
        source, rows = self._rows[name]
        return _num_rows(rows), self._whole.shape(source)[1]

    def piece(self, name: str, start: int, stop: int) -> CanonicalWeight:
        if name not in self._rows:
            return self._whole.piece(name, start, stop)
        source, rows = self._rows[name]
        return _joined([self._whole.piece(source, *each) for each in _between(rows, start, stop)])


def some_rows(whole: DecoderWeights, source: str, rows: Rows) -> CanonicalWeight:
    """Returns some rows of a weight, or numbers of a vector."""
    try:
        whole.shape(source)
    except (KeyError, IndexError):  # a table that is computed, or a vector
        return _vector_of(whole[source], rows)
    return _joined([whole.piece(source, *each) for each in rows])


def _num_rows(rows: Rows) -> int:
    return sum(stop - start for start, stop in rows)


def _between(rows: Rows, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yields the rows of the whole weight that are rows [start, stop) of the kept ones."""
    before = 0
    for first, last in rows:
        begin, end = max(start - before, 0), min(stop - before, last - first)
        if begin < end:
            yield first + begin, first + end
        before += last - first


def _joined(pieces: list[CanonicalWeight]) -> CanonicalWeight:
    """Joins the rows of weights of one form."""
    if len(pieces) == 1:
        return pieces[0]
    arrays: dict[str, Any] = {
        each.name: np.concatenate([getattr(piece, each.name) for piece in pieces])
        for each in fields(CanonicalWeight)
        if isinstance(getattr(pieces[0], each.name), np.ndarray)
    }
    return replace(pieces[0], out_features=sum(piece.out_features for piece in pieces), **arrays)


def _vector_of(weight: CanonicalWeight, rows: Rows) -> CanonicalWeight:
    """Returns some numbers of a vector [1, N]."""
    kept = np.concatenate([np.asarray(weight.data)[:, start:stop] for start, stop in rows], axis=1)
    return replace(weight, in_features=kept.shape[1], data=kept)
