"""What changes under a running server: streams go on, no connection is refused."""

import os
import random
import signal
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import msgspec
import pytest

from appliance.base.errors import ApplyError
from appliance.deploy.execute import ApplyResult, DesiredState
from appliance.deploy.observe import observe
from appliance.deploy.process import ProcessId, descendants, identify, is_running
from appliance.deploy.reconcile import Readiness
from appliance.deploy.state import DeploymentState
from appliance.engine.scripted import Script
from appliance.plan.serving_types import TlsPlan
from tests.deploy.applying import apply, ask, wanted
from tests.server.certificates import authority
from tests.server.harness import says, wait_until

LONG = "hello world " * 8
SLOW = Script(replies=[says("greet", "hello world"), says("long", LONG)], step_seconds=0.03)


class Stream(threading.Thread):
    """One streamed answer, read while other things happen."""

    def __init__(self, url: str, model: str = "scripted") -> None:
        super().__init__()
        self._url, self._model = url, model
        self.has_begun = threading.Event()
        self.text = ""
        self.start()
        assert self.has_begun.wait(20.0)

    def run(self) -> None:
        body = {"model": self._model, "messages": [{"role": "user", "content": "long"}], "stream": True}
        with httpx.stream("POST", f"{self._url}/v1/chat/completions", json=body, timeout=30.0) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    for choice in msgspec.json.decode(line[6:])["choices"]:
                        self.text += choice["delta"].get("content") or ""
                    self.has_begun.set()


