"""Tiny checkpoints, each made once a session."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.modelling.checkpoints import UNKNOWN, make_own, make_unknown
from tests.models.tiny import make_tiny

Made = tuple[Path, torch.nn.Module]


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    """The folder of a checkpoint and its oracle, by a name of UNKNOWN or of the families of tests.models.tiny."""
    known: dict[str, Made] = {}

    def get(name: str) -> Made:
        if name not in known:
            folder = tmp_path_factory.mktemp(name)
            known[name] = folder, make_unknown(name, folder) if name in UNKNOWN else make_tiny(name, folder)
        return known[name]

    return get


@pytest.fixture(scope="session")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that brings its own code."""
    folder = tmp_path_factory.mktemp("own")
    make_own(folder)
    return folder
