"""Numbers and bodies that no honest client sends, on the routes of models that pool."""

from collections.abc import Callable

import pytest

from appliance.server.http.openapi import BODIES as STRUCTS
from tests.server.pooling.conftest import Served
from tests.server.test_bad_requests import BODIES, is_error
from tests.server.test_numbers import POOLING, VALUES, Field, body_with, numbers

FIELDS = sorted({Field(path, steps) for path in POOLING for steps in numbers(STRUCTS[path], ())})
ANSWERED_BY = {
    **dict.fromkeys(("/v1/embeddings", "/v1/embed", "/v2/embed"), "bert-mean"),
    "/classify": "bert-classify",
}


def served_for(serve: Callable[..., Served], path: str) -> Served:
    return serve(ANSWERED_BY.get(path, "bert-score"))


def test_there_are_numbers_of_every_route() -> None:
    assert {field.path for field in FIELDS} == POOLING


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: f"{field.path} {'.'.join(field.steps)}")
def test_no_number_ends_more_than_its_request(serve: Callable[..., Served], field: Field) -> None:
    served = served_for(serve, field.path)
    for name, text in VALUES.items():
        answer = served.post_bytes(field.path, body_with(field, text))
        assert answer.status_code in (200, 400), (name, answer.text)
        if answer.status_code == 400:
            error = answer.json()["error"]
            plain = next(step for step in reversed(field.steps) if step not in ("[]", "{}"))
            said = f"{error.get('param')} {error['message']}"
            assert plain in said or "JSON" in said or field.steps[0] in said or "prompt" in said, (name, error)
    assert served.post(field.path, BODIES[field.path]).status_code == 200


@pytest.mark.parametrize("path", sorted(POOLING))
def test_what_is_no_body_and_another_model_are_refused(serve: Callable[..., Served], path: str) -> None:
    served = served_for(serve, path)
    for body in (b"", b"[]", b"5", b"{", b'{"a": 1}', b"\xff", b"[" * 200_000):
        is_error(served.post_bytes(path, body))
    is_error(served.post(path, {**BODIES[path], "model": "no-such-model"}), 404)
