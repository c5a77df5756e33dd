"""What a newcomer would wait, and the refusal of those who would wait too long."""

from typing import Any

import pytest

from appliance.engine.messages import EngineStats, ErrorKind, SamplingParams
from appliance.service.client import AdmissionLimits, EngineClient
from appliance.service.errors import RequestFailedError
from appliance.service.metrics import ServiceMetrics
from appliance.service.outlook import Outlook
from appliance.service.policy import OpenPolicy
from appliance.service.requests import TextRequest
from appliance.service.shedding import SheddingPolicy


def stats(rate: float, **changes: Any) -> EngineStats:
    values: dict[str, Any] = dict.fromkeys(EngineStats.__struct_fields__, 0)
    return EngineStats(
        **{**values, "step_sizes": (), "blocks_used_by_group": (), "prompt_tokens_per_s": rate, **changes}
    )


def test_prompts_ahead_are_waited_for_at_the_measured_rate() -> None:
    outlook = Outlook(max_num_seqs=8)
    assert outlook.wait_s(0, stats(100.0)) == 0.0
    outlook.opened("a", 300)
    outlook.opened("b", 200)
    assert outlook.wait_s(2, stats(100.0)) == pytest.approx(5.0)
    outlook.answered("a")
    outlook.answered("a")
    assert outlook.wait_s(2, stats(100.0)) == pytest.approx(2.0)
    assert outlook.wait_s(2, stats(100.0, prefix_queries=1000, prefix_hits=750)) == pytest.approx(0.5)


def test_nothing_measured_predicts_nothing() -> None:
    outlook = Outlook(max_num_seqs=1)
    outlook.opened("a", 10**6)
    assert outlook.wait_s(5, None) == outlook.wait_s(5, stats(0.0)) == 0.0


def test_a_full_batch_is_waited_for_by_its_turns() -> None:
    outlook = Outlook(max_num_seqs=2)
    outlook.ended(1, num_open=5, now=10.0)
    outlook.ended(1, num_open=4, now=13.0)
    assert outlook.wait_s(3, stats(0.0)) == pytest.approx(2 * 3.0)
    assert outlook.wait_s(1, stats(0.0)) == 0.0
    outlook.ended(1, num_open=2, now=14.0)  # nobody waited: says nothing of turns
    outlook.ended(1, num_open=3, now=90.0)
    assert outlook.wait_s(2, stats(0.0)) == pytest.approx(3.0)


class _Client(EngineClient):
    """One whose prediction the test makes."""

    wait_s = 0.0

    def predicted_wait_s(self) -> float:
        return self.wait_s


def test_who_would_wait_too_long_is_refused_until_the_queue_has_shrunk() -> None:
    metrics = ServiceMetrics("m")
    client = _Client(AdmissionLimits(4, None), metrics.of_engine())
    policy = SheddingPolicy(OpenPolicy(), client, above_s=3.0)
    request = TextRequest(request_id="r", prompt_token_ids=[1], sampling=SamplingParams())
    client.wait_s = 3.0
    assert policy.admit([request])[0] == [request]
    client.wait_s = 7.2
    with pytest.raises(RequestFailedError, match=r"7\.2 s") as refused:
        policy.admit([request])
    assert (refused.value.kind, refused.value.code) == (ErrorKind.OVERLOADED, "slo_shed")
    assert refused.value.retry_after_s == 5
    assert 'appliance_requests_shed_total{model_name="m"} 1.0' in metrics.render().decode()
