"""`appliance chat` and `appliance complete`: send a text to a server and print the answer as it comes."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import httpx
import msgspec

from appliance.base.environ import state_dir
from appliance.base.errors import ApplianceError, ExitCode
from appliance.base.settings import own_api_key
from appliance.cli.arguments.work import ChatArguments, TalkArguments
from appliance.cli.curl import CHAT_PATH, COMPLETION_PATH, curl_line
from appliance.cli.pipes import is_unread
from appliance.cli.verb import UsageError
from appliance.deploy.naming import names_deployment, running
from appliance.deploy.probe import UNIX
from appliance.deploy.state import deployment_names

_NEAR = 0.7  # the least similarity (0 to 1) of a mistyped name
_TIMEOUT = httpx.Timeout(10.0, read=None)  # an answer may take long; connecting may not


@dataclass(frozen=True, slots=True)
class TalkTarget:
    """The server to talk to. `url` is its root, without /v1."""

    url: str
    model: str
    api_key: str | None


def run_chat(arguments: ChatArguments) -> int:
    """Asks one question, or holds a conversation that ends with the input."""
    target, text = _meant(arguments)
    opening = [{"role": "system", "content": arguments.system_prompt}] if arguments.system_prompt else []
    if text:
        _answer(target, arguments, CHAT_PATH, {"messages": [*opening, {"role": "user", "content": text}]})
        return ExitCode.OK
    _greet(target)
    messages = opening
    for text in _inputs():
        asked = [*messages, {"role": "user", "content": text}]
        if answer := _answer(target, arguments, CHAT_PATH, {"messages": asked}):
            messages = [*asked, {"role": "assistant", "content": answer}]
    return ExitCode.OK


def run_complete(arguments: TalkArguments) -> int:
    """Completes one text, or one text after the other, each on its own."""
    target, text = _meant(arguments)
    if text:
        _answer(target, arguments, COMPLETION_PATH, {"prompt": text})
        return ExitCode.OK
    _greet(target)
    for text in _inputs():
        _answer(target, arguments, COMPLETION_PATH, {"prompt": text})
    return ExitCode.OK


def _meant(arguments: TalkArguments) -> tuple[TalkTarget, str]:
    """Returns the server to ask, and the text. Raises ApplianceError."""
    name, text = deployment_and_text(arguments)
    if text and arguments.quick:
        raise UsageError("the text was given twice: after the name, and as --quick")
    return _find_target(name, arguments), arguments.quick or text


def deployment_and_text(arguments: TalkArguments) -> tuple[str, str]:
    """Decides whether a single word is a name or a text. Raises UsageError for a name with a typo."""
    name, text = arguments.name, arguments.text
    if text or not name or " " in name:
        return (name, text) if text else ("", name)
    if arguments.url:
        return "", name  # a server at a URL has no deployment name
    if names_deployment(name):
        return name, ""
    near = get_close_matches(name, deployment_names(state_dir()), 1, _NEAR)
    if near:
        raise UsageError(f"no deployment is named {name!r}", hint=f"did you mean {near[0]}? A text is said with -q")
    return "", name


def _find_target(name: str, arguments: TalkArguments) -> TalkTarget:
    """Finds a deployment by name, or the server at a URL; takes its first model by default. Raises ApplianceError."""
    key = arguments.api_key or own_api_key()
    if arguments.url:
        root = arguments.url.rstrip("/").removesuffix("/v1")
        return TalkTarget(root, arguments.model or _first_model(root, key), key)
    current = running(name)
    return TalkTarget(current.url, arguments.model or current.served_name, key)


def _answer(target: TalkTarget, arguments: TalkArguments, path: str, asked: dict[str, Any]) -> str:
    """Prints the answer as it comes and returns it; reasoning goes to standard error.

    Ctrl-C in a terminal ends the answer and keeps the text so far.
    """
    body = {"model": target.model, **asked, "stream": True}
    body |= {"max_tokens": arguments.max_tokens} if arguments.max_tokens else {}
    body |= {"temperature": arguments.temperature} if arguments.temperature is not None else {}
    pieces: list[str] = []
    try:
        for thought, text in _stream(target, path, body):
            pieces.append(text)
            print(thought, end="", file=sys.stderr, flush=True)
            print(text, end="", flush=True)
            if is_unread():
                break  # the reader has gone, so the server need not compute more
    except KeyboardInterrupt:
        if not sys.stdin.isatty():
            raise
    print()
    if arguments.curl:
        print("\n" + curl_line(target.url, path, body, needs_key=target.api_key is not None))
    return "".join(pieces)


def _stream(target: TalkTarget, path: str, body: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields pieces of the reasoning and of the answer as they come. Raises ApplianceError."""
    headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    try:
        with _client(target.url) as http, http.stream("POST", path, json=body, headers=headers) as response:
            if response.status_code != httpx.codes.OK:
                response.read()
                raise ApplianceError(_error_text(response.status_code, response.content))
            for line in response.iter_lines():
                if line.startswith("data:") and (data := line[5:].strip()) != "[DONE]":
                    yield _texts_of(data)
    except httpx.HTTPError as error:
        raise _unreachable(target.url, error) from error


def _client(url: str) -> httpx.Client:
    """Returns a client for a server's root URL, or for unix:/path."""
    if url.startswith(UNIX):
        transport = httpx.HTTPTransport(uds=url.removeprefix(UNIX))
        return httpx.Client(transport=transport, base_url="http://localhost", timeout=_TIMEOUT)
    return httpx.Client(base_url=url, timeout=_TIMEOUT)


def _texts_of(data: str) -> tuple[str, str]:
    """Returns reasoning and text of one event, empty if it has none. Raises ApplianceError for an error event."""
    event: dict[str, Any] = msgspec.json.decode(data)
    if error := event.get("error"):
        raise ApplianceError(str(error.get("message", error) if isinstance(error, dict) else error))
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        return str(delta.get("reasoning_content") or ""), str(choice.get("text") or delta.get("content") or "")
    return "", ""


def _first_model(url: str, key: str | None) -> str:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with _client(url) as http:
            response = http.get("/v1/models", headers=headers)
    except httpx.HTTPError as error:
        raise _unreachable(url, error) from error
    if response.status_code != httpx.codes.OK:
        raise ApplianceError(_error_text(response.status_code, response.content))
    models = response.json().get("data") or []
    if not models:
        raise ApplianceError(f"{url} serves no model")
    return str(models[0]["id"])


def _unreachable(url: str, error: httpx.HTTPError) -> ApplianceError:
    return ApplianceError(f"no answer from {url}: {error or type(error).__name__}", hint="appliance status")


def _error_text(status: int, content: bytes) -> str:
    try:
        message = msgspec.json.decode(content)["error"]["message"]
    except (msgspec.DecodeError, KeyError, TypeError):
        message = content[:200].decode("utf-8", "replace")
    return f"the server answers {status}: {message}"


def _greet(target: TalkTarget) -> None:
    if sys.stdin.isatty():
        print(f"{target.model} at {target.url}; Ctrl-D ends", file=sys.stderr)


def _inputs() -> Iterator[str]:
    """Yields the user's lines that are not blank, until the input ends."""
    prompt = "> " if sys.stdin.isatty() else ""
    if prompt:
        import readline  # line editing and history for input()

        readline.set_history_length(1000)
    while True:
        try:
            line = input(prompt)
        except EOFError:
            return
        if line.strip():
            yield line
