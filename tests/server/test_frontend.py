"""TLS, Unix sockets, root paths, CORS, middleware and the access log."""

import json
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from appliance.base.hashing import key_hash
from appliance.deploy.probe import ask_ready
from appliance.engine.scripted import Script
from tests.server.certificates import authority
from tests.server.harness import Server, continues, running, says, wait_until

GREET = {"messages": [{"role": "user", "content": "greet"}]}
SCRIPT = Script(replies=[says("greet", "hello")])


def trusting(ca: Path, *certificate: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(ca))
    if certificate:
        context.load_cert_chain(*map(str, certificate))
    return context


def test_tls_with_client_certificates_that_are_renewed(tmp_path: Path) -> None:
    ours, theirs, next_authority = authority("ours"), authority("theirs"), authority("next")
    ca, client_ca = ours.write(tmp_path / "ca.pem"), theirs.write(tmp_path / "clients.pem")
    certfile, keyfile = ours.issue(tmp_path, "server")
    client = theirs.issue(tmp_path, "client")
    foreign = next_authority.issue(tmp_path, "foreign")
    tls = {
        "certfile": str(certfile), "keyfile": str(keyfile), "ca_certs": str(client_ca),
        "client_certificates": "required", "refresh": True,
    }  # fmt: skip
    with running(tmp_path, SCRIPT, tls=tls) as server:
        assert server.url.startswith("https://127.0.0.1:")
        assert ask_ready(server.url).is_ready
        with server.http(verify=trusting(ca, *client)) as http:
            first = http.post("/v1/chat/completions", json=GREET)
            assert first.json()["choices"][0]["message"]["content"] == "hello"
            for stranger in (trusting(ca), trusting(ca, *foreign)):
                with server.http(verify=stranger) as refused, pytest.raises(httpx.TransportError):
                    refused.get("/livez")
            with pytest.raises(httpx.ConnectError), server.http(verify=trusting(client_ca, *client)) as distrusting:
                distrusting.get("/livez")
            new_ca = next_authority.write(tmp_path / "new-ca.pem")
            next_authority.issue(tmp_path, "server")
            client_ca.write_bytes(new_ca.read_bytes())
            with server.http(verify=trusting(new_ca, *foreign)) as renewed:
                assert renewed.get("/livez").status_code == 200
            with server.http(verify=trusting(new_ca, *client)) as refused, pytest.raises(httpx.TransportError):
                refused.get("/livez")
            assert http.get("/livez").status_code == 200  # its connection goes on


def test_tls_files_are_checked_at_the_start(tmp_path: Path) -> None:
    tls = {"certfile": str(tmp_path / "no.pem"), "keyfile": str(tmp_path / "no.key")}
    with running(tmp_path, Script(), wait=False, tls=tls) as server:
        server.process.wait(20)
        assert "endpoints.tls" in [event for event in server.events() if event["event"] == "failed"][-1]["reason"]


def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    for _ in range(2):  # the second server takes over what the first, which is killed, leaves behind
        with running(tmp_path, SCRIPT, uds=str(path)) as server:
            assert server.url == f"unix:{path}"
            assert stat.S_IMODE(path.stat().st_mode) == 0o660
            assert ask_ready(server.url).is_ready
            transport = httpx.HTTPTransport(uds=str(path))
            with httpx.Client(transport=transport, base_url="http://localhost", timeout=20) as http:
                answer = http.post("/v1/chat/completions", json=GREET)
                assert answer.json()["choices"][0]["message"]["content"] == "hello"
        (tmp_path / "status.jsonl").unlink()
    with running(tmp_path, SCRIPT, uds=str(path)) as server:
        server.terminate()
        assert server.process.wait(20) == 0
        assert not path.exists()


@pytest.mark.parametrize("taken", ["file", "socket"])
def test_a_unix_socket_that_is_taken(tmp_path: Path, taken: str) -> None:
    import socket

    path = tmp_path / "api.sock"
    with socket.socket(socket.AF_UNIX) as other:
        if taken == "file":
            path.write_text("precious")
        else:
            other.bind(str(path))
            other.listen()
        with running(tmp_path, Script(), wait=False, uds=str(path)) as server:
            server.process.wait(20)
            assert "cannot listen" in server.log.read_text()
        assert path.exists()


def test_a_root_path(tmp_path: Path) -> None:
    """A proxy that takes the prefix away and one that does not both reach the routes, and both need the key."""
    plan: dict[str, Any] = {"root_path": "/llm", "key_hashes": {"a": key_hash("secret")}}
    with running(tmp_path, SCRIPT, **plan) as server, server.http() as http:
        assert http.get("/v1/models").status_code == 401
        assert http.get("/llm/livez").status_code in (200, 401)
        assert http.get("/v1/models", headers={"x-api-key": "secret"}).status_code == 200
        assert http.get("/livez").status_code == 200


def test_cors(tmp_path: Path) -> None:
    cors = {"methods": ["POST"], "headers": ["authorization"], "credentials": True, "origins": ["https://app.example"]}
    with running(tmp_path, SCRIPT, cors=cors) as server, server.http() as http:
        asked = {"origin": "https://app.example", "access-control-request-method": "POST"}
        allowed = http.options("/v1/models", headers=asked)
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-credentials"] == "true"
        assert http.options("/v1/models", headers={**asked, "origin": "https://evil.example"}).status_code == 400
        assert http.options("/v1/models", headers={**asked, "access-control-request-method": "PUT"}).status_code == 400
        answer = http.post("/v1/chat/completions", json=GREET, headers={"origin": "https://evil.example"})
        assert "access-control-allow-origin" not in answer.headers


