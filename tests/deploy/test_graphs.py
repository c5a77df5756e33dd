"""What `status` reads of graphs from a server's metrics."""

import msgspec

from appliance.cli.status import _graphs
from appliance.deploy.graphs import read_graphs
from appliance.engine.graph_messages import GraphStats
from appliance.service.metrics import ServiceMetrics
from tests.deploy.test_speculation import STATS


def rendered(graphs: GraphStats | None) -> str:
    metrics = ServiceMetrics("model")
    metrics.of_engine().note(msgspec.structs.replace(STATS, graphs=graphs))
    return metrics.render().decode()


def test_graphs_are_read_from_what_the_server_exports() -> None:
    found = read_graphs(rendered(GraphStats(num_captured=3, num_planned=102, seconds=0.0416)))
    assert found == {"captured": 3, "planned": 102, "seconds": 0.042}
    assert _graphs(found) == "3 of 102 sizes captured, in 0.04 s"


def test_a_server_without_graphs_says_nothing() -> None:
    assert read_graphs(rendered(None)) is None
    assert _graphs(None) is None
