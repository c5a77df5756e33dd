"""A server of the executor of GPUs, on torch's CPU device."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.served import make_random_model, serving
from tests.server.harness import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("gpu-set")
    (folder / "model").mkdir()
    make_random_model(folder / "model")
    with serving(folder, folder / "model", "hardware.kernels.kernel_set=torch") as found:
        yield found


def has_torch(pid: int) -> bool:
    return "libtorch" in Path(f"/proc/{pid}/maps").read_text()


def test_only_the_engine_loads_torch(server: Server) -> None:
    assert has_torch(server.engine_pid())
    assert not has_torch(server.process.pid)
