"""One changed byte in anything that answers depend on is found and named; everything else leaves the lock as it is."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.cli.app import main
from appliance.deploy.pins import collect
from appliance.deploy.pins.collect import collect_lock
from appliance.deploy.pins.lockfile import Lock, LockError, differences, lock_path, lock_text, read_lock, require_same
from appliance.plan.prepare import prepare
from tests.models.tiny import make_tiny
from tests.server.harness import byte_tokenizer

SPEC = """\
api_version: appliance/v1
kind: Deployment
name: locked
model: {source: ./model, chat_template: ./chat.jinja}
decoding: {override_generation_config: {temperature: 0.5}}
"""
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("locked")
    make_tiny("llama", folder / "model")
    byte_tokenizer().save(str(folder / "model" / "tokenizer.json"))
    (folder / "model" / "generation_config.json").write_text(json.dumps({"top_k": 40}))
    (folder / "model" / "README.md").write_text("a model")
    (folder / "chat.jinja").write_text(TEMPLATE)
    (folder / "deployment.yaml").write_text(SPEC)
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "copy")
    return tmp_path / "copy"


def lock_of(folder: Path) -> Lock:
    return collect_lock(prepare(folder / "deployment.yaml").plan)


def flip(path: Path, at: int = -2) -> None:
    """One bit of one byte; near the end, where it is not a header."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def edit(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new, 1))

    return change


# What a spec, or a file it names, may say otherwise, for every planned value in a lock.
PLANNED: dict[str, Callable[[Path], None]] = {
    "chat_template": edit("chat.jinja", "content", "contenu"),
    "config_overrides": edit("deployment.yaml", "source:", "rope_theta: 5000.0, source:"),
    "default_sampling": edit("deployment.yaml", "0.5", "0.6"),
    "max_model_len": edit("deployment.yaml", "source:", "max_model_len: 64, source:"),
    "parsers": edit("deployment.yaml", "decoding: {", "decoding: {reasoning_parser: deepseek_r1, "),
    "precision": edit("deployment.yaml", "name: locked", "name: locked\ncache: {dtype: float16}"),
    "seed": edit("deployment.yaml", "source:", "seed: 7, source:"),
    "structured_output": edit("deployment.yaml", "decoding: {", "decoding: {disable_any_whitespace: true, "),
}


