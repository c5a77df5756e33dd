"""Reads the facts of a checkpoint, or those that stand for one that has a config and no weights."""

from pathlib import Path

from appliance.checkpoint.config_choice import OWN, ConfigChoice
from appliance.checkpoint.facts import ModelFacts
from appliance.checkpoint.read import read_model_facts
from appliance.models.random_weights import with_random_tensors


def read_facts(path: Path, cache: Path | None, form: str, choice: ConfigChoice = OWN) -> ModelFacts:
    """Returns the facts of the checkpoint at `path`, with all its tensors.

    form: a value of `loading.load_format`, or a plan's format of the checkpoint. choice: of the config. Raises
    CheckpointError.
    """
    facts = read_model_facts(path, cache, form, choice)
    return with_random_tensors(facts) if facts.format == "dummy" else facts
