"""The Host header: one, well formed, and one of ours."""

import re
from collections.abc import Sequence

from starlette.types import Scope

from appliance.requests.errors import ApiError

_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")
_SHOWN_NAME = 100


class HostRule:
    """`allowed`: names without port; `*.example.com` is every name below example.com. Empty allows any name.

    A page of another site can point its own name at a loopback address (DNS rebinding); its requests then carry that
    name. Nothing is ever built from the header.
    """

    def __init__(self, allowed: Sequence[str]) -> None:
        self._names = frozenset(name for name in allowed if not name.startswith("*."))
        self._endings = tuple(name[1:] for name in allowed if name.startswith("*."))
        self._allows_any = not allowed

    def check(self, scope: Scope, *, is_public: bool) -> None:
        """Raises ApiError: 400 for no or several or malformed headers, 403 for a foreign name (not on public paths)."""
        given = [value for name, value in scope["headers"] if name == b"host"]
        if not given and scope["http_version"] == "1.0":
            return
        if len(given) != 1:
            raise ApiError(400, f"there are {len(given)} Host headers; one is needed", code="bad_host")
        found = _HOST.fullmatch(given[0].decode("latin-1").strip())
        if found is None:
            raise ApiError(400, "the Host header is not a host name with an optional port", code="bad_host")
        name = found["name"].lower().rstrip(".")
        if self._allows_any or is_public or name in self._names or name.endswith(self._endings):
            return
        message = f"this server is not called {name[:_SHOWN_NAME]!r}; endpoints.http.allowed_hosts lists its names"
        raise ApiError(403, message, code="host_not_allowed")
