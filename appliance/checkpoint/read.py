"""Reads ModelFacts from a path: a Hugging Face folder, a folder with one .gguf file, or the file itself."""

from pathlib import Path

from appliance.checkpoint import mistral
from appliance.checkpoint.config_choice import OWN, ConfigChoice
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import ModelFacts
from appliance.checkpoint.folder import read_folder_facts
from appliance.checkpoint.gguf_facts import read_gguf_facts
from appliance.checkpoint.kept_facts import kept_facts
from appliance.checkpoint.loader_choice import NO_LOADER, LoaderChoice
from appliance.checkpoint.other_config import with_config
from appliance.checkpoint.sharded_state import FORM as BY_RANK
from appliance.checkpoint.sharded_state import is_sharded
from appliance.checkpoint.torch_file import has_torch_files


def read_model_facts(
    path: Path,
    cache: Path | None = None,
    form: str | None = None,
    choice: ConfigChoice = OWN,
    loader: LoaderChoice = NO_LOADER,
) -> ModelFacts:
    """Reads the facts of the checkpoint at `path` from its headers alone, or from `cache`. Raises CheckpointError.

    form: "dummy" reads a folder's config and tokenizer, and no weights; "mistral" reads params.json, also where
    config.json is beside it; "tensorizer" reads its one file, "sharded_state" what was written by rank, and "custom"
    what `loader` reads. Any other, and None, is what the files are. choice: of another config than the checkpoint's.
    Raises PluginError for a loader that cannot be made.
    """
    if form == "dummy":
        return _without_weights(path, choice)
    if form == "tensorizer":
        return read_folder_facts(path, "tensorizer", choice, loader)
    if form == "custom":
        return _by_loader(path, choice, loader)
    if form == BY_RANK or is_sharded(path):
        return read_folder_facts(path, BY_RANK, choice)
    if form == "mistral":
        return read_folder_facts(path, "mistral", choice)
    if path.is_file():
        if path.suffix == ".gguf":
            return with_config(kept_facts(path, cache, read_gguf_facts), choice)
        raise CheckpointError(
            path.name, "is neither a .gguf file nor a folder", "name the folder that holds config.json"
        )
    if not path.is_dir():
        raise CheckpointError(str(path), "does not exist")
    has_weights = has_torch_files(path) or any(path.glob("*.safetensors"))
    if (path / "config.json").is_file() or (choice.path is not None and has_weights):
        return read_folder_facts(path, None, choice)
    if (path / mistral.CONFIG_NAME).is_file():
        return read_folder_facts(path, "mistral", choice)
    files = sorted(file for file in path.glob("*.gguf") if "mmproj" not in file.name and "-of-" not in file.name)
    files += sorted(path.glob("*-00001-of-*.gguf"))
    if len(files) == 1:
        return with_config(kept_facts(files[0], cache, read_gguf_facts), choice)
    if files:
        names = ", ".join(file.name for file in files[:6])
        raise CheckpointError(path.name, f"holds {len(files)} .gguf models: {names}", "name one of them")
    raise CheckpointError(path.name, "holds neither config.json, params.json nor a .gguf file")


def _by_loader(path: Path, choice: ConfigChoice, loader: LoaderChoice) -> ModelFacts:
    if not path.is_dir():
        raise CheckpointError(path.name, "is no folder, which a loader of your own reads", "name the folder around it")
    return read_folder_facts(path, "custom", choice, loader)


def _without_weights(path: Path, choice: ConfigChoice) -> ModelFacts:
    if not choice.file(path, "config.json").is_file():
        problem = "has no config.json, which alone tells what random weights a model needs"
        raise CheckpointError(path.name, problem, "name a folder that holds config.json, or leave load_format: auto")
    return read_folder_facts(path, "dummy", choice)
