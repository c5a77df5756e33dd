"""Reads what a LoRA adapter is, from its config and the header of its weights: a folder as peft writes it, or a GGUF
file as llama.cpp's convert_lora_to_gguf does."""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from appliance.checkpoint.adapter_config import CONFIG_NAME, read_config
from appliance.checkpoint.adapter_gguf import read_gguf_modules
from appliance.checkpoint.adapter_modules import AdapterModule, read_modules
from appliance.checkpoint.adapter_numbers import check_numbers
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import TensorFacts
from appliance.checkpoint.safetensors import read_header
from appliance.checkpoint.torch_file import read_torch_file

_READERS: Final = {"adapter_model.safetensors": read_header, "adapter_model.bin": read_torch_file}


class AdapterFacts(msgspec.Struct, frozen=True):
    """An adapter's modules, sorted by name. sha256: over its config and all bytes of its weights.

    root: the folder, or the GGUF file. gguf_architecture: that of such a file, whose rows may lie in another order.
    """

    root: str
    base_model: str | None  # what its config names
    modules: tuple[AdapterModule, ...]
    sha256: str
    gguf_architecture: str | None = None
    has_effect: bool = True  # not all that it adds is zero

    @property
    def folder(self) -> Path:
        """The folder in which its tensors' files are."""
        return Path(self.root) if self.gguf_architecture is None else Path(self.root).parent

    @property
    def max_rank(self) -> int:
        return max(module.rank for module in self.modules)

    def tensors(self) -> Iterator[TensorFacts]:
        for module in self.modules:
            yield from module.tensors()


def read_adapter(root: Path) -> AdapterFacts:
    """Reads the facts of an adapter's folder, or of a GGUF file or a folder that has nothing but one. Raises
    CheckpointError that names what cannot be used."""
    if (file := _gguf_file(root)) is not None:
        architecture, base_model, modules = read_gguf_modules(file)
        effect = check_numbers(file.parent, modules)
        return AdapterFacts(str(file), base_model, modules, _digest([file]), architecture, effect)
    config = read_config(root)
    name = next((each for each in _READERS if (root / each).is_file()), None)
    if name is None:
        raise CheckpointError(root.name, f"there is no {' and no '.join(_READERS)}", "pull the adapter again")
    modules = read_modules(name, _READERS[name](root, name), config)
    return AdapterFacts(
        root=str(root),
        base_model=config.base_model,
        modules=modules,
        sha256=_digest([root / CONFIG_NAME, root / name]),
        has_effect=check_numbers(root, modules),
    )


def _gguf_file(root: Path) -> Path | None:
    """Returns the GGUF file that a path is or has, if it is not a folder of peft."""
    if root.is_file():
        return root
    files = sorted(root.glob("*.gguf")) if root.is_dir() and not (root / CONFIG_NAME).is_file() else []
    if len(files) > 1:
        message = f"there are {len(files)} GGUF files, and an adapter is one"
        raise CheckpointError(root.name, message, f"name the file: {root.name}/{files[0].name}")
    return files[0] if files else None


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
