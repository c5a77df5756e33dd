"""Processes are known by pid and start time, and ended with all their descendants."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from appliance.deploy.process import descendants, identify, is_running, resident_bytes, terminate

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
PARENT = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {STUBBORN!r}]).wait()"


def start(code: str) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    process.stdout.close()
    return process


def test_a_reused_pid_is_another_process() -> None:
    myself = identify(os.getpid())
    assert myself is not None
    assert is_running(myself)
    assert not is_running(msgspec.structs.replace(myself, start_ticks=myself.start_ticks + 1))
    assert not is_running(msgspec.structs.replace(myself, boot_id="another boot"))
    assert resident_bytes([myself]) > 1 << 20


def test_a_zombie_does_not_run() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert identify(child.pid) is None
    child.wait()


def test_what_does_not_listen_is_killed_with_its_children() -> None:
    parent = start(PARENT)
    process = identify(parent.pid)
    assert process is not None
    [child] = descendants(process)
    assert not terminate(process, grace_s=5.0)  # the parent ends, its child has to be killed
    parent.wait()
    assert not is_running(process)
    assert not is_running(child)


def test_a_stranger_with_the_same_pid_is_left_alone() -> None:
    process = start(STUBBORN)
    known = identify(process.pid)
    assert known is not None
    terminate(msgspec.structs.replace(known, start_ticks=known.start_ticks + 1), grace_s=0.0)
    assert process.poll() is None
    assert not terminate(known, grace_s=0.0)
    process.wait()


@pytest.mark.parametrize("pid", [0x3FFFFF, 2**31 - 1])
def test_no_such_process(pid: int) -> None:
    assert not Path(f"/proc/{pid}").exists()
    assert identify(pid) is None
