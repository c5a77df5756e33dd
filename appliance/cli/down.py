"""`appliance down`: drains and ends a deployment's server."""

import shlex
import sys
import time

from appliance.base.errors import ExitCode
from appliance.deploy.execute import stop
from appliance.deploy.lock import changing
from appliance.deploy.naming import find_deployment
from appliance.deploy.observe import observe
from appliance.deploy.reconcile import Readiness

LOCK_WAIT_S = 600.0


def run(name: str = "") -> int:
    """Ends the server. Returns 0 also if nothing runs."""
    state = find_deployment(name)
    state.create()
    command = shlex.join(["appliance", *sys.argv[1:]])
    with changing(state.lock_path, command, LOCK_WAIT_S, lambda who: print(f"waiting for {who}", file=sys.stderr)):
        seen = observe(state)
        if seen.current is None:
            print(f"{state.name}: nothing runs")
            return ExitCode.OK
        if seen.readiness is Readiness.DEAD:
            stop(state, seen.current, seen.plan)  # removes what a killed apply left over
            print(f"{state.name}: {seen.reason} already")
            return ExitCode.OK
        started = time.monotonic()
        is_clean = stop(state, seen.current, seen.plan)
        seconds = time.monotonic() - started
    ended = "stopped" if is_clean else "killed, for it did not end in time"
    print(f"{state.name}: {ended} ({seconds:.1f} s)")
    return ExitCode.OK
