"""Which parts of the engine are measured for traces."""

import pytest

from .machines import MODEL, load, plan

TRACED = MODEL + 'observability: {{traces: {{otlp_traces_endpoint: "http://a:4318", collect_detailed_traces: {}}}}}\n'


@pytest.mark.parametrize(
    ("asked", "parts"),
    [
        ("[]", ()),
        ("[model]", ("forward",)),
        ("[worker, worker]", ("execute",)),
        ("[worker, model]", ("forward", "execute")),
        ("[all, model]", ("scheduler", "forward", "execute")),
    ],
)
def test_what_is_asked_for_is_measured(asked: str, parts: tuple[str, ...]) -> None:
    serving = plan(load(TRACED.format(asked))).serving
    assert serving.traces is not None
    assert (serving.traces.parts, serving.has_detailed_traces) == (parts, bool(parts))


def test_without_an_endpoint_nothing_is_measured() -> None:
    assert not plan(load()).serving.has_detailed_traces
