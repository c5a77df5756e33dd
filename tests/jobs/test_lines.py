"""What is wrong with a line is said in words that name it."""

import json
from typing import Any

import pytest

from appliance.jobs.lines import InputLine, LineError, parse

GOOD: dict[str, Any] = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}


def line(value: Any) -> InputLine:
    return InputLine(1, value if isinstance(value, bytes) else json.dumps(value).encode())


def test_a_good_line() -> None:
    request = parse(line(GOOD))
    assert (request.custom_id, request.url, json.loads(request.body)) == ("a", "/v1/completions", {"prompt": "x"})


@pytest.mark.parametrize(
    ("value", "code", "words", "custom_id"),
    [
        (b"{bad", "invalid_json", "not JSON", None),
        (b'{"custom_id": "\xff"}', "invalid_json", "not JSON", None),
        ([1], "invalid_line", "JSON object", None),
        ({**GOOD, "custom_id": 7}, "invalid_custom_id", "string", None),
        ({**GOOD, "custom_id": ""}, "invalid_custom_id", "not empty", None),
        ({**GOOD, "extra": 1}, "unknown_field", "'extra'", "a"),
        ({**GOOD, "method": "GET"}, "invalid_method", "'GET'", "a"),
        ({**GOOD, "url": "/v1/images"}, "invalid_url", "/v1/chat/completions", "a"),
        ({**GOOD, "body": "x"}, "invalid_body", "object", "a"),
        ({**GOOD, "body": {"stream": True}}, "invalid_body", "stream", "a"),
    ],
)
def test_a_bad_line(value: Any, code: str, words: str, custom_id: str | None) -> None:
    with pytest.raises(LineError, match=words) as failure:
        parse(line(value))
    assert (failure.value.code, failure.value.custom_id) == (code, custom_id)


def test_a_key_names_the_place_and_the_text() -> None:
    assert InputLine(3, b"x").key.startswith("batch_req_3_")
    assert InputLine(3, b"x").key != InputLine(3, b"y").key
