"""`appliance serialize`, through the command line."""

from pathlib import Path

import pytest

from appliance.base.errors import ExitCode
from appliance.cli.app import main
from tests.loading.by_rank import random_spec


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """A command line without a key."""
    return ["serialize", str(random_spec(tmp_path)), "--output", str(tmp_path / "new")]


def test_it_says_what_it_wrote_and_how_to_serve_it(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == ExitCode.OK
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith(", plain")
    assert second.endswith("loading.load_format: tensorizer")


@pytest.mark.parametrize("option", ["--encryption-keyfile", "--encryption-password-file"])
def test_a_file_that_is_not_there_is_named_with_its_option(
    option: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, option, str(tmp_path / "none")]) == ExitCode.INVALID
    assert capsys.readouterr().err == f"error: {option}: there is no file {tmp_path / 'none'}\n"
    assert not (tmp_path / "new").exists()


def test_a_folder_with_something_in_it_is_refused_like_other_words(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "file").touch()
    assert main(words) == ExitCode.INVALID
    assert "is there already, and not empty\n  hint: name another folder" in capsys.readouterr().err
