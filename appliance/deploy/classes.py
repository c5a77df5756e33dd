"""What a change of a planned value costs the running server. `live` < `adapters` < `drain` < `restart`."""

from collections.abc import Iterable, Mapping

from appliance.plan.hashes import ADAPTER_FIELDS, LIVE_MODEL_FIELDS, LIVE_SCHEDULER_FIELDS, LIVE_SPECULATION_FIELDS
from appliance.spec.fields import ApplyClass

ORDER: tuple[ApplyClass, ...] = ("live", "adapters", "drain", "restart")

_RESTART = ("model.tokenizer_path",)  # the tokenizer is loaded once
# What a server takes only at its start, and its engine does not read.
_DRAIN = (
    *("serving.listen.host", "serving.listen.port", "serving.listen.uds"),
    *("serving.http.middleware", "serving.api_servers", "serving.has_engine_inside"),
    *("serving.logs.config_file", "serving.store"),
    "serving.exporters",
)
_LIVE = (
    *("serving", "restart", "slo", "degraded", "warnings"),
    *(f"model.{name}" for name in LIVE_MODEL_FIELDS),
    *(f"scheduler.{name}" for name in LIVE_SCHEDULER_FIELDS),
    *(f"speculation.{name}" for name in LIVE_SPECULATION_FIELDS),
)
_ADAPTERS = tuple(f"adapters.{name}" for name in ADAPTER_FIELDS)
# Live, but that a listener has TLS, or has not, is decided when it opens.
_SWITCHED = "serving.listen.tls.certfile"
_PREFIXES: Mapping[ApplyClass, tuple[str, ...]] = {
    "restart": _RESTART, "drain": _DRAIN, "adapters": _ADAPTERS, "live": _LIVE,
}  # fmt: skip


def class_of(path: str) -> ApplyClass:
    """Returns the apply class of a plan's path: `restart` unless a table above lists it."""
    for found, prefixes in _PREFIXES.items():
        if any(path == prefix or path.startswith(prefix + ".") for prefix in prefixes):
            return found
    return "restart"


def cost_of(path: str, old: object, new: object) -> ApplyClass:
    """Returns the apply class of one change. None on one side means that something is turned on or off."""
    return "drain" if path == _SWITCHED and None in (old, new) else class_of(path)


def highest(classes: Iterable[ApplyClass]) -> ApplyClass:
    """The one that covers all; `live` when there are none."""
    return max(classes, key=ORDER.index, default="live")
