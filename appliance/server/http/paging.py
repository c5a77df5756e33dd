"""Pages of lists, by OpenAI's query parameters `limit`, `after` and `order`."""

from collections.abc import Mapping
from typing import Any

from appliance.requests.errors import invalid
from appliance.store.files import Order, Page


def read_page(query: Mapping[str, str], *, most: int = 100, default: int = 20) -> Page:
    """Raises ApiError 400."""
    limit = query.get("limit", str(default))
    if not (limit.isascii() and limit.isdigit() and len(limit) < 8 and 1 <= int(limit) <= most):
        raise invalid("limit", f"limit is {limit[:20]!r}; it must be from 1 to {most}", "invalid_value")
    order = query.get("order", "desc")
    orders: dict[str, Order] = {"desc": "desc", "asc": "asc"}
    if order not in orders:
        raise invalid("order", f"order is {order[:20]!r}; it must be asc or desc", "invalid_value")
    return Page(limit=int(limit), after=query.get("after"), order=orders[order])


def list_object(items: list[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    first, last = (items[0]["id"], items[-1]["id"]) if items else (None, None)
    return {"object": "list", "data": items, "first_id": first, "last_id": last, "has_more": has_more}
