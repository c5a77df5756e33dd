"""Opens the tensors of a checkpoint, by whatever reads its format."""

from contextlib import AbstractContextManager, nullcontext

from appliance.checkpoint.custom_tensors import CustomTensors
from appliance.checkpoint.facts import ModelFacts
from appliance.checkpoint.reader import TensorSource, open_tensors


def open_source(facts: ModelFacts) -> AbstractContextManager[TensorSource]:
    """Returns a source of the checkpoint's tensors; use it as a context manager. Raises CheckpointError, and
    PluginError for a loader of the operator's own that cannot be made."""
    if facts.format == "custom":
        return nullcontext(CustomTensors(facts))
    return open_tensors(facts)
