"""Canonical CBOR, against the examples of RFC 8949, appendix A."""

import pytest

from appliance.base.cbor import CborValue, cbor


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"), (10, "0a"), (23, "17"), (24, "1818"), (25, "1819"), (100, "1864"), (255, "18ff"), (256, "190100"),
        (1000, "1903e8"), (1_000_000, "1a000f4240"), (1_000_000_000_000, "1b000000e8d4a51000"),
        (2**64 - 1, "1bffffffffffffffff"), (None, "f6"), (b"", "40"), (bytes((1, 2, 3, 4)), "4401020304"),
        ("", "60"), ("IETF", "6449455446"), ("\u00fc", "62c3bc"), ((), "80"), ((1, 2, 3), "83010203"),
        ((1, (2, 3), (4, 5)), "8301820203820405"),
        (tuple(range(1, 26)), "98190102030405060708090a0b0c0d0e0f101112131415161718181819"),
    ],
)  # fmt: skip
def test_values_have_their_shortest_form(value: CborValue, encoded: str) -> None:
    assert cbor(value).hex() == encoded


@pytest.mark.parametrize("number", [-1, 1 << 64])
def test_numbers_that_are_not_encoded_are_refused(number: int) -> None:
    with pytest.raises(OverflowError, match="64 bits"):
        cbor(number)
