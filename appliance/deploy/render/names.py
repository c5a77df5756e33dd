"""Names that a cluster takes: they are narrower than the name of a spec, which is a host name label."""

import hashlib
import re
from typing import Final

from appliance.deploy.render.workload import RenderError
from appliance.plan.prepare import Prepared

# A Service's name is a label by RFC 1035, section 2.3.1: it begins with a letter. A spec's name may begin with a digit.
_SERVICE: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
MAX_LABEL: Final = 63  # of a Service, and of the value of a label
KSERVE_SUFFIX: Final = "-predictor"  # KServe makes a Service of that name
MAX_GENERATED: Final = 58  # Kubernetes cuts what it makes the names of pods of, and adds five letters
_MAX_UID: Final = 40  # of a Grafana dashboard
_PREFIX: Final = "model-"


def refuse_what_no_service_is_called(prepared: Prepared, suffix: str = "") -> None:
    """suffix: what the cluster appends to the name for a Service of its own. Raises RenderError that says the place."""
    place = prepared.loaded.origin("name")
    name, longest = prepared.plan.name, MAX_LABEL - len(suffix)
    if _SERVICE.fullmatch(name) is None:
        fitting = f"{_PREFIX}{name}"[:longest].rstrip("-")
        raise RenderError(
            f"{place}: name: {name!r} cannot name a Kubernetes Service: it has to begin with a letter",
            hint=f"--set name={fitting}",
        )
    if len(name) > longest:
        raise RenderError(
            f"{place}: name: {name!r} has {len(name)} characters; a Service has {MAX_LABEL}, with {suffix!r}",
            hint=f"--set name={name[:longest].rstrip('-')}",
        )


def pods_of(name: str) -> str:
    """A regular expression for the names of the pods of a Deployment."""
    return f"{name}-"[:MAX_GENERATED] + ".*"


def dashboard_uid(name: str) -> str:
    """The same for the same name, and another for another, however long both are."""
    uid = f"appliance-{name}"
    if len(uid) <= _MAX_UID:
        return uid
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{uid[: _MAX_UID - 1 - len(digest)]}-{digest}"
