"""Who can reach which route: the reach of the listener, and the route table as the server reads it."""

import ipaddress
from dataclasses import dataclass
from typing import Literal

from appliance.plan.serving_types import ListenPlan, ServingPlan
from appliance.server.http.routes import ROUTES

Reach = Literal["socket", "machine", "network"]
Callers = Literal["anyone", "key"]


@dataclass(frozen=True, slots=True)
class ExposedRoute:
    path: str
    methods: tuple[str, ...]
    callers: Callers  # who gets past the gate, of those that reach the listener


def reach_of(listen: ListenPlan) -> Reach:
    """Returns from where the listener can be reached."""
    if listen.uds is not None:
        return "socket"
    try:
        is_loopback = ipaddress.ip_address(listen.host).is_loopback
    except ValueError:
        is_loopback = listen.host == "localhost"
    return "machine" if is_loopback else "network"


def exposed_routes(serving: ServingPlan) -> tuple[ExposedRoute, ...]:
    """Every route that the server will answer on."""
    return tuple(
        ExposedRoute(route.path, route.methods, "key" if serving.auth.has_keys and route.auth == "key" else "anyone")
        for route in ROUTES
        if route.is_served(serving.routes)
    )
