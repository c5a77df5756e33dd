"""`appliance ranks join`, as far as it comes without a leader."""

import pytest

from appliance.base.errors import ApplianceError
from appliance.cli.ranks import run_join


@pytest.mark.parametrize("address", ["10.0.0.1", ":29501", "10.0.0.1:", "10.0.0.1:x", "10.0.0.1:0", "10.0.0.1:99999"])
def test_what_is_no_address_is_refused_at_once(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APPLIANCE_RANKS_TOKEN", "a" * 32)
    with pytest.raises(ApplianceError, match="HOST:PORT"):
        run_join(address, [1], None, "", once=True)
