"""The page for people, in a real browser against a running server; and what it may load, without one."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from appliance.base.hashing import key_hash
from appliance.engine.scripted import Script
from tests.server.browser import open_page
from tests.server.harness import Server, running, says

STATIC = Path(__file__).parents[2] / "appliance" / "server" / "admin" / "static"
ANSWER = "A plan is a frozen value.\n```python\nprint('hello')\n```\nNothing in it says <auto>."
SIZE = {"width": 1180, "height": 760}
HOSTILE = "<img src=x onerror=document.title='owned'>"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    replies = [says("What is a plan?", ANSWER), says("hostile", HOSTILE)]
    script = Script(replies=replies, step_seconds=0.002)
    with running(tmp_path_factory.mktemp("site"), script, docs=True, offline_docs=True) as server:
        yield server


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Where screenshots go: into the documentation when APPLIANCE_SCREENSHOTS names a folder."""
    return Path(os.environ.get("APPLIANCE_SCREENSHOTS", tmp_path))


def test_nothing_comes_from_outside(site: Server) -> None:
    with site.http() as http:
        for path in ("/", "/page.css", "/page.js", "/docs", "/docs.js", "/docs/offline"):
            answer = http.get(path)
            assert answer.status_code == 200
            addresses = re.findall(
                r"(?:https?:)?//[\w.-]+\.\w+", re.sub(r"http://www\.w3\.org/2000/svg", "", answer.text)
            )
            assert addresses == [], path
        policy = http.get("/").headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert http.get("/").headers["x-content-type-options"] == "nosniff"


def test_no_script_or_style_is_inline() -> None:
    for name in ("page.html", "docs.html"):
        text = (STATIC / name).read_text()
        assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*src=)", text), name
    for name in ("page.js", "docs.js"):
        assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|\beval\b", (STATIC / name).read_text()), (
            name
        )


def test_switched_off(tmp_path: Path) -> None:
    with running(tmp_path, Script(), page=False) as server, server.http() as http:
        assert {http.get(path).status_code for path in ("/", "/page.js", "/page.css", "/plan", "/docs")} == {404}


def test_the_plan_names_no_places(site: Server) -> None:
    with site.http() as http:
        plan = http.get("/plan")
        assert plan.json()["summary"]["Model"].startswith("scripted")
        assert "/tmp" not in plan.text
        assert "sha256:" not in plan.text


def test_a_chat(site: Server, pictures: Path) -> None:
    with open_page(site.url, viewport=SIZE, color_scheme="light") as page:
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.wait_for_selector("#state.ready")
        assert page.locator("#model option").all_inner_texts() == ["scripted", "alias"]
        page.fill("#temperature", "0")
        page.fill("#prompt", "What is a plan?")
        page.press("#prompt", "Enter")
        page.wait_for_selector("#send:not([disabled])")
        assert page.locator(".message.assistant pre").inner_text() == "print('hello')\n"
        assert "Nothing in it says <auto>." in page.locator(".message.assistant").inner_text()
        assert re.fullmatch(r"first token \d+ ms \u00b7 \d+ tokens.*", page.inner_text("#timing"))
        page.screenshot(path=pictures / "page-chat.png")
        page.fill("#prompt", "hostile")
        page.click("#send")
        page.wait_for_selector("#send:not([disabled])")
        assert HOSTILE in page.locator(".message.assistant").last.inner_text()
        assert page.title() != "owned"
        assert errors == []


def test_a_chat_is_stopped_and_errors_are_shown(site: Server) -> None:
    with open_page(site.url) as page:
        page.wait_for_selector("#state.ready")
        page.fill("#prompt", "unknown")
        page.click("#send")
        page.wait_for_selector("#stop:not([hidden])")
        page.wait_for_selector(".message.assistant:text-matches('.{4}')")
        page.click("#stop")
        page.wait_for_selector("#send:not([disabled])")
        page.click("#clear")
        page.fill("#top_p", "7")
        page.fill("#prompt", "What is a plan?")
        page.click("#send")
        page.wait_for_selector(".message.failed")
        assert "top_p" in page.inner_text(".message.failed")


