"""Calls that a caller was asked for, and has approved or refused."""

from collections.abc import Sequence
from dataclasses import dataclass

from appliance.requests.errors import invalid
from appliance.server.responses.fields import InputItem
from appliance.server.responses.offers import OfferedTool, Offers


@dataclass(frozen=True, slots=True)
class Approved:
    """A call that may be made now."""

    request_id: str
    offered: OfferedTool
    arguments: str


def approvals_of(items: Sequence[InputItem], offers: Offers, num_earlier: int) -> tuple[Approved, ...]:
    """The calls that the new items approve. Raises ApiError 400 for one that nobody asked for, or that cannot be."""
    made = {item.approval_request_id for item in items if item.kind == "mcp_call"}
    approved: dict[str, Approved] = {}
    for place, item in enumerate(items[num_earlier:]):
        if item.kind != "mcp_approval_response" or not item.approve or item.approval_request_id in made:
            continue
        where = f"input[{place}].approval_request_id"
        request = asked(items, item, where)
        found = offers.find(request.server_label or "", request.name or "")
        if found is None:
            message = f"the call of {request.name!r} cannot be made: tools has no such tool of {request.server_label!r}"
            raise invalid(where, message, "invalid_value")
        request_id = request.id or ""
        approved[request_id] = Approved(request_id, found[1], request.arguments or "{}")
    return tuple(approved.values())


def asked(items: Sequence[InputItem], response: InputItem, where: str) -> InputItem:
    """The request that a response answers. Raises ApiError 400."""
    wanted = response.approval_request_id
    for item in items:
        if item.kind == "mcp_approval_request" and wanted is not None and item.id == wanted:
            return item
    raise invalid(where, f"no mcp_approval_request before it has the id {str(wanted)[:100]!r}", "invalid_value")
