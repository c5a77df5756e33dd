"""POST /v1/responses, and what can be done with a stored response afterwards."""

import uuid
from collections.abc import Mapping
from typing import Any

import msgspec
import orjson
from starlette.requests import Request
from starlette.responses import Response

from appliance.requests.errors import ApiError, invalid, not_in_this_version
from appliance.server.http.bodies import json_decoder, read_fields
from appliance.server.http.callers import owner
from appliance.server.http.paging import list_object, read_page
from appliance.server.output.generation import respond
from appliance.server.requests.tools import shown_tools
from appliance.server.requests.turn import ChatTurn, capped, prepare_turn
from appliance.server.responses.answer import Keep, ResponseAnswer
from appliance.server.responses.approvals import approvals_of
from appliance.server.responses.background import current, start
from appliance.server.responses.conversation import ITEMS, input_items
from appliance.server.responses.echo import echoed
from appliance.server.responses.fields import InputItem, ResponsesFields, check_fields
from appliance.server.responses.offers import find_offers
from appliance.server.responses.tool_loop import AskedResponse, ToolLoop
from appliance.server.state import ServerState
from appliance.store.responses import UNFINISHED, ResponseStore, StoredResponse

_DECODER = json_decoder(ResponsesFields)


async def create_response(state: ServerState, request: Request) -> Response:
    state.client.check_admission()
    fields = await read_fields(state.plan.serving, request, _DECODER)
    check_fields(fields)
    response_id = f"resp_{uuid.uuid4().hex}"
    earlier, items = _earlier(state.store.responses, fields), _with_ids(input_items(fields), response_id)
    conversation = await _conversation(state, fields, earlier, items)
    turn = await _prepared(state, conversation, response_id)
    told = echoed(fields, response_id, turn.request.adapter or state.model_name)
    keep = _keeper(state.store.responses, owner(), [*earlier, *items]) if fields.store is not False else _forget
    first = None if conversation.approved else turn
    answer = ResponseAnswer(state, first, told, keep, conversation.offers)
    source = ToolLoop(state, conversation, answer, first) if conversation.offers.lists else None
    if fields.background:
        return _json(start(state, source or state.client.generate(turn.request, is_streamed=False), answer, keep))
    return await respond(state, request, [turn.request], answer, is_streamed=bool(fields.stream), source=source)


async def count_input_tokens(state: ServerState, request: Request) -> Response:
    """Counts the tokens that the input of a response would have; nothing is generated or stored."""
    fields = await read_fields(state.plan.serving, request, _DECODER)
    check_fields(fields)
    await state.find_model(fields.model)
    earlier, items = _earlier(state.store.responses, fields), _with_ids(input_items(fields), "resp_counted")
    chat = (await _conversation(state, fields, earlier, items)).chat()
    prompt = await state.prompts.chat(chat, shown_tools(chat))
    return _json({"object": "response.input_tokens", "input_tokens": len(prompt.token_ids)})


async def get_response(state: ServerState, request: Request) -> Response:
    if request.query_params.get("stream", "false") != "false":
        raise not_in_this_version("stream", "streaming a stored response")
    return _json(current(_stored(state.store.responses, request)))


async def delete_response(state: ServerState, request: Request) -> Response:
    response_id = _stored(state.store.responses, request).id
    state.store.responses.delete(owner(), response_id)
    return _json({"id": response_id, "object": "response", "deleted": True})


async def cancel_response(state: ServerState, request: Request) -> Response:
    """Ends a response that runs in the background; one that has ended stays as it is."""
    stored = _stored(state.store.responses, request)
    response = current(stored)
    if not response["background"]:
        raise invalid("response_id", "only a response that was made in the background can be cancelled", "not_allowed")
    if response["status"] in UNFINISHED:
        response["status"] = "cancelled"
        state.store.responses.put(_row(response, stored.owner, stored.items))
    return _json(response)


async def list_input_items(state: ServerState, request: Request) -> Response:
    stored = _stored(state.store.responses, request)
    items: list[dict[str, Any]] = [_shown(item) for item in orjson.loads(stored.items)]
    page = read_page(request.query_params)
    if page.order == "desc":
        items.reverse()
    places = [place for place, item in enumerate(items) if item["id"] == page.after]
    items = items if page.after is None else items[places[0] + 1 :] if places else []
    return _json(list_object(items[: page.limit], has_more=len(items) > page.limit))


async def _conversation(
    state: ServerState, fields: ResponsesFields, earlier: list[InputItem], items: list[InputItem]
) -> AskedResponse:
    """With the tools of the servers that the request names. Raises ApiError 400."""
    offers, both = await find_offers(state.tools, fields), [*earlier, *items]
    return AskedResponse(fields, both, len(earlier), offers, approvals_of(both, offers, len(earlier)))


async def _prepared(state: ServerState, conversation: AskedResponse, response_id: str) -> ChatTurn:
    turn = await prepare_turn(state, conversation.chat(), response_id.removeprefix("resp_"))
    most = conversation.fields.max_output_tokens
    return turn if most is None else capped(turn, most)


def _earlier(responses: ResponseStore, fields: ResponsesFields) -> list[InputItem]:
    """The conversation that `previous_response_id` continues: what it answered, and its answer."""
    if fields.previous_response_id is None:
        return []
    stored = responses.get(owner(), fields.previous_response_id)
    if stored is None:
        raise _unknown(fields.previous_response_id, "previous_response_id")
    if stored.status in (*UNFINISHED, "failed", "cancelled"):
        message = f"the response {fields.previous_response_id!r} is {stored.status}; it has no answer to go on from"
        raise invalid("previous_response_id", message, "invalid_value")
    output = orjson.dumps(orjson.loads(stored.response)["output"])
    return [*ITEMS.decode(stored.items), *ITEMS.decode(output)]


def _with_ids(items: list[InputItem], response_id: str) -> list[InputItem]:
    """Items that came without an id get one, as input_items shows them."""
    for place, item in enumerate(items):
        item.type = item.kind
        if item.id is None:
            item.id = f"item_{response_id.removeprefix('resp_')}_{place}"
    return items


def _keeper(responses: ResponseStore, holder: str, items: list[InputItem]) -> Keep:
    encoded = msgspec.json.encode(items)
    return lambda response: responses.put(_row(response, holder, encoded))


def _forget(response: Mapping[str, Any]) -> None:
    """Keeps nothing: the request says store: false."""


def _row(response: dict[str, Any], holder: str, items: bytes) -> StoredResponse:
    return StoredResponse(
        id=response["id"], owner=holder, status=response["status"], response=orjson.dumps(response), items=items
    )


def _stored(responses: ResponseStore, request: Request) -> StoredResponse:
    response_id: str = request.path_params["response_id"]
    stored = responses.get(owner(), response_id)
    if stored is None:
        raise _unknown(response_id, "response_id")
    return stored


def _unknown(response_id: str, param: str) -> ApiError:
    message = f"there is no response {response_id[:100]!r}; it was never stored, was deleted, or is another key's"
    return ApiError(404, message, param=param, code="not_found")


def _shown(item: dict[str, Any]) -> dict[str, Any]:
    """Messages are shown with parts, however they came."""
    if item["type"] != "message":
        return item
    content = item["content"]
    if isinstance(content, str):
        kind = "output_text" if item["role"] == "assistant" else "input_text"
        part: dict[str, Any] = {"type": kind, "text": content}
        content = [{**part, "annotations": []} if kind == "output_text" else part]
    return {"status": "completed", **item, "content": content}


def _json(value: Any) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")
