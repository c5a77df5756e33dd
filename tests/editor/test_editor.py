"""What editors and checkers that we did not write make of the schema.

The packages are those of package.json: `npm install --prefix tests/editor`. Without them the tests are skipped.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from appliance.cli import init
from appliance.cli.arguments.spec import InitArguments
from tests.editor.language_server import LanguageServer

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SCHEMA = ROOT / "schemas" / "deployment.v1.json"
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.yaml"))
BROKEN = ROOT / "tests" / "spec" / "broken"
NODE = shutil.which("node")
AJV = """
const Ajv = require("ajv");
const {schema, documents} = JSON.parse(require("fs").readFileSync(0));
const validate = new Ajv({strict: false, allErrors: true}).compile(schema);
console.log(JSON.stringify(documents.map((each) => validate(each) ? [] : validate.errors)));
"""


def package(name: str) -> Path:
    found = HERE / "node_modules" / name
    if NODE is None:
        pytest.skip("node is not here")
    if not found.is_dir():
        pytest.skip(f"{name} is not installed: npm install --prefix tests/editor")
    return found


@pytest.fixture(scope="module")
def server() -> Iterator[LanguageServer]:
    folder = package("yaml-language-server")
    with LanguageServer([str(NODE), str(folder / "bin" / "yaml-language-server"), "--stdio"]) as started:
        yield started


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """What `appliance init --schema` writes: its first line names the schema beside it."""
    path = tmp_path / "deployment.yaml"
    init.run(InitArguments(path=str(path), with_schema=True))
    return path


def test_a_new_spec_is_right_in_an_editor(server: LanguageServer, file: Path) -> None:
    assert file.read_text().startswith("# yaml-language-server: $schema=")
    assert server.open(file) == []


def test_an_editor_marks_the_line_of_a_mistake(server: LanguageServer, file: Path) -> None:
    file.write_text(file.read_text() + "scheduler:\n  max_num_seq: 4\n  policy: fastest\n")
    last = len(file.read_text().splitlines()) - 1
    found = {each["range"]["start"]["line"]: each["message"] for each in server.open(file)}
    assert set(found) == {last - 1, last}
    assert "max_num_seq" in found[last - 1]
    assert "fcfs" in found[last]


def test_an_editor_completes_and_explains(server: LanguageServer, file: Path) -> None:
    file.write_text(file.read_text() + "cache:\n  block_size: 16\n  \n")
    server.open(file)
    lines = file.read_text().split("\n")
    row = lines.index("  block_size: 16")
    labels = {each["label"] for each in server.at("completion", file, row + 1, 2)["items"]}
    assert {"dtype", "prefix_caching"} <= labels
    assert "tokens" in str(server.at("hover", file, row, 4)["contents"]).lower()


def test_an_environment_need_not_repeat_its_base(server: LanguageServer, file: Path) -> None:
    head = file.read_text().splitlines()[0]
    prod = file.with_name("prod.yaml")
    prod.write_text(f"{head}\ninclude: [deployment.yaml]\nmodel: {{max_model_len: 4K}}\n")
    assert server.open(prod) == []
    prod = file.with_name("wrong.yaml")
    prod.write_text(f"{head}\nmodel: {{max_model_len: 4K}}\n")
    assert {"api_version", "source"} <= {word for each in server.open(prod) for word in each["message"].split('"')}


def test_ajv_agrees() -> None:
    package("ajv")
    documents = [yaml.safe_load(each.read_text()) for each in EXAMPLES]
    documents.append(yaml.safe_load((BROKEN / "unknown-in-list.yaml").read_text()))
    given = json.dumps({"schema": json.loads(SCHEMA.read_text()), "documents": documents})
    done = subprocess.run([str(NODE), "-e", AJV], input=given, capture_output=True, text=True, cwd=HERE, check=True)
    *good, bad = json.loads(done.stdout)
    assert not any(good)
    assert bad


def test_check_jsonschema_agrees() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--schemafile", str(SCHEMA)]
    done = subprocess.run([*command, *map(str, EXAMPLES)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    done = subprocess.run([*command, str(BROKEN / "unknown-in-list.yaml")], capture_output=True, text=True, check=False)
    assert done.returncode == 1
