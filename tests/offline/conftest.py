"""An engine in this process, on a small random model, with vLLM's names."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance import LLM
from tests.e2e.served import make_random_adapter, make_random_model

ARGUMENTS: dict[str, Any] = {
    "max_model_len": 512,
    "max_num_seqs": 8,
    "num_gpu_blocks_override": 512,
    "enable_lora": True,
}


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_random_model(folder)
    return folder


@pytest.fixture(scope="session")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapter")
    make_random_adapter(folder, seed=3)
    return folder


@pytest.fixture(scope="session")
def llm(model: Path) -> Iterator[LLM]:
    with LLM(str(model), **ARGUMENTS) as made:
        yield made
