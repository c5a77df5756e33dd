"""Opens the tensors of a checkpoint, by whatever reads its format."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from appliance.checkpoint.custom_tensors import CustomTensors
from appliance.checkpoint.decrypted import DecryptedTensors
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import ModelFacts
from appliance.checkpoint.reader import Bytes, TensorSource, open_tensors
from appliance.checkpoint.sharded_state import INDEX
from appliance.checkpoint.tensorizer_key import FIELD, PLAIN


def open_source(facts: ModelFacts) -> AbstractContextManager[TensorSource]:
    """Returns a source of the checkpoint's tensors; use it as a context manager. Raises CheckpointError,
    PluginError for a loader of the operator's own that cannot be made, and MissingExtraError."""
    if facts.format == "custom":
        return nullcontext(CustomTensors(facts))
    if facts.shards is not None:
        return nullcontext(_NoTensors())
    if facts.loader.key is not None and not facts.is_encrypted:
        raise CheckpointError(Path(facts.root).name, PLAIN, f"remove {FIELD}, or name the file that was meant")
    if facts.is_encrypted:
        return nullcontext(DecryptedTensors(Path(facts.root), facts.tensors, facts.loader.key))
    return open_tensors(facts)


class _NoTensors:
    """Stands for the tensors of a checkpoint that was written by rank, where there are weights in their place."""

    def read(self, name: str) -> Bytes:
        raise CheckpointError(INDEX, f"{name} is not to be had: the weights were written by rank", "use the checkpoint")

    def will_need(self, name: str) -> None:
        """There is nothing to read ahead."""

    def release(self, name: str, start: int, stop: int) -> None:
        """There is nothing to give back."""
