"""What a server that outlives its caller has of it."""

import os
import select
import signal
from pathlib import Path

from appliance.deploy.launch import launch
from appliance.deploy.state import Generation


def test_it_keeps_no_descriptor_of_its_caller(tmp_path: Path) -> None:
    """As of `appliance apply spec.yaml 3>&1 | tee log`, whose reader waits for the end of all writers."""
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    process = launch(Generation(1, tmp_path), ["/bin/sleep", "60"], lambda process: None)
    try:
        os.close(writer)
        assert select.select([reader], [], [], 10.0)[0], "somebody else has it"
        assert os.read(reader, 1) == b""
    finally:
        os.kill(process.pid, signal.SIGKILL)
        os.waitpid(process.pid, 0)
        os.close(reader)
