"""The page that shows how to add a route: its handler answers, and its row names it."""

import asyncio
import json
from types import SimpleNamespace

from appliance.server.http.routes import Route
from tests.extending.pages import EXTENDING, block
from tests.plan.machines import load, plan

PAGE = "add-a-route.md"


def test_the_handler_of_the_page_answers() -> None:
    module = SimpleNamespace()
    exec(block(PAGE, "appliance/server/admin/uptime.py"), vars(module))
    (row,) = [line.strip(" ,") for line in (EXTENDING / PAGE).read_text().splitlines() if line.startswith("    Route(")]
    route = eval(row, {"Route": Route, "uptime": module})
    response = asyncio.run(route.handler(SimpleNamespace(plan=plan(load())), None))
    assert (route.path, route.auth, response.status_code) == ("/uptime", "key", 200)
    assert json.loads(response.body)["model"] == "test"
