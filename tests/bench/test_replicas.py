"""What each replica did, as a result says it."""

from appliance.bench.replicas import balance, read_counts, shares_between
from appliance.service.metrics import ServiceMetrics


def test_shares_are_what_the_server_counted_meanwhile() -> None:
    metrics = ServiceMetrics("m")
    engines = [metrics.of_engine(number) for number in range(2)]
    engines[0].finished("stop")
    before = read_counts(metrics.render().decode())
    for engine, num_tokens in zip(engines, (30, 10), strict=True):
        engine.finished("length")
        engine.finished("stop")
        engine._add("generation_tokens", num_tokens)
    shares = shares_between(before, read_counts(metrics.render().decode()))
    assert [(each.engine, each.requests, each.output_tokens, each.share) for each in shares] == [
        (0, 2, 30, 0.75), (1, 2, 10, 0.25),
    ]  # fmt: skip
    assert balance(shares) == 0.25 / 0.75


def test_one_engine_has_no_shares() -> None:
    metrics = ServiceMetrics("m")
    metrics.of_engine().finished("stop")
    assert shares_between({}, read_counts(metrics.render().decode())) == ()
    assert shares_between({}, {}) == ()
