"""The examples of the guide, run as they stand."""

import contextlib
import io
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.engine.scripted import Script
from tests.server.harness import Server, continues, running, says

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "structured-output.md"
BLOCKS = re.findall(r"^```(python|sh)\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
SAYS = Script(
    replies=[
        says("Ada Lovelace, 36. As JSON.", '{"name":"Ada","age":36}'),
        says("Name a colour. As JSON.", '{"colour":"green"}'),
        continues("A date: ", "2026-11-21"),
        says("Is water wet?", "no"),
        continues("2 + 3 = ", "5"),
        says("Call the weather function for Rome.", 'Now: <call=weather>{"city":"Rome"}</call>'),
    ]
)
EXPECTED = ("name='Ada' age=36", '"colour', "2026-11-21", "no", "5", '<call=weather>{"city":"Rome"}</call>')


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("guide"), SAYS) as ready:
        yield ready


def test_every_example_is_here() -> None:
    assert len(BLOCKS) == len(EXPECTED)


@pytest.mark.parametrize("number", range(len(EXPECTED)))
def test_an_example_runs(server: Server, number: int) -> None:
    kind, code = BLOCKS[number]
    if kind == "sh":
        environment = {"URL": server.url, "MODEL": "scripted", "PATH": "/usr/bin:/bin"}
        shown = subprocess.run(["bash", "-c", code], env=environment, capture_output=True, text=True, check=True).stdout
        shown = json.loads(shown)["choices"][0]["message"]["content"]
    else:
        printed = io.StringIO()
        with server.openai() as client, contextlib.redirect_stdout(printed):
            exec(compile(code, str(GUIDE), "exec"), {"client": client, "model": "scripted"})
        shown = printed.getvalue()
    assert EXPECTED[number] in shown
