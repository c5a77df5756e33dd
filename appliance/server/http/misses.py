"""Answers to requests without a route: the path that was meant, the methods of a path, why an API is not served."""

import difflib
import re
from collections.abc import Sequence
from typing import Final

from starlette.exceptions import HTTPException
from starlette.responses import Response

from appliance.requests.errors import ApiError
from appliance.server.http.absent import reason_for_absence
from appliance.server.http.errors import error_response
from appliance.server.http.routes import Route, error_shape, path_pattern

_SHOWN_METHOD: Final = 20
_SHOWN_PATH: Final = 200
_ALIKE: Final = 0.85
_BASE_URLS: Final = "base URLs end in /v1 for clients of OpenAI's, and before it for Anthropic's"


class Misses:
    """Knows the routes that are served, and answers what misses them."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = [(path_pattern(route.path), route.methods) for route in routes]
        self._fixed = [route.path for route in routes if "{" not in route.path]

    def answer(self, method: str, path: str, found: HTTPException) -> Response:
        """Answers in the words of the API that was meant. path: below root_path. found: what the router says."""
        return error_response(self._error(method, path, found), error_shape(self.meant(path) or path))

    def _error(self, method: str, path: str, found: HTTPException) -> ApiError:
        message = f"{method[:_SHOWN_METHOD]} {path[:_SHOWN_PATH]}: {str(found.detail).lower()}"
        if found.status_code == 405:
            allowed = self.methods(path)
            message += f"; there is {' and '.join(allowed)}"
            if (reason := reason_for_absence(method, path)) is not None:
                message += f", and {reason}"
            return ApiError(405, message, code="method_not_allowed", headers={"Allow": ", ".join(allowed)})
        if found.status_code != 404:
            return ApiError(found.status_code, message, headers=found.headers)
        if (reason := reason_for_absence(method, path)) is not None:
            return ApiError(404, f"{message}; {reason}", code="not_served")
        if (meant := self.meant(path)) is not None:
            return ApiError(404, f"{message}; the path is {meant} ({_BASE_URLS})", code="unknown_path")
        return ApiError(404, message, code="unknown_path")

    def methods(self, path: str) -> list[str]:
        """Returns the methods of all routes that the path reaches; HEAD goes where GET goes."""
        found = {method for pattern, methods in self._routes if pattern.fullmatch(path) for method in methods}
        return sorted(found | ({"HEAD"} if "GET" in found else set()))

    def meant(self, path: str) -> str | None:
        """The served path that this one is a misspelling of; None where nothing is near."""
        plain = re.sub(r"/+", "/", path[:_SHOWN_PATH]).rstrip("/")
        bare = re.sub(r"^(/v1)+(?=/)", "", plain)
        for each in (plain, f"/v1{bare}", bare):
            if each != path and self.methods(each):
                return each
        ends = [each for each in self._fixed if len(each) > 1 and plain.endswith(each.removeprefix("/v1"))]
        return max(ends, key=len) if ends else self._alike([plain, f"/v1{bare}"])

    def _alike(self, paths: Sequence[str]) -> str | None:
        near = (difflib.get_close_matches(path, self._fixed, n=1, cutoff=_ALIKE) for path in paths)
        return next((found[0] for found in near if found), None)
