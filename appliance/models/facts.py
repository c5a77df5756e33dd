"""Reads the facts of a checkpoint, or those that stand for one that has a config and no weights."""

from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from appliance.catalog.architectures import Architecture
from appliance.checkpoint.config_choice import OWN, ConfigChoice
from appliance.checkpoint.facts import ModelFacts
from appliance.checkpoint.loader_choice import NO_LOADER, LoaderChoice
from appliance.checkpoint.read import read_model_facts
from appliance.models.random_weights import with_random_tensors

FindFamily = Callable[[str], Architecture | None]


def read_facts(
    path: Path,
    cache: Path | None,
    form: str,
    choice: ConfigChoice = OWN,
    find_family: FindFamily | None = None,
    loader: LoaderChoice = NO_LOADER,
) -> ModelFacts:
    """Returns the facts of the checkpoint at `path`, with all its tensors.

    form: a value of `loading.load_format`, or a plan's format of the checkpoint. choice: of the config. find_family:
    finds the family of another package, by the architecture. loader: of the format. Raises CheckpointError, and what
    these raise.
    """
    facts = read_model_facts(path, cache, form, choice, loader)
    if find_family is not None:
        facts = replace(facts, family=find_family(facts.architecture))
    return with_random_tensors(facts) if facts.format == "dummy" else facts