def test_a_flipped_byte_in_any_file_is_refused_and_named(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it lies: what cannot be read any more is refused as well."""
    monkeypatch.setenv("APPLIANCE_STATE", str(folder / "state"))
    spec = str(folder / "deployment.yaml")
    assert main(["lock", spec]) == 0
    files = read_lock(folder / "deployment.lock").files
    assert {Path(name).name for name in files} == {
        "model.safetensors", "config.json", "tokenizer.json", "generation_config.json"
    }  # fmt: skip
    for name in files:
        whole = (folder / name).read_bytes()
        for at in (0, len(whole) // 2, len(whole) - 2):
            flip(folder / name, at)
            capsys.readouterr()
            assert main(["apply", spec, "--locked"]) != 0
            assert Path(name).name in capsys.readouterr().err, (name, at)
            (folder / name).write_bytes(whole)
    assert main(["lock", spec, "--check"]) == 0
    assert not (folder / "state" / "locked").exists()


@pytest.mark.parametrize("named", PLANNED)
def test_another_planned_value_is_named(named: str, folder: Path) -> None:
    locked = lock_of(folder)
    assert set(PLANNED) == set(locked.planned)
    PLANNED[named](folder)
    assert f"planned: {named}" in [each.what for each in differences(locked, lock_of(folder))]


def test_a_file_that_comes_is_named(folder: Path) -> None:
    locked = lock_of(folder)
    (folder / "model" / "extra.json").write_text("{}")
    assert [each.what for each in differences(locked, lock_of(folder))] == ["files: model/extra.json"]


def test_a_changed_kernel_library_is_named(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locked = lock_of(folder)
    level = locked.kernels["kernel_set"].removeprefix("cpu-")
    other = tmp_path / "library.so"
    shutil.copy(collect.library_path(level), other)
    flip(other)
    monkeypatch.setattr(collect, "library_path", lambda level: other)
    assert [each.what for each in differences(locked, lock_of(folder))] == ["kernels: library"]


def test_another_kernel_set_is_named(folder: Path) -> None:
    locked = lock_of(folder)
    edit("deployment.yaml", "name: locked", "name: locked\nhardware: {kernels: {kernel_set: cpu-generic}}")(folder)
    found = [each.what for each in differences(locked, lock_of(folder))]
    assert {"kernels: kernel_set", "kernels: library"} <= set(found)


@pytest.mark.parametrize("package", collect.ANSWERING_PACKAGES)
def test_another_version_of_a_package_is_named(package: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locked, version = lock_of(folder), collect._version
    monkeypatch.setattr(collect, "_version", lambda name: "0.0" if name == package else version(name))
    assert [each.what for each in differences(locked, lock_of(folder))] == [f"packages: {package}"]


def test_what_no_answer_depends_on_is_free(folder: Path) -> None:
    before = lock_text(lock_of(folder))
    (folder / "model" / "README.md").write_text("another text")
    (folder / "model" / ".cache.json").write_text("{}")
    edit("deployment.yaml", "name: locked", "name: locked\nendpoints: {http: {port: 8123}}")(folder)
    assert lock_text(lock_of(folder)) == before


def test_the_text_is_the_same_wherever_the_model_lies(folder: Path, original: Path) -> None:
    assert lock_text(lock_of(folder)) == lock_text(lock_of(original))
    path = folder / "x.lock"
    path.write_text(lock_text(lock_of(folder)))
    assert lock_text(read_lock(path)) == path.read_text()


@pytest.mark.parametrize(
    "text", ["", "[", "version: 1", "version: 9\nname: a\nfiles: {}\nplanned: {}\nkernels: {}\npackages: {}\n"]
)
def test_a_broken_file_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.lock").write_text(text)
    with pytest.raises(LockError, match=r"a\.lock"):
        read_lock(tmp_path / "a.lock")


def test_all_differences_are_named_at_once(folder: Path) -> None:
    path = lock_path(folder / "deployment.yaml")
    path.write_text(lock_text(lock_of(folder)))
    require_same(path, lock_of(folder))
    flip(folder / "model" / "model.safetensors")
    edit("deployment.yaml", "0.5", "0.6")(folder)
    with pytest.raises(LockError) as caught:
        require_same(path, lock_of(folder))
    assert "2 things differ from deployment.lock" in str(caught.value)
    assert "model/model.safetensors" in str(caught.value)
    assert "default_sampling" in str(caught.value)


def test_the_verbs(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    spec = str(folder / "deployment.yaml")
    monkeypatch.setenv("APPLIANCE_STATE", str(folder / "state"))
    assert main(["apply", spec, "--locked"]) == 2
    assert "`appliance lock` writes it" in capsys.readouterr().err
    assert main(["lock", spec]) == 0
    assert main(["lock", spec, "--check"]) == 0
    flip(folder / "model" / "model.safetensors")
    assert main(["lock", spec, "--check", "--json"]) == 2
    assert "model/model.safetensors" in capsys.readouterr().out
    assert main(["apply", spec, "--locked"]) == 2
    assert "model/model.safetensors" in capsys.readouterr().err
    assert not (folder / "state" / "locked").exists()


def test_weights_of_every_format_are_locked(folder: Path) -> None:
    plan = prepare(folder / "deployment.yaml").plan
    for name in ("pytorch_model.bin", "medusa_lm_head.pt", "model.tensors"):
        (folder / "model" / name).write_bytes(b"weights")
        assert f"model/{name}" in collect_lock(plan).files
