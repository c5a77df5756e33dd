"""`appliance keys`: a key is shown once, and only its hash is kept."""

import json
import stat
from pathlib import Path

import pytest
import yaml

from appliance.base.errors import ExitCode
from appliance.base.hashing import key_hash
from appliance.cli.app import main
from appliance.plan.key_file import read_key_file


def test_a_new_key_is_a_line_of_the_spec(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "new", "alice"]) == 0
    told = capsys.readouterr()
    key = told.out.strip()
    spec = yaml.safe_load(told.err.rpartition("the key,")[0])
    assert spec == {"endpoints": {"auth": {"keys": [{"name": "alice", "hash": key_hash(key)}]}}}
    assert len(key) > 40
    assert key not in told.err


def test_a_file_of_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys.json"
    made = []
    for name in ("alice", "bob"):
        assert main(["keys", "new", name, "--file", str(file)]) == 0
        made.append(capsys.readouterr().out.strip())
    assert [entry.hash for entry in read_key_file(file)] == [key_hash(key) for key in made]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not any(key in file.read_text() for key in made)
    assert main(["keys", "list", "--file", str(file)]) == 0
    assert "alice" in capsys.readouterr().out
    assert main(["keys", "list", "--file", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"name": "alice"}, {"name": "bob"}]
    assert main(["keys", "new", "bob", "--file", str(file)]) == ExitCode.INTERNAL
    assert main(["keys", "revoke", "alice", "--file", str(file)]) == 0
    assert [entry.name for entry in read_key_file(file)] == ["bob"]
    assert main(["keys", "revoke", "alice", "--file", str(file)]) == ExitCode.INTERNAL
    assert "it has: bob" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"keys": [{"name": "a"}]}', '{"keys": [{"name": "a", "hash": "secret"}]}', '{"keys": [], "more": 1}',
     '{"keys": [{"name": "A\\n", "hash": "sha256:' + "0" * 64 + '"}]}'],
)  # fmt: skip
def test_a_bad_file_is_named(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys.json"
    file.write_text(text)
    assert main(["keys", "list", "--file", str(file)]) == ExitCode.INTERNAL
    assert str(file) in capsys.readouterr().err