def test_middleware_runs_behind_the_gate(tmp_path: Path) -> None:
    names = ["tests.server.middleware.Stamp", "tests.server.middleware:refuse_teapots"]
    plan: dict[str, Any] = {"middleware": names, "key_hashes": {"a": key_hash("secret")}}
    with running(tmp_path, SCRIPT, **plan) as server, server.http() as http:
        key = {"x-api-key": "secret"}
        answer = http.post("/v1/chat/completions", json=GREET, headers=key)
        assert (answer.status_code, answer.headers["x-stamp"]) == (200, "1")
        assert http.get("/version", headers={**key, "teapot": "1"}).status_code == 418
        refused = http.get("/version", headers={"teapot": "1"})
        assert refused.status_code == 401
        assert "x-stamp" not in refused.headers


@pytest.mark.parametrize("where", ["before", "handler", "midst"])
def test_a_fault_of_ours_is_logged_once(failing: Server, where: str) -> None:
    def num_logged() -> int:
        return failing.log.read_text().count("Traceback (most recent call last)")

    before = num_logged()
    with failing.http() as http:
        try:
            answer = http.post("/tokenize", json={"prompt": "x"}, headers={"x-fail": where})
        except httpx.RemoteProtocolError:
            assert where == "midst"  # it had begun, so it can only be cut
        else:
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["type"]) == (500, "internal_error", "server_error")
        wait_until(lambda: num_logged() > before, "it is logged")
        assert http.get("/livez").status_code == 200  # whatever else would be logged is by now
    assert num_logged() == before + 1


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    plan: dict[str, Any] = {"middleware": ["tests.server.middleware.Failing"]}
    with running(tmp_path_factory.mktemp("failing"), SCRIPT, **plan) as server:
        yield server


@pytest.mark.parametrize(
    "name", ["no_such_module.Thing", "tests.server.middleware.Nothing", "tests.server.middleware.NOT_MIDDLEWARE"]
)
def test_middleware_that_is_none_ends_the_start(tmp_path: Path, name: str) -> None:
    with running(tmp_path, Script(), wait=False, middleware=[name]) as server:
        server.process.wait(20)
        assert name in [event for event in server.events() if event["event"] == "failed"][-1]["reason"]
        assert "Traceback" not in server.log.read_text()


def test_logs_hold_no_secrets(tmp_path: Path) -> None:
    """Neither keys nor whole prompts, and nothing from a client begins a line."""
    secret, prompt = "sk-very-secret", "confidential " * 20
    plan: dict[str, Any] = {
        "key_hashes": {"alice": key_hash(secret)}, "access_log": True, "log_requests": True,
        "max_log_len": 20, "request_id_headers": True,
    }  # fmt: skip
    with running(tmp_path, Script(replies=[continues(prompt, "ok")]), **plan) as server:
        with server.http(headers={"authorization": f"Bearer {secret}"}) as http:
            http.post("/v1/completions", json={"prompt": prompt})
            http.get(f"/v1/models?key={secret}")
            http.get("/x%0a12:00:00.000 error forged%1b[31m", headers={"x-request-id": "a", "x-evil": "b"})
            http.post("/v1/completions", json={"prompt": "a\n12:00:00.000 error forged\x1b[31m", "max_tokens": 1})
            http.get("/" + "y" * 5000)
        with server.http() as http:
            http.get("/version", headers={"x-api-key": "sk-wrong-secret"})
        wait_until(lambda: "status=401" in server.log.read_text(), "the last line is written")
        log = server.log.read_text()
        assert "secret" not in log
        assert prompt not in log
        assert "confidential" in log
        assert "answered method=POST path=/v1/completions status=200" in log
        assert "key=alice" in log
        assert all(line[2] == ":" for line in log.splitlines() if line)
        assert not any(line.startswith("12:00:00") for line in log.splitlines())
        assert "\x1b" not in log
        assert "y" * 300 not in log


def test_answers_are_logged_where_planned(tmp_path: Path) -> None:
    plan: dict[str, Any] = {"log_requests": True, "max_log_len": 8, "log_outputs": True}
    with running(tmp_path, Script(replies=[says("greet", "hello\nworld")]), **plan) as server, server.http() as http:
        http.post("/v1/chat/completions", json={**GREET, "n": 2, "request_id": "mine"})
        wait_until(lambda: server.log.read_text().count("answer id=mine") == 2, "both are written")
        log = server.log.read_text()
        assert 'server: answer id=mine index=1 text="hello\\nwo" finished=stop' in log
        assert "world" not in log


def test_a_logging_configuration_of_ones_own(tmp_path: Path) -> None:
    """It decides for server and engine; one that is wrong ends the start with its name."""
    lines = tmp_path / "lines.log"
    config = {
        "version": 1,
        "formatters": {"plain": {"format": "%(name)s|%(message)s"}},
        "handlers": {"file": {"class": "logging.FileHandler", "filename": str(lines), "formatter": "plain"}},
        "loggers": {"appliance": {"level": "INFO", "handlers": ["file"], "propagate": False}},
    }
    path = tmp_path / "logging.json"
    path.write_text(json.dumps(config))
    logs = {"config_file": str(path), "access_log": True}
    with running(tmp_path, Script(), logs=logs) as server:
        with server.http() as http:
            http.get("/v1/models")
        wait_until(lambda: "appliance.access|answered" in lines.read_text(), "the line is there")
        assert "appliance.service|engine state" in lines.read_text()
        assert server.log.read_text() == ""
    path.write_text(json.dumps({**config, "handlers": {"file": {"class": "no.such.Handler"}}}))
    with running(tmp_path, Script(), wait=False, logs=logs) as server:
        assert server.process.wait(20) == 1
        reason = [event for event in server.events() if event["event"] == "failed"][-1]["reason"]
        assert "log_config_file" in reason
        assert str(path) in reason