def test_what_is_asked(site: Server) -> None:
    """Parameters, structured output and tools reach the server as the API has them."""
    with open_page(site.url) as page:
        page.wait_for_selector("#state.ready")
        asked: list[dict[str, Any]] = []

        def keep(route: Any) -> None:
            asked.append(route.request.post_data_json)
            calls = '{"tool_calls":[{"index":0,"id":"c","function":{"name":"weather","arguments":"{}"}}]}'
            thought = '{"reasoning_content":"hm"}'
            body = (
                "".join(f'data: {{"choices":[{{"delta":{delta}}}]}}\n\n' for delta in (thought, calls))
                + "data: [DONE]\n\n"
            )
            route.fulfill(status=200, content_type="text/event-stream", body=body)

        page.route("**/v1/chat/completions", keep)
        page.fill("#system", "Be brief.")
        for name, value in {"temperature": "0.5", "max_tokens": "7", "seed": "3", "stop-text": "END"}.items():
            page.fill(f"#{name}", value)
        page.click("text=Structured output")
        page.select_option("#format", "json_schema")
        page.fill("#schema", '{"type": "object"}')
        page.click("text=Tools")
        page.fill("#tools", '[{"name": "weather", "parameters": {"type": "object"}}]')
        page.fill("#prompt", "hello")
        page.click("#send")
        page.wait_for_selector(".call")
        assert page.inner_text(".call") == "weather({})"
        assert "hm" in page.locator(".message details").inner_text()
        body = asked[0]
        assert body["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
        assert (body["temperature"], body["max_tokens"], body["seed"], body["stop"]) == (0.5, 7, 3, ["END"])
        assert body["response_format"]["json_schema"]["schema"] == {"type": "object"}
        assert body["tools"][0]["function"]["name"] == "weather"


def test_figures_and_plan(site: Server, pictures: Path) -> None:
    with open_page(site.url, viewport=SIZE, color_scheme="dark") as page:
        page.wait_for_selector("#state.ready")
        page.click("#tab-figures")
        page.wait_for_selector("#plots figure")
        with site.http() as http:
            for _ in range(4):
                http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "What is a plan?"}]})
        page.wait_for_selector("#plots figure:first-child output:text-matches('[1-9]')")
        assert page.locator("#plots figure").count() == 7
        page.screenshot(path=pictures / "page-figures.png")
        page.keyboard.press("Tab")
        page.focus("#tab-figures")
        page.keyboard.press("ArrowRight")
        page.wait_for_selector("#summary div")
        assert "scripted" in page.inner_text("#summary")
        assert page.get_attribute("#tab-plan", "aria-selected") == "true"
        page.click("#theme")
        assert page.get_attribute("html", "data-theme") == "light"


def test_every_control_has_a_name(site: Server) -> None:
    with open_page(site.url) as page:
        unnamed = page.evaluate(
            """() => [...document.querySelectorAll('input, select, textarea, button')].filter((control) =>
                !(control.labels?.length || control.textContent.trim() || control.getAttribute('aria-label')))
                .map((control) => control.id)"""
        )
        assert unnamed == []


def test_a_key_is_asked_for(tmp_path: Path) -> None:
    plan: dict[str, Any] = {"key_hashes": {"a": key_hash("secret")}, "docs": True}
    with running(tmp_path, Script(replies=[says("greet", "hello")]), **plan) as server:
        with httpx.Client(base_url=server.url) as http:
            assert http.get("/").status_code == 200
            assert http.get("/plan").status_code == http.get("/openapi.json").status_code == 401
        with open_page(server.url) as page:
            page.wait_for_selector("#key-box:not([hidden])")
            page.fill("#key", "secret")
            page.press("#key", "Tab")
            page.wait_for_selector("#model option", state="attached")
            page.fill("#prompt", "greet")
            page.click("#send")
            page.wait_for_selector("#send:not([disabled])")
            assert page.inner_text(".message.assistant") == "hello"


def test_the_reference_of_the_api(site: Server, tmp_path: Path) -> None:
    with open_page(f"{site.url}/docs") as page:
        page.wait_for_selector("#operations details")
        page.click("text=POST /v1/chat/completions")
        assert "temperature" in page.locator("#operations details[open]").inner_text()
    with site.http() as http:
        saved = tmp_path / "api.html"
        saved.write_bytes(http.get("/docs/offline").content)
    with open_page(saved.as_uri()) as page:
        page.wait_for_selector("#operations details")
        assert page.locator("#operations details").count() > 10
