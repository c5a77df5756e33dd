"""Other weights for a model that was loaded: of another checkpoint, or tensors in memory."""

import hashlib
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from appliance.base.errors import ApplianceError
from appliance.base.hashing import sha256_file, sha256_json
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import ModelFacts, TensorFacts
from appliance.checkpoint.identity import checkpoint_identity
from appliance.checkpoint.named_tensor import NamedTensor
from appliance.checkpoint.opening import open_source
from appliance.checkpoint.reader import Bytes, TensorSource
from appliance.kernels.execution import Execution
from appliance.kernels.layout import CanonicalWeight
from appliance.layers.program import CompiledDecoder
from appliance.loading.base_weights import BaseWeights
from appliance.loading.inventory import take_inventory
from appliance.loading.sharded_weights import ShardedWeights
from appliance.loading.weights import DecoderWeights
from appliance.models.describe import Described, build_decoder
from appliance.models.facts import read_facts
from appliance.models.outside import check_installed
from appliance.plan.overrides import with_config_overrides
from appliance.plan.types import EnginePlan

_SHOWN = 3  # differences that an error names


class WeightMismatchError(ApplianceError):
    """Weights are not for the model that is served."""


class NewWeights(NamedTuple):
    """weights: those of the program that change, which are read when they are looked up. digest: of the tensors."""

    weights: Mapping[str, CanonicalWeight]
    digest: str


class OtherWeights:
    """Reads other weights in the forms in which the model's were planned."""

    def __init__(
        self,
        plan: EnginePlan,
        facts: ModelFacts,
        described: Described,
        compiled: CompiledDecoder,
        execution: Execution,
        base: BaseWeights | None,
        rows: ShardedWeights | None = None,
    ) -> None:
        """base: from which adapters read the model's weights. rows: of a rank, which has some of them."""
        self._rows = rows
        self._plan, self._facts, self._described = plan, facts, described
        self._compiled, self._execution, self._base = compiled, execution, base

    def check_adapters(self) -> None:
        """Raises WeightMismatchError if an adapter was made for the model's weights as they are."""
        if self._base is not None and self._base.was_read:
            message = "an adapter that was loaded replaces or rescales weights of the checkpoint, and depends on them"
            raise WeightMismatchError(message, hint="start again without it: those of plain LoRA work with any weights")

    def replaced(self) -> None:
        """The weights are no longer those of the planned checkpoint: no adapter may be made for them."""
        if self._base is not None:
            self._base.is_outdated = True

    @contextmanager
    def of_checkpoint(self, path: Path, sha256: str | None = None) -> Iterator[NewWeights]:
        """Opens a checkpoint of the same architecture, shapes and storage. sha256: the digest that it has to have.

        Raises WeightMismatchError for another one, at the end also if a file of it was written meanwhile; and like
        `load_model`.
        """
        if self._facts.format == "custom":
            message = "a loader of your own reads this model, and nothing tells whether what it reads has changed"
            raise WeightMismatchError(message, hint="give tensors instead, or start again with the new checkpoint")
        facts = self._read_facts(path)
        if facts.shards is not None:
            message = "it was written by rank, and weights are taken from a checkpoint as it was before that"
            raise WeightMismatchError(message, hint="name the checkpoint that it was written from")
        self._check(facts)
        before = checkpoint_identity(facts, None)
        digest = _digest_of_files(facts)
        if sha256 is not None and digest != sha256:
            raise WeightMismatchError(f"the checkpoint's digest is {digest}, and {sha256} was asked for")
        with open_source(facts) as reader:
            yield NewWeights(self._weights(facts, reader, self._compiled), digest)
        if checkpoint_identity(facts, None) != before:
            raise WeightMismatchError("the checkpoint was written while it was read", hint="ask again when it is whole")

    def _read_facts(self, path: Path) -> ModelFacts:
        """Reads a checkpoint as the planned one is read: with the config, and as the family, that the plan states."""
        model = self._plan.model
        # Random weights may give way to those of a file, and those that were written by rank to a checkpoint.
        form = "auto" if model.format in ("dummy", "sharded_state") else model.format
        find = None if (family := model.family) is None else lambda _: check_installed(family)
        facts = read_facts(path, None, form, model.config, find, model.loader)
        return with_config_overrides(facts, model.config_overrides)

    @contextmanager
    def of_tensors(self, tensors: Sequence[NamedTensor], digest_before: str) -> Iterator[NewWeights]:
        """Takes tensors of the checkpoint, all or some, as they would be in its files. digest_before: of the weights
        that the others keep.

        Raises WeightMismatchError for one that is unknown or has another shape or type, and for a part of a weight
        whose other parts are missing.
        """
        given = {each.name: each for each in tensors}
        own = {tensor.name: tensor for tensor in self._facts.tensors}
        _refuse(list(_wrong(given, own)))
        compiled = self._touched(given.keys())
        digest = hashlib.sha256(digest_before.encode())
        for name in sorted(given):
            digest.update(sha256_json([name, given[name].dtype, list(given[name].shape)]).encode())
            digest.update(given[name].data)
        yield NewWeights(self._weights(self._facts, _InMemory(given), compiled), digest.hexdigest())

    def _weights(
        self, facts: ModelFacts, reader: TensorSource, compiled: CompiledDecoder
    ) -> Mapping[str, CanonicalWeight]:
        inventory = take_inventory(self._described, facts, self._plan.precision)
        whole = DecoderWeights(compiled, inventory, reader, self._execution.limits.max_model_len)
        return whole if self._rows is None else self._rows.of(whole)

    def _check(self, facts: ModelFacts) -> None:
        """Raises WeightMismatchError unless a checkpoint is of the model that is served, but for its numbers."""
        if facts.architecture != self._facts.architecture:
            raise WeightMismatchError(f"it is a {facts.architecture}, and a {self._facts.architecture} is served")
        own, new = ({tensor.name: tensor for tensor in each.tensors} for each in (self._facts, facts))
        missing = [f"{name} is missing" for name in own if name not in new]
        more = [f"{name} is not in the model that is served" for name in new if name not in own]
        _refuse([*missing, *more, *(_difference(own[name], new[name]) for name in own if name in new)])
        length = self._plan.model.max_model_len
        if build_decoder(facts, length) != build_decoder(self._facts, length):
            raise WeightMismatchError(
                "its configuration makes another model of its weights than the one that is served"
            )

    def _touched(self, names: Container[str]) -> CompiledDecoder:
        """Returns the decoder with the weights that some tensors of the checkpoint make."""
        sources = self._described.spec.weights
        is_given = {logical: source.tensor in names for logical, source in sources.items()}
        uses = {name: use for name, use in self._compiled.weights.items() if any(is_given[part] for part in use.parts)}
        for name, use in uses.items():
            left = sorted({sources[part].tensor for part in use.parts if not is_given[part]})
            if left:
                raise WeightMismatchError(
                    f"{name} is kept as one weight, and of its tensors {', '.join(left)} was not given",
                    hint="give the tensors of a layer together",
                )
        biases = {name: each for name, each in self._compiled.biases.items() if is_given[each.source.parts[0]]}
        return msgspec.structs.replace(self._compiled, weights=uses, ropes={}, biases=biases)


