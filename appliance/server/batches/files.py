"""POST and GET /v1/files, GET and DELETE /v1/files/{id}, GET /v1/files/{id}/content."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from appliance.base.texts import NotUtf8Error, without_mark
from appliance.requests.errors import ApiError, invalid, not_in_this_version
from appliance.server.batches.upload import Upload, read_upload
from appliance.server.http.callers import owner
from appliance.server.http.paging import list_object, read_page
from appliance.server.state import ServerState
from appliance.store.files import FileStore, StoredFile, StoreFullError
from appliance.store.store import Store

_MOST_LISTED = 10_000
_HEAD_BYTES = 4
_EXPIRY_S = (3600, 30 * 86400)  # OpenAI's bounds of expires_after


async def create_file(state: ServerState, request: Request) -> Response:
    store = state.store.files
    upload = await read_upload(request, await asyncio.to_thread(store.room))
    try:
        purpose, lifetime = _checked(upload)
        made = await asyncio.to_thread(_keep, state.store, upload, purpose, lifetime)
    except StoreFullError as error:
        raise ApiError(413, str(error), param="file", code="store_full") from error
    finally:
        await upload.file.close()
    return _json(file_object(made))


async def list_files(state: ServerState, request: Request) -> Response:
    query = request.query_params
    page = read_page(query, most=_MOST_LISTED, default=_MOST_LISTED)
    found, has_more = state.store.files.list(owner(), page, query.get("purpose"))
    return _json(list_object([file_object(each) for each in found], has_more=has_more))


async def get_file(state: ServerState, request: Request) -> Response:
    return _json(file_object(find_file(state.store.files, request.path_params["file_id"], "file_id")))


async def get_content(state: ServerState, request: Request) -> Response:
    """The bytes, always as a download: what a client uploaded is never shown as a page."""
    found = find_file(state.store.files, request.path_params["file_id"], "file_id")
    path = state.store.files.path(found.id)
    if not path.exists():
        raise _unknown(found.id, "file_id")
    headers = {"x-content-type-options": "nosniff", "content-disposition": "attachment"}
    return FileResponse(path, media_type="application/octet-stream", headers=headers)


async def delete_file(state: ServerState, request: Request) -> Response:
    found = find_file(state.store.files, request.path_params["file_id"], "file_id")
    await asyncio.to_thread(state.store.files.delete, owner(), found.id)
    return _json({"id": found.id, "object": "file", "deleted": True})


def find_file(files: FileStore, file_id: str, param: str) -> StoredFile:
    """The caller's file. Raises ApiError 404."""
    found = files.get(owner(), file_id)
    if found is None:
        raise _unknown(file_id, param)
    return found


def file_object(file: StoredFile) -> dict[str, Any]:
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.size,
        "created_at": int(file.created),
        "expires_at": int(file.expires),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


def _checked(upload: Upload) -> tuple[str, float | None]:
    """Purpose and lifetime. Raises ApiError 400."""
    fields = dict(upload.fields)
    purpose = fields.pop("purpose", None)
    anchor, seconds = fields.pop("expires_after[anchor]", "created_at"), fields.pop("expires_after[seconds]", None)
    if fields:
        name = min(fields)[:100]
        raise invalid(name, f"unknown field {name!r}", "unknown_parameter")
    if purpose is None:
        raise invalid("purpose", "the field 'purpose' is missing", "missing_required_parameter")
    if purpose != "batch":
        raise not_in_this_version("purpose", f"files for {purpose[:40]!r}")
    if seconds is None:
        return purpose, None
    least, most = _EXPIRY_S
    if anchor != "created_at" or not (seconds.isascii() and seconds.isdigit() and len(seconds) < 9):
        raise invalid("expires_after", "expires_after needs the anchor created_at and a number of seconds")
    if not least <= int(seconds) <= most:
        raise invalid("expires_after", f"expires_after is {seconds} s; it must be from {least} to {most}")
    return purpose, float(seconds)


def _keep(store: Store, upload: Upload, purpose: str, lifetime: float | None) -> StoredFile:
    _check_text(upload)
    with tempfile.TemporaryDirectory(prefix="upload-", dir=store.database.folder) as folder:
        source = Path(folder) / "file"
        upload.copy_to(source)
        return store.files.add(owner(), source, upload.filename, purpose, lifetime)


def _check_text(upload: Upload) -> None:
    """Raises ApiError 400 for what no line can be read of. The bytes stay as they came, a mark included."""
    head = upload.file.file.read(_HEAD_BYTES)
    upload.file.file.seek(0)
    try:
        without_mark(head, "the file")
    except NotUtf8Error as error:
        raise invalid("file", f"{error}; {error.hint}", "invalid_encoding") from error


def _unknown(file_id: str, param: str) -> ApiError:
    message = f"there is no file {file_id[:100]!r}; it was deleted, has expired, or is another key's"
    return ApiError(404, message, param=param, code="not_found")


def _json(value: Any) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")
