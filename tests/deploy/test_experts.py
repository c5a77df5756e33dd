"""What `status` reads of experts that move from a server's metrics."""

import msgspec

from appliance.deploy.experts import experts_text, read_experts
from appliance.engine.expert_messages import ExpertStats
from appliance.service.metrics import ServiceMetrics
from tests.deploy.test_speculation import STATS

MOVED = ExpertStats(num_moved=1200, num_rearranged=3, balancedness=0.871, seconds=2.5, speed_up=1.12, is_off=False)


def rendered(experts: ExpertStats | None) -> str:
    metrics = ServiceMetrics("model")
    metrics.of_engine().note(msgspec.structs.replace(STATS, experts=experts))
    return metrics.render().decode()


def test_moves_are_read_from_what_the_server_exports() -> None:
    found = read_experts(rendered(MOVED))
    assert found == {
        "balancedness": 0.871, "moves": 1200, "rearrangements": 3, "move_seconds": 2.5, "speed_up": 1.12,
        "is_off": False,
    }  # fmt: skip
    assert experts_text(found) == "balancedness 0.87; 1,200 moved in 2.50 s; steps 1.12 times as fast"


def test_a_balancer_that_is_off_says_why() -> None:
    text = experts_text(read_experts(rendered(msgspec.structs.replace(MOVED, is_off=True, speed_up=0.9))))
    assert text is not None
    assert text.endswith("they move no more, as steps were no faster")


def test_a_server_whose_experts_stay_says_nothing() -> None:
    assert read_experts(rendered(None)) is None
    assert experts_text(None) is None
