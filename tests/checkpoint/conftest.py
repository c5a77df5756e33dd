from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import huggingface_hub.constants
import pytest

from .fake_hub import FakeHub, serve


class Recorder:
    """A Progress that remembers."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.bars: list[list[object]] = []

    def start(self, label: str, total: int | None, unit: str) -> None:
        self.bars.append([label, total, unit, 0])

    def advance(self, amount: int) -> None:
        self.bars[-1][3] += amount  # type: ignore[operator]  # the fourth entry is the count

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., FakeHub]]:
    """Starts a fake hub that huggingface-hub talks to, with an empty cache. Its retries do not wait."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    with ExitStack() as stack:

        def start(**repos: dict[str, bytes]) -> FakeHub:
            started = stack.enter_context(
                serve(FakeHub({name.replace("__", "/"): files for name, files in repos.items()}))
            )
            monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", started.url)
            template = started.url + "/{repo_id}/resolve/{revision}/{filename}"
            monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
            return started

        yield start
        huggingface_hub.close_session()
