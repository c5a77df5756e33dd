"""The command line of a server, whatever it is wrapped in, as a spec."""

from pathlib import Path

from appliance.base.texts import NotUtf8Error, utf8_text
from appliance.importing import llama_server, vllm
from appliance.importing.container import place_container
from appliance.importing.draft import Draft, Imported, deployment_name
from appliance.importing.launch import Launch, Program, read_launch
from appliance.importing.variables import place_variable, with_defaults
from appliance.importing.words import Arguments

_MAX_CONFIG_BYTES = 1 << 20
_PUBLIC = ("0.0.0.0", "::")


def import_command(text: str, read_file: vllm.ReadFile | None = None) -> Imported:
    """From the command line of vLLM or llama-server. Raises CannotImportError when it is neither, or names no model."""
    text, notes = with_defaults(text)
    draft = Draft(notes=notes)
    place_launch(draft, read_launch(text), read_file or read_here)
    return draft.finished(deployment_name(draft.get("model.source")))


def import_config(text: str) -> Imported:
    """From a file of vLLM's `--config`. Raises CannotImportError."""
    draft = Draft()
    vllm.place_arguments(draft, Arguments(options=vllm.read_config(text)))
    _settle_address(draft, Program.VLLM)
    return draft.finished(deployment_name(draft.get("model.source")))


def place_launch(draft: Draft, launch: Launch, read_file: vllm.ReadFile) -> None:
    """Raises CannotImportError when it names no model."""
    is_vllm = launch.program is Program.VLLM
    if is_vllm:
        vllm.place_words(draft, launch.arguments, read_file)
    else:
        llama_server.place_words(draft, launch.arguments)
    for variable in launch.variables:
        place_variable(draft, variable)
    if launch.container is not None:
        place_container(draft, launch.container, vllm.DEFAULT_PORT if is_vllm else llama_server.DEFAULT_PORT)
    if launch.before:
        draft.leave(" ".join(launch.before), "words before the program")
    for other in launch.others:
        draft.leave(other, "another command")
    _settle_address(draft, launch.program)


def _settle_address(draft: Draft, program: Program) -> None:
    """vLLM listens everywhere, and both are open without keys; that has to be said here."""
    host = draft.get("endpoints.http.host")
    if host is None and program is Program.VLLM:
        draft.notes.append("vLLM listens on all addresses by default; this spec on 127.0.0.1 (endpoints.http.host)")
    elif host in _PUBLIC and not draft.get("endpoints.auth.keys"):
        draft.put("endpoints.auth.allow_public_without_keys", True, f"--host {host}")
        draft.notes.append(
            "the address is public and there are no keys, so endpoints.auth.allow_public_without_keys is set"
        )


def read_here(name: str) -> str | None:
    """The text of a file that a command line names; None where it is not here or is no text."""
    path = Path(name).expanduser()
    try:
        if path.stat().st_size > _MAX_CONFIG_BYTES:
            return None
        return utf8_text(path.read_bytes(), name).replace("\r\n", "\n")
    except (OSError, NotUtf8Error):
        return None
