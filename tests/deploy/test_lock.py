"""Two commands at once are serialised; the lock of a killed owner is free."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from appliance.base.errors import ApplyError
from appliance.deploy.lock import changing, owner_of

HOLDER = """
import sys
from pathlib import Path
from appliance.deploy.lock import changing
with changing(Path(sys.argv[1]), "appliance apply other.yaml", 0.0):
    print("held", flush=True)
    sys.stdin.read()
"""


def hold(path: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", HOLDER, str(path)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def end(holder: "subprocess.Popen[str]") -> None:
    holder.kill()
    holder.communicate()


def test_the_owner_is_named(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder = hold(path)
    try:
        owner = owner_of(path)
        assert owner is not None
        assert owner.process.pid == holder.pid
        with (
            pytest.raises(ApplyError, match=rf"appliance apply other.yaml.*pid {holder.pid}"),
            changing(path, "x", 0.0),
        ):
            pass
    finally:
        end(holder)


def test_a_killed_owner_leaves_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    end(hold(path))
    assert path.read_bytes()  # the words of the dead owner
    assert owner_of(path) is None
    with changing(path, "next", 0.0):
        owner = owner_of(path)
        assert owner is not None
        assert owner.process.pid == os.getpid()
    assert path.read_bytes() == b""


def test_the_next_waits_and_is_told_for_whom(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder = hold(path)
    heard: list[str] = []

    def waiting(owner: str) -> None:
        heard.append(owner)
        threading.Thread(target=end, args=(holder,)).start()

    with changing(path, "next", 30.0, waiting):
        assert len(heard) == 1
        assert f"pid {holder.pid}" in heard[0]
