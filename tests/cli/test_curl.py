"""The first request that `apply` prints is one that the model answers."""

from typing import get_args

import pytest

from appliance.catalog.pooling import PoolingTask
from appliance.cli.curl import example_of_pooling
from appliance.plan.types import PoolingPlan
from appliance.server.http.openapi import BODIES
from appliance.server.http.routes import ROUTES

POOLS = {route.path for route in ROUTES if route.does == "pool"}


@pytest.mark.parametrize("task", get_args(PoolingTask))
@pytest.mark.parametrize("kind", ["cls", "all"])
def test_a_model_that_pools_is_asked_on_a_route_of_its_own(task: PoolingTask, kind: str) -> None:
    plan = PoolingPlan(task=task, kind="all" if kind == "all" else "cls", activation="none")
    path, body = example_of_pooling(plan)
    assert path in POOLS
    assert set(body) <= set(BODIES[path].__struct_fields__)
