"""Packages that only some deployments need."""

import json

import pytest

from appliance.base.extras import MissingExtraError, import_extra


def test_a_package_that_is_there_is_imported() -> None:
    assert import_extra("json", extra="ray", asked_by="a test") is json


def test_one_that_is_missing_is_named_with_the_line_that_installs_it() -> None:
    with pytest.raises(MissingExtraError, match=r"^batch.backend: ray needs no_such_package, and .* is not") as raised:
        import_extra("no_such_package.part", extra="ray", asked_by="batch.backend: ray")
    assert raised.value.hint == "pip install 'appliance[ray]'"
