"""A file that comes in as multipart/form-data: bounded while it comes, and never in memory as a whole."""

import shutil
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

from python_multipart.exceptions import MultipartParseError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from appliance.requests.errors import ApiError, invalid

MAX_FIELDS = 8
MAX_NAME = 255
_OVERHEAD = 64 << 10  # of a form around its file


@dataclass(slots=True)
class Upload:
    """file: spooled, at its beginning. fields: the others of the form."""

    file: UploadFile
    fields: dict[str, str]

    @property
    def filename(self) -> str:
        """Returns the name that the client sent, without a path and control characters. It is only shown."""
        name = (self.file.filename or "file").replace("\\", "/").rpartition("/")[2]
        return "".join(letter for letter in name if letter.isprintable())[:MAX_NAME] or "file"

    def copy_to(self, path: Path) -> None:
        """Blocks for the time of the copy."""
        with path.open("xb") as target:
            shutil.copyfileobj(self.file.file, target)


async def read_upload(request: Request, max_bytes: int) -> Upload:
    """Raises ApiError: 413 past `max_bytes`, 415 for another content type, 400 for what is no such form."""
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise ApiError(415, "files are uploaded as multipart/form-data", code="content_type")
    if (encoding := request.headers.get("content-encoding", "identity").strip().lower()) != "identity":
        message = f"the content encoding is {encoding[:40]!r}; files are uploaded without one"
        raise ApiError(415, message, code="content_encoding", headers={"Accept-Encoding": "identity"})
    parser = MultiPartParser(
        request.headers, _bounded(request, max_bytes + _OVERHEAD), max_files=1, max_fields=MAX_FIELDS
    )
    try:
        form = await parser.parse()
    except (MultiPartException, MultipartParseError, KeyError, UnicodeDecodeError) as error:
        raise invalid(None, f"the form cannot be read: {error}", "invalid_form") from error
    except ClientDisconnect as error:
        raise ApiError(400, "the body did not end") from error
    file = form.get("file")
    if not isinstance(file, UploadFile):
        await form.close()
        raise invalid("file", "the field 'file' is missing", "missing_required_parameter")
    if (file.size or 0) > max_bytes:
        await form.close()
        raise _too_large(max_bytes)
    return Upload(file, {name: value for name, value in form.items() if isinstance(value, str)})


async def _bounded(request: Request, max_bytes: int) -> AsyncGenerator[bytes, None]:
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > max_bytes:
            raise _too_large(max_bytes)
        yield piece


def _too_large(max_bytes: int) -> ApiError:
    message = f"the file is larger than {max_bytes} bytes, which is what the store has room for"
    return ApiError(413, message, param="file", code="file_too_large", headers={"Connection": "close"})