class Caller(threading.Thread):
    """Asks again and again, each time on a connection of its own."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._stop_asking = threading.Event()
        self.answers: list[str] = []
        self.errors: list[str] = []

    def run(self) -> None:
        while not self._stop_asking.is_set():
            try:
                self.answers.append(ask(self._url))
            except httpx.HTTPError as error:
                self.errors.append(repr(error))

    def end(self) -> None:
        self._stop_asking.set()
        self.join()


@contextmanager
def asking(url: str) -> Iterator[Caller]:
    caller = Caller(url)
    caller.start()
    try:
        yield caller
    finally:
        caller.end()


def test_live_changes_keep_the_engine_and_every_stream(state: DeploymentState, tmp_path: Path) -> None:
    def named(name: str) -> DesiredState:
        return wanted(tmp_path / "a", SLOW, served_names=["scripted", name], server_load_tracking=True)

    first = apply(state, named("first"))
    family = [first.current.process, *descendants(first.current.process)]
    stream = Stream(first.current.url)
    assert apply(state, named("second")).how == "reload"
    assert httpx.get(f"{first.current.url}/load").json() == {"server_load": 1}  # the stream of the former plan
    with asking(first.current.url) as caller:
        for round_ in range(20):
            changed = apply(state, named(f"name-{round_}"))
            assert changed.how == "reload"
    stream.join()
    assert stream.text == LONG
    assert (caller.errors, set(caller.answers)) == ([], {"hello world"})
    assert all(map(is_running, family))
    assert changed.current.process == first.current.process
    assert (changed.current.generation, changed.current.home_generation) == (22, 1)
    models = httpx.get(f"{changed.current.url}/v1/models").json()["data"]
    assert [model["id"] for model in models] == ["scripted", "name-19"]
    assert apply(state, named("name-19")).how == "kept"


def test_a_key_that_is_taken_away_opens_nothing(state: DeploymentState, tmp_path: Path) -> None:
    from appliance.base.hashing import key_hash

    first = apply(state, wanted(tmp_path / "a", key_hashes={"old": key_hash("one")}))
    models = f"{first.current.url}/v1/models"
    assert httpx.get(models, headers={"x-api-key": "one"}).status_code == 200
    assert apply(state, wanted(tmp_path / "a", key_hashes={"new": key_hash("two")})).how == "reload"
    assert httpx.get(models, headers={"x-api-key": "one"}).status_code == 401
    assert httpx.get(models, headers={"x-api-key": "two"}).status_code == 200


def test_scheduler_caps_reach_the_engine_and_the_one_after_it(state: DeploymentState, tmp_path: Path) -> None:
    restarts = {"restart": "on-failure", "max_restarts": 1}
    first = apply(state, wanted(tmp_path / "a", **restarts))
    url, engine = first.current.url, engine_of(first)
    assert steps_of_a_prompt(url) <= 4
    caps = restarts | {"long_prefill_token_threshold": 8}
    assert apply(state, wanted(tmp_path / "a", **caps)).how == "reload"
    assert engine_of(first) == engine
    assert steps_of_a_prompt(url) >= 12, "a long prompt takes 8 tokens of a step"
    os.kill(engine.pid, signal.SIGKILL)
    wait_until(lambda: observe(state).readiness is Readiness.NOT_READY, "the server noticed")
    wait_until(lambda: observe(state).readiness is Readiness.READY, "the engine is back")
    assert engine_of(first) != engine
    assert steps_of_a_prompt(url) >= 12, "the engine that came after goes by them too"


def test_limits_that_are_raised_are_raised_in_the_engine_too(state: DeploymentState, tmp_path: Path) -> None:
    first = apply(state, wanted(tmp_path / "a", max_n=2, max_logprobs=1))

    def ask_for(**more: int) -> int:
        body = {"model": "scripted", "prompt": "greet", "max_tokens": 2}
        return httpx.post(f"{first.current.url}/v1/completions", json=body | more, timeout=20.0).status_code

    assert [ask_for(n=3), ask_for(logprobs=3)] == [400, 400]
    assert apply(state, wanted(tmp_path / "a", max_n=4, max_logprobs=5)).how == "reload"
    assert [ask_for(n=3), ask_for(logprobs=3)] == [200, 200]


def engine_of(result: ApplyResult) -> ProcessId:
    below = descendants(result.current.process)
    [engine] = [each for each in below if b"appliance.engine" in Path(f"/proc/{each.pid}/cmdline").read_bytes()]
    return engine


def steps_of_a_prompt(url: str) -> int:
    """Returns the steps of a prompt of 100 tokens that are not cached."""
    before = num_steps(url)
    prompt = [ord("a") + random.randrange(26) for _ in range(100)]
    body = {"model": "scripted", "prompt": prompt, "max_tokens": 1}
    httpx.post(f"{url}/v1/completions", json=body, timeout=20.0).raise_for_status()
    return num_steps(url) - before


def num_steps(url: str) -> int:
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    [line] = [line for line in lines if line.startswith("appliance_engine_steps_total")]
    return int(float(line.rsplit(maxsplit=1)[1]))


@pytest.mark.parametrize("api_servers", [1, 2])
def test_certificates_change_under_open_connections(state: DeploymentState, tmp_path: Path, api_servers: int) -> None:
    ours, clients, later = authority("ours"), authority("clients"), authority("later")
    for each in (ours, clients, later):
        each.write(tmp_path / f"{each.name}.pem")
    (tmp_path / "later").mkdir()
    first_files, later_files = ours.issue(tmp_path, "server"), later.issue(tmp_path / "later", "server")
    client = clients.issue(tmp_path, "client")

    def tls(files: tuple[Path, Path], **more: str) -> DesiredState:
        plan = TlsPlan(certfile=str(files[0]), keyfile=str(files[1]), **more)  # type: ignore[arg-type]
        return wanted(tmp_path / "a", tls=plan, api_servers=api_servers)

    def trusting(ca: str, *certificate: Path) -> httpx.Client:
        context = ssl.create_default_context(cafile=str(tmp_path / f"{ca}.pem"))
        if certificate:
            context.load_cert_chain(*map(str, certificate))
        return httpx.Client(verify=context, base_url=first.current.url, timeout=20.0)

    first = apply(state, tls(first_files))
    with trusting("ours") as open_before:
        assert open_before.get("/livez").status_code == 200
        assert apply(state, tls(later_files)).how == "reload"
        for _ in range(4):
            with trusting("later") as http, trusting("ours") as distrusting:
                assert http.get("/livez").status_code == 200
                with pytest.raises(httpx.ConnectError):
                    distrusting.get("/livez")
        required = tls(later_files, ca_certs=str(tmp_path / "clients.pem"), client_certificates="required")
        assert apply(state, required).how == "reload"
        for _ in range(4):
            with trusting("later", *client) as http, trusting("later") as stranger:
                assert http.get("/livez").status_code == 200
                with pytest.raises(httpx.TransportError):
                    stranger.get("/livez")
        with pytest.raises(ApplyError, match=r"endpoints\.tls"):
            apply(state, tls((tmp_path / "none.pem", later_files[1])))
        with trusting("later", *client) as http:
            assert http.get("/livez").status_code == 200
        if api_servers == 1:
            assert open_before.get("/livez").status_code == 200  # as its handshake left it
    assert apply(state, wanted(tmp_path / "a", api_servers=api_servers)).how == "beside"


def test_a_refused_reload_leaves_what_served(state: DeploymentState, tmp_path: Path) -> None:
    first = apply(state, wanted(tmp_path / "a"))
    with pytest.raises(ApplyError, match="the chat template is broken at line 1"):
        apply(state, wanted(tmp_path / "a", chat_template="{{ broken"))
    seen = observe(state)
    assert seen.current == first.current
    assert ask(first.current.url) == "hello world"
    result = state.generation(2).result()
    assert result is not None
    assert (result.outcome, result.how) == ("failed", "reload")


@pytest.mark.parametrize("how", ["beside", "in place"])
def test_a_new_server_takes_the_socket_over(state: DeploymentState, tmp_path: Path, how: str) -> None:
    first = apply(state, wanted(tmp_path / "a", SLOW))
    stream = Stream(first.current.url)
    with asking(first.current.url) as caller:
        second = apply(state, wanted(tmp_path / "a", SLOW, max_num_seqs=4), has_room=how == "beside")
        assert ask(second.current.url) == "hello world"
    stream.join()
    assert (second.how, second.current.url) == (how, first.current.url)
    assert stream.text == LONG
    assert (caller.errors, set(caller.answers)) == ([], {"hello world"})
    assert not is_running(first.current.process)
    assert observe(state).current == second.current


def test_a_unix_socket_is_taken_over(state: DeploymentState, tmp_path: Path) -> None:
    place = str(tmp_path / "s")
    first = apply(state, wanted(tmp_path / "a", uds=place))
    second = apply(state, wanted(tmp_path / "a", uds=place, max_num_seqs=4))
    assert second.how == "beside"
    assert not is_running(first.current.process)
    with httpx.Client(transport=httpx.HTTPTransport(uds=place)) as client:
        assert client.get("http://localhost/readyz").status_code == 200


def test_what_a_killed_apply_left_is_ended(state: DeploymentState, tmp_path: Path) -> None:
    first = apply(state, wanted(tmp_path / "a"))
    with subprocess.Popen(["sleep", "600"]) as orphan:
        left = identify(orphan.pid)
        assert left is not None
        state.write_current(msgspec.structs.replace(first.current, leftover=(left,)))
        assert apply(state, wanted(tmp_path / "a")).how == "kept"
        assert not is_running(left)
    seen = observe(state)
    assert (seen.readiness, seen.current) == (Readiness.READY, first.current)


def test_live_changes_reach_every_api_process(state: DeploymentState, tmp_path: Path) -> None:
    """All take the plan or none does, streams go on, and a new server takes the socket over from all of them."""
    first = apply(state, wanted(tmp_path / "a", SLOW, api_servers=3))
    family = [first.current.process, *descendants(first.current.process)]
    streams = [Stream(first.current.url) for _ in range(4)]
    with asking(first.current.url) as caller:
        changed = apply(state, wanted(tmp_path / "a", SLOW, api_servers=3, served_names=["scripted", "other"]))
        assert changed.how == "reload"
        for _ in range(8):
            models = httpx.get(f"{first.current.url}/v1/models").json()["data"]
            assert [model["id"] for model in models] == ["scripted", "other"]
        with pytest.raises(ApplyError, match="the chat template is broken"):
            apply(state, wanted(tmp_path / "a", SLOW, api_servers=3, chat_template="{{ broken"))
        assert all(map(is_running, family))
        fewer = apply(state, wanted(tmp_path / "c", SLOW, api_servers=2))
        assert fewer.how == "beside"
    for stream in streams:
        stream.join()
        assert stream.text == LONG
    assert (caller.errors, set(caller.answers)) == ([], {"hello world"})
    assert not any(map(is_running, family))
    assert ask(fewer.current.url) == "hello world"
