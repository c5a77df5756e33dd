"""Verbs that are told to end leave nothing of what they have begun."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from appliance.cli.ending import ended_in_order
from appliance.cli.verb import INTERRUPTED
from tests.e2e.served import make_random_model
from tests.engine.test_rank_group import machine_with
from tests.loading.by_rank import SPEC

HandledSignals = Callable[[signal.Signals, signal.Handlers], object]
_ENDED_AT_THE_FIRST_BYTES = """\
import os, signal, sys
from appliance.cli.app import main
from appliance.cli.progress import ProgressBar
ProgressBar.advance = lambda bar, amount: os.kill(os.getpid(), signal.SIGTERM)
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def handled() -> Iterator[HandledSignals]:
    """Sets what a signal does, which the tests' own parent may have changed (nohup), until the test is over."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield signal.signal
    for number, action in before.items():
        signal.signal(number, action)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_end_is_ctrl_c(number: signal.Signals, handled: HandledSignals) -> None:
    handled(number, signal.SIG_DFL)
    with pytest.raises(KeyboardInterrupt), ended_in_order():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is signal.SIG_DFL


def test_a_signal_that_nohup_ignores_stays_ignored(handled: HandledSignals) -> None:
    handled(signal.SIGHUP, signal.SIG_IGN)
    with ended_in_order():
        os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


@pytest.mark.parametrize("verb", ["shard", "serialize"])
def test_a_verb_that_writes_weights_leaves_nothing_when_it_is_told_to_end(verb: str, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    make_random_model(tmp_path / "model")
    spec, made = tmp_path / "spec.yaml", tmp_path / "made"
    spec.write_text(SPEC.format(source=tmp_path / "model"))
    made.mkdir()
    machine = ("--hardware", machine_with(2, tmp_path)) if verb == "shard" else ()
    words = [verb, str(spec), *machine, "--output", str(made / "new")]
    ended = subprocess.run([sys.executable, "-c", _ENDED_AT_THE_FIRST_BYTES, *words], capture_output=True, check=False)
    assert ended.returncode == INTERRUPTED, ended.stderr
    assert list(made.iterdir()) == []
