"""The parts that every container runtime gets alike: command, places, health."""

from pathlib import PurePosixPath
from typing import Final

from appliance.deploy.render.workload import ServerWorkload

SPEC_FILE: Final = PurePosixPath("/specs/deployment.yaml")
MODEL_FOLDER: Final = PurePosixPath("/models")
CACHE_FOLDER: Final = PurePosixPath("/cache")
STATE_FOLDER: Final = PurePosixPath("/state")
UID: Final = 10001  # the user of our image

PROBE_PERIOD_S: Final = 5
PROBE_TIMEOUT_S: Final = 4


def arguments(workload: ServerWorkload) -> list[str]:
    """Returns the arguments for the image's entry point, `appliance`. Compose fills in `${NAME}` and Kubernetes
    `$(NAME)`, and both take two `$` for one."""
    given = [*workload.overrides]
    if workload.model_path is not None:
        given.append(f"model.source={MODEL_FOLDER / workload.model_path.name}")
    sets = [part for pair in given for part in ("--set", pair.replace("$", "$$"))]
    return ["apply", "--foreground", str(SPEC_FILE), "--timeout", str(workload.start_timeout_s), *sets]


def num_live_failures(workload: ServerWorkload) -> int:
    """Failed probes before a restart: no sooner than our own supervisor has given a silent engine up."""
    return 1 + -(-workload.heartbeat_timeout_s // PROBE_PERIOD_S)


def num_start_failures(workload: ServerWorkload) -> int:
    return -(-workload.start_timeout_s // PROBE_PERIOD_S)
