"""Tiny checkpoints, each made once a session."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from appliance.checkpoint.facts import ModelFacts
from appliance.checkpoint.read import read_model_facts
from appliance.kernels.binding import KERNEL_SET_NAMES, load_kernel_set
from appliance.kernels.errors import KernelSetError
from appliance.kernels.interface import KernelSet
from tests.models.tiny import make_tiny


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> Iterator[None]:
    """Tiny tensors gain nothing from more, and lose much on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def kernel_set_names() -> list[str]:
    """The oracle, and every native set that is built here and that this processor runs."""
    runnable = []
    for name in KERNEL_SET_NAMES:
        try:
            load_kernel_set(name)
        except KernelSetError:
            continue
        runnable.append(name)
    return runnable


@dataclass(frozen=True)
class Checkpoint:
    folder: Path
    facts: ModelFacts
    oracle: torch.nn.Module

    def logits(self, token_ids: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            return self.oracle(torch.tensor([token_ids])).logits[0].float()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Checkpoint]:
    made: dict[str, Checkpoint] = {}

    def get(name: str) -> Checkpoint:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            oracle = make_tiny(name, folder)
            made[name] = Checkpoint(folder, read_model_facts(folder), oracle)
        return made[name]

    return get


@pytest.fixture(scope="session", params=kernel_set_names())
def kernel_set(request: pytest.FixtureRequest) -> KernelSet:
    return load_kernel_set(request.param)
