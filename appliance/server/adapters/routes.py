"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, as vLLM has them; llama.cpp's list of adapters and scales."""

from pathlib import Path

import msgspec
import orjson
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from appliance.requests.adapters import is_allowed, read_folder, refused
from appliance.requests.errors import ApiError, invalid
from appliance.server.adapters.choice import check_scale
from appliance.server.http.bodies import json_decoder, read_fields
from appliance.server.http.callers import CALLER, check_unlimited
from appliance.server.state import ServerState
from appliance.service.adapter_sets import AdapterChange, AdapterSetError


class LoadAdapterFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """load_inplace: an adapter of this name is replaced."""

    lora_name: str = ""
    lora_path: str = ""
    load_inplace: bool = False


class UnloadAdapterFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """lora_int_id: as vLLM has it; the name decides."""

    lora_name: str = ""
    lora_int_id: int | None = None


class AdapterScale(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """id: the place of an adapter in GET /lora-adapters."""

    id: int
    scale: float


_SCALES = json_decoder(list[AdapterScale])
_LOAD, _UNLOAD = json_decoder(LoadAdapterFields), json_decoder(UnloadAdapterFields)


async def load_adapter(state: ServerState, request: Request) -> Response:
    """Loads an adapter from a folder of this machine, checks it, and serves it."""
    fields = await read_fields(state.plan.serving, request, _LOAD)
    check_unlimited()
    name = fields.lora_name
    if not name or not fields.lora_path:
        raise invalid("lora_path" if name else "lora_name", "Both 'lora_name' and 'lora_path' must be provided.")
    folder = Path(fields.lora_path)
    if not folder.is_absolute():
        raise invalid("lora_path", "lora_path must be the absolute path of a folder on the server's machine")
    if not is_allowed(folder, state.plan.serving.adapters.paths):
        message = "adapters may not be loaded from there; hint: lora.runtime_paths"
        raise ApiError(403, message, param="lora_path", code="path_not_allowed")
    known = state.plan.adapters.named(name) if state.plan.adapters is not None else None
    if known is not None and not fields.load_inplace:
        raise _loaded_already(name)
    adapter = await read_folder(state.plan, name, folder)
    try:
        await state.open.change_adapters(
            AdapterChange(load=msgspec.structs.replace(adapter, origin="request"), replaces=fields.load_inplace)
        )
    except AdapterSetError as error:
        raise _loaded_already(name) if error.problem == "known" else refused(error, "lora_name") from error
    return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.")


async def unload_adapter(state: ServerState, request: Request) -> Response:
    """Stops serving an adapter. Open requests keep it until they end."""
    fields = await read_fields(state.plan.serving, request, _UNLOAD)
    check_unlimited()
    name = fields.lora_name
    if not name:
        raise invalid("lora_name", "'lora_name' needs to be provided to unload a LoRA adapter.")
    try:
        await state.open.change_adapters(AdapterChange(unload=name))
    except AdapterSetError as error:
        if error.problem != "unknown":
            raise refused(error, "lora_name") from error
        message = f"The lora adapter '{name}' cannot be found."
        raise ApiError(404, message, param="lora_name", code="adapter_not_found") from error
    return PlainTextResponse(f"Success: LoRA adapter '{name}' removed successfully.")


async def list_adapters(state: ServerState, request: Request) -> Response:
    """Lists the adapters with their ids and scales, as llama.cpp does. Requests choose them by `model` or `lora`."""
    caller = CALLER.get()
    served = () if state.plan.adapters is None else state.plan.adapters.served
    cards = [
        {"id": number, "name": each.name, "path": each.path, "scale": each.scale}
        for number, each in enumerate(served)
        if caller is None or caller.may_use(each.name)
    ]
    return Response(orjson.dumps(cards), media_type="application/json")


async def set_scales(state: ServerState, request: Request) -> Response:
    """Sets the scale of each adapter, as llama.cpp does: 0 of those that the list leaves out. Requests that say a scale
    of their own keep it, and open ones theirs."""
    wanted = await read_fields(state.plan.serving, request, _SCALES)
    check_unlimited()
    served = () if state.plan.adapters is None else state.plan.adapters.served
    scales = dict.fromkeys((each.name for each in served), 0.0)
    for place, each in enumerate(wanted):
        if not 0 <= each.id < len(served):
            message = f"there is no adapter {each.id}; there are {len(served)}"
            raise invalid(f"[{place}].id", message, "invalid_value")
        check_scale(each.scale, f"[{place}].scale")
        scales[served[each.id].name] = each.scale
    try:
        await state.open.change_adapters(AdapterChange(scales=scales))
    except AdapterSetError as error:
        raise refused(error, "id") from error
    return Response(orjson.dumps({"success": True}), media_type="application/json")


def _loaded_already(name: str) -> ApiError:
    known = f"The lora adapter '{name}' has already been loaded."
    way = "If you want to load the adapter in place, set 'load_inplace' to True."
    return invalid("lora_name", f"{known} {way}", "adapter_exists")
