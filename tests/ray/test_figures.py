"""The metrics of several replicas in one text."""

from prometheus_client.parser import text_string_to_metric_families

from appliance.ray.figures import merged
from appliance.service.metrics import ServiceMetrics


def test_each_family_is_there_once_with_the_samples_of_all() -> None:
    one = ServiceMetrics("a model").render().decode()
    both = merged({"r1": one, "r2": one})
    alone = list(text_string_to_metric_families(one))
    families = list(text_string_to_metric_families(both))
    assert [family.name for family in families] == [family.name for family in alone]
    assert len(families) > 10
    for family, before in zip(families, alone, strict=True):
        assert len(family.samples) == 2 * len(before.samples)
        assert {sample.labels["replica"] for sample in family.samples} <= {"r1", "r2"}
        own = [(each.name, each.value) for each in family.samples if each.labels["replica"] == "r2"]
        assert own == [(each.name, each.value) for each in before.samples]
