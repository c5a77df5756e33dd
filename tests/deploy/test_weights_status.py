"""What `status` and `drift` read of replaced weights from a server's metrics."""

import msgspec

from appliance.deploy.weights import read_weights, weights_text
from appliance.engine.weight_messages import WeightStats
from appliance.service.metrics import ServiceMetrics
from tests.deploy.test_speculation import STATS


def rendered(*told: WeightStats | None) -> str:
    metrics = ServiceMetrics("model")
    for each in told:
        metrics.of_engine().note(msgspec.structs.replace(STATS, weights=each))
        text = metrics.render().decode()
    return text


def test_the_last_weights_are_told_with_version_digest_and_label() -> None:
    text = rendered(WeightStats(version=1, digest="ab" * 32), WeightStats(version=2, digest="cd" * 32, label="step-9"))
    assert "ab" * 32 not in text
    found = read_weights(text)
    assert found == {"version": 2, "sha256": "cd" * 32, "label": "step-9"}
    assert weights_text(found) == "version 2 step-9, sha256:cdcdcdcdcdcd, in place of the plan's"


def test_a_label_may_have_quotes() -> None:
    found = read_weights(rendered(WeightStats(version=1, digest="ab" * 32, label='a "b" c')))
    assert found is not None
    assert (found["sha256"], found["label"]) == ("ab" * 32, 'a "b" c')


def test_the_weights_of_the_plan_are_nothing_to_tell() -> None:
    assert read_weights(rendered(None)) is None
    assert read_weights(rendered(WeightStats())) is None
    assert weights_text(None) is None


def test_an_engine_that_starts_again_has_those_of_the_plan() -> None:
    metrics = ServiceMetrics("model")
    engine = metrics.of_engine()
    engine.note(msgspec.structs.replace(STATS, weights=WeightStats(version=1, digest="ab" * 32)))
    assert read_weights(metrics.render().decode()) is not None
    engine.engine_gone()
    assert read_weights(metrics.render().decode()) is None
