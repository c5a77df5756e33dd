"""What the leader of a group of ranks tells the others, and what they answer."""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from appliance.engine.extension_messages import ExtensionAnswer, ExtensionCall
from appliance.engine.sleep_messages import SleepLevel, SleepTag
from appliance.engine.step import BlockMove
from appliance.engine.weight_messages import WeightUpdate
from appliance.kernels.interface import FewLogits, WeightChange
from appliance.plan.types import EnginePlan


class Array(NamedTuple):
    """An array's type, shape and bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, array: np.ndarray) -> "Array":
        return cls(array.dtype.str, array.shape, array.tobytes())

    def array(self) -> np.ndarray:
        return np.frombuffer(self.data, np.dtype(self.dtype)).reshape(self.shape)


class Load(msgspec.Struct, frozen=True, tag=True):
    """The first message, which says what to load, and where ranks find one another.

    memory: the descriptor of the memory that they share. file, store: of ranks that share none, as in Rendezvous.
    weights_sha256: a digest of the leader's checkpoint (checkpoint.sampled_digest), where a rank has a copy of its own.
    lockstep: the descriptor of the memory of all replicas with experts among them, and which one this is.
    """

    plan: EnginePlan
    rank: int
    memory: int | None = None
    lockstep: tuple[int, int] | None = None
    file: int | None = None
    store: tuple[str, int] | None = None
    host: str = "127.0.0.1"  # the rank's own address, at which the others connect to it
    weights_sha256: str | None = None


class RunStep(msgspec.Struct, frozen=True, tag=True):
    """A step to run, by its number. arrays: by name their type, shape and place in the shared memory."""

    number: int
    arrays: dict[str, tuple[str, tuple[int, ...], int]]


class RunArrays(msgspec.Struct, frozen=True, tag=True):
    """A step to run, whose arrays, by name, are in the message."""

    number: int
    arrays: dict[str, Array]


class TimeOperators(msgspec.Struct, frozen=True, tag=True):
    """Run steps operator by operator, as the leader does while it measures them, or as before."""

    is_on: bool


class CaptureGraph(msgspec.Struct, frozen=True, tag=True):
    """Capture the next of the planned sizes."""


class CopyBlocks(msgspec.Struct, frozen=True, tag=True):
    pairs: list[tuple[int, int]]


class Prefault(msgspec.Struct, frozen=True, tag=True):
    block: int


class PutAdapter(msgspec.Struct, frozen=True, tag=True):
    slot: int
    changes: dict[str, dict[str, Array]]  # by weight, the fields of a WeightChange that are there

    @classmethod
    def of(cls, slot: int, changes: Mapping[str, WeightChange]) -> "PutAdapter":
        fields = ("down", "up", "stretch", "shift")
        packed = {
            name: {each: Array.of(value) for each in fields if (value := getattr(change, each)) is not None}
            for name, change in changes.items()
        }
        return cls(slot, packed)

    def unpacked(self) -> dict[str, WeightChange]:
        return {
            name: WeightChange(**{each: array.array() for each, array in parts.items()})
            for name, parts in self.changes.items()
        }


class DropAdapter(msgspec.Struct, frozen=True, tag=True):
    slot: int


class MoveExperts(msgspec.Struct, frozen=True, tag=True):
    """Put the experts of a mixture in other places. placed: the expert of each, of all ranks."""

    mixture: int
    placed: list[int]


class Move(msgspec.Struct, frozen=True, tag=True):
    """Blocks and states to store in host memory, and to load. They are answered by RankMoved."""

    stores: list[BlockMove]
    loads: list[BlockMove]


class CallExtension(msgspec.Struct, frozen=True, tag=True):
    """Call a method of the operator's own. It is answered by RankCalled."""

    call: ExtensionCall


class PutToSleep(msgspec.Struct, frozen=True, tag=True):
    """Give memory back. It is answered by RankDone, as is WakeUp."""

    level: SleepLevel


class WakeUp(msgspec.Struct, frozen=True, tag=True):
    """Take the memory of a part again."""

    part: SleepTag


class StageWeights(msgspec.Struct, frozen=True, tag=True):
    """Read new weights beside the steps. It is answered by RankStaged. digest_before: of the weights that serve."""

    update: WeightUpdate
    digest_before: str


class CommitWeights(msgspec.Struct, frozen=True, tag=True):
    """Put what was read in place. It is answered by RankDone."""


class DropWeights(msgspec.Struct, frozen=True, tag=True):
    """Forget what was read, if anything was."""


class Close(msgspec.Struct, frozen=True, tag=True):
    """End."""


ToRank = (
    Load
    | RunStep
    | RunArrays
    | TimeOperators
    | CaptureGraph
    | CopyBlocks
    | Prefault
    | PutAdapter
    | DropAdapter
    | MoveExperts
    | Move
    | CallExtension
    | PutToSleep
    | WakeUp
    | StageWeights
    | CommitWeights
    | DropWeights
    | Close
)


class Loading(msgspec.Struct, frozen=True, tag=True):
    """How far a phase of the start is."""

    phase: str
    done: int
    total: int


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The rank can run steps. memory_bytes: what it allocated, by purpose. few_logits: as of Screened."""

    memory_bytes: dict[str, int]
    few_logits: FewLogits | None = None


class Beat(msgspec.Struct, frozen=True, tag=True):
    """The rank is there. num_handled: the messages that it has done with; num_waits: as in LinkedRanks."""

    num_handled: int
    num_waits: int


class RankMoved(msgspec.Struct, frozen=True, tag=True):
    """What was asked for was moved. unloaded: rows of which something had changed in host memory."""

    unloaded: list[int]


class RankCalled(msgspec.Struct, frozen=True, tag=True):
    """What a method of the operator's own gave."""

    answer: ExtensionAnswer


class RankDone(msgspec.Struct, frozen=True, tag=True):
    """What was asked for was done. error: why it could not be."""

    error: str | None = None


class RankStaged(msgspec.Struct, frozen=True, tag=True):
    """New weights were read, or error says why the rank cannot take them."""

    digest: str = ""
    error: str | None = None


class RankEnded(msgspec.Struct, frozen=True, tag=True):
    """The rank ends. blames_other: since another rank is gone or late."""

    reason: str
    hint: str = ""
    blames_other: bool = False


class HandedOn(msgspec.Struct, frozen=True, tag=True):
    """What a stage hands on of a step, where ranks share no memory: the leader passes it to the next."""

    number: int
    rows: Array


class HandedBack(msgspec.Struct, frozen=True, tag=True):
    """What the last stage gives the leader of a step."""

    number: int
    logits: Array
    kept: Array | None = None


FromRank = Loading | Loaded | Beat | HandedOn | HandedBack | RankMoved | RankCalled | RankDone | RankStaged | RankEnded

TO_RANK = msgspec.msgpack.Decoder(ToRank)
FROM_RANK = msgspec.msgpack.Decoder(FromRank)
ENCODE = msgspec.msgpack.Encoder().encode
