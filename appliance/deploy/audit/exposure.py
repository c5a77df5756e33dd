"""Who can reach which route: the reach of the listener, and the route table as the server reads it."""

import ipaddress
from dataclasses import dataclass
from typing import Literal

from appliance.plan.types import ServingPlan
from appliance.server.http.routes import ROUTES

Reach = Literal["socket", "machine", "network"]
Callers = Literal["anyone", "key"]


@dataclass(frozen=True, slots=True)
class ExposedRoute:
    path: str
    methods: tuple[str, ...]
    callers: Callers  # who gets past the gate, of those that reach the listener


def reach_of(serving: ServingPlan) -> Reach:
    if serving.front.uds is not None:
        return "socket"
    try:
        is_loopback = ipaddress.ip_address(serving.host).is_loopback
    except ValueError:
        is_loopback = serving.host == "localhost"
    return "machine" if is_loopback else "network"


def has_keys(serving: ServingPlan) -> bool:
    return bool(serving.key_hashes) or serving.front.keys_file is not None


def exposed_routes(serving: ServingPlan) -> tuple[ExposedRoute, ...]:
    """Every route that the server will answer on."""
    keyed = has_keys(serving)
    return tuple(
        ExposedRoute(route.path, route.methods, "key" if keyed and route.auth == "key" else "anyone")
        for route in ROUTES
        if route.is_served(serving)
    )