class _InMemory:
    """Tensors in memory as a source of tensors."""

    def __init__(self, tensors: Mapping[str, NamedTensor]) -> None:
        self._tensors = tensors

    def read(self, name: str) -> Bytes:
        return np.frombuffer(self._tensors[name].data, np.uint8)

    def will_need(self, name: str) -> None:
        """It is here."""

    def release(self, name: str, start: int, stop: int) -> None:
        """It stays until the update is over."""


def _wrong(given: Mapping[str, NamedTensor], own: Mapping[str, TensorFacts]) -> Iterator[str]:
    for name, tensor in given.items():
        if name not in own:
            yield f"{name} is not in the model that is served"
            continue
        served = own[name]
        if len(served.parts) > 1 or served.packing != "rows":
            yield f"{name} is stored as {served.storage} in several tensors, which are updated from a checkpoint only"
        elif tensor.dtype != served.storage:
            yield f"{name} is {tensor.dtype}, and {served.storage} is served"
        elif tensor.shape != served.shape:
            yield f"{name} is {list(tensor.shape)}, and {list(served.shape)} is served"
        elif len(tensor.data) != served.size_bytes:
            yield f"{name} has {len(tensor.data)} bytes, and its shape takes {served.size_bytes}"


def _difference(own: TensorFacts, new: TensorFacts) -> str:
    """Says how a tensor differs from the one that is served, but for where it lies; "" if it does not."""
    if new.shape != own.shape:
        return f"{own.name} is {list(new.shape)}, and {list(own.shape)} is served"
    if new.storage != own.storage:
        return f"{own.name} is {new.storage}, and {own.storage} is served"
    return "" if _placeless(new) == _placeless(own) else f"{own.name} is packed in another way"


def _placeless(tensor: TensorFacts) -> list[TensorFacts]:
    """Returns a tensor and its parts without their places in files."""
    gone = {"file": "", "offset_bytes": 0, "stored_name": ""}
    empty = {"scale": None, "zero_point": None, "order": None, "more": (), "bitmask": None}
    return [msgspec.structs.replace(part, **gone, **empty) for part in tensor.parts]


def _refuse(differences: Sequence[str]) -> None:
    found = [each for each in differences if each]
    if found:
        more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise WeightMismatchError("; ".join(found[:_SHOWN]) + more)


def _digest_of_files(facts: ModelFacts) -> str:
    """Returns the SHA-256 of a checkpoint's one file; of several, of the lines that sha256sum prints of them in
    order."""
    root = Path(facts.root)
    folder = root if root.is_dir() else root.parent
    names = sorted({part.file for tensor in facts.tensors for part in tensor.parts})
    digests = [_digest_of_file(folder / name, name) for name in names]
    if len(digests) == 1:
        return digests[0]
    lines = "".join(f"{digest}  {name}\n" for digest, name in zip(digests, names, strict=True))
    return hashlib.sha256(lines.encode()).hexdigest()


def _digest_of_file(path: Path, name: str) -> str:
    try:
        return sha256_file(path)
    except OSError as error:
        raise CheckpointError(name, f"cannot be read: {error.strerror}") from error
