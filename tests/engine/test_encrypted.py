"""Encrypted checkpoints through plan and engine: the answers of the plain ones, and the key nowhere else."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from appliance.base.errors import SpecError
from appliance.checkpoint import CheckpointError
from appliance.checkpoint.serialize import Stored, serialize
from appliance.checkpoint.sources.options import Silent
from appliance.deploy.audit.rules import audit
from appliance.plan.by_rank import not_to_be_written
from appliance.plan.prepare import prepare
from tests.checkpoint.encrypted_files import KEY, key_file
from tests.checkpoint.tensorizer_files import floats, write_tensors
from tests.engine.test_rank_group import answers, engine_of, pytestmark, spec_of

__all__ = ["pytestmark", "spec_of"]

pytest.importorskip("nacl", reason="pynacl is not installed")

TENSORIZER = "loading.load_format=tensorizer"
OPTIONS = "loading.model_loader_extra_config="


@pytest.fixture
def sealed(spec_of: Callable[[str], Path], tmp_path: Path) -> Path:
    """A spec beside an encrypted model and its key."""
    spec = spec_of("llama")
    serialize(Stored(spec.parent / "model"), tmp_path / "model", key_file(tmp_path), Silent())
    (tmp_path / "spec.yaml").write_text(spec.read_text().replace(str(spec.parent), str(tmp_path)))
    return tmp_path / "spec.yaml"


KEYED = (TENSORIZER, OPTIONS + "{encryption_keyfile: secret.key}")


@pytest.mark.parametrize("more", [(), ("parallelism.tensor=2",), ("parallelism.pipeline=2",)])
def test_answers_are_those_of_the_plain_checkpoint(
    more: tuple[str, ...], sealed: Path, spec_of: Callable[[str], Path]
) -> None:
    with engine_of(spec_of("llama"), "loading.keep_packed=false") as engine:
        expected = answers(engine, 1)
    with engine_of(sealed, *KEYED, *more) as engine:
        assert answers(engine, 1) == expected


def test_weights_are_not_kept_on_the_disk(sealed: Path) -> None:
    plan = prepare(sealed, KEYED).plan
    assert not plan.loading.keep_packed
    reason = next(each.reason for each in plan.decisions if each.path == "loading.keep_packed")
    assert "the checkpoint is encrypted" in reason
    refused(sealed, "what is kept would lie on the disk", *KEYED, "loading.keep_packed=true")
    assert not prepare(sealed, [*KEYED, "loading.keep_packed=false"]).plan.loading.keep_packed


def test_the_plan_has_the_place_of_the_key_and_not_the_key(sealed: Path) -> None:
    plan = prepare(sealed, KEYED).plan
    key = plan.model.loader.key
    assert key is not None
    assert (key.path, key.holds) == (str(sealed.parent / "secret.key"), "key")
    written = msgspec.json.encode(plan)
    assert not any(spelled in written for spelled in (KEY, KEY.hex().encode()))
    assert any(each.path == "model.loader.key.path" for each in plan.decisions)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("{}", "the checkpoint is encrypted, and no key is given"),
        ("{encryption_keyfile: secret.key, encryption_password_file: secret.key}", "are both given"),
        ("{encryption_keyfile: 5}", "encryption_keyfile is no path"),
        ("{encryption_keyfile: ''}", "encryption_keyfile is no path"),
        ("{encryption_keyfile: secret.key, num_readers: 2}", "tensorizer has no option 'num_readers'"),
        ("{encryption_key: secret.key}", "tensorizer has no option 'encryption_key'"),
    ],
)
def test_what_is_no_key_is_refused(options: str, said: str, sealed: Path) -> None:
    refused(sealed, said, TENSORIZER, OPTIONS + options)


def test_a_key_for_a_plain_file_is_refused(sealed: Path) -> None:
    model = sealed.parent / "model"
    model.rename(sealed.parent / "encrypted")
    (sealed.parent / "encrypted/model.tensors").unlink()
    model.mkdir()
    for path in (sealed.parent / "encrypted").iterdir():
        path.rename(model / path.name)
    write_tensors(model / "m.tensors", {"a": floats(2)})
    refused(sealed, "a key is given, and the file is not encrypted", *KEYED)


def test_a_key_that_is_not_there_ends_before_the_start_and_not_before_the_plan(sealed: Path) -> None:
    (sealed.parent / "secret.key").unlink()
    assert prepare(sealed, KEYED, to_run=False).plan.model.loader.key is not None
    with pytest.raises(CheckpointError, match="encryption_keyfile: the file cannot be read: No such file"):
        prepare(sealed, KEYED)


def test_weights_by_rank_would_be_plain(sealed: Path) -> None:
    found = prepare(sealed, KEYED)
    assert any("would be plain" in each.message for each in not_to_be_written(found.plan, found.model))


def test_an_audit_finds_a_key_that_everybody_may_read(sealed: Path) -> None:
    key = sealed.parent / "secret.key"
    for mode, is_found in ((0o644, True), (0o640, False)):
        key.chmod(mode)
        found = {each.rule for each in audit(prepare(sealed, KEYED))}
        assert ("audit/weights-key-readable" in found) == is_found


def test_another_key_ends_the_start_by_name(sealed: Path) -> None:
    (sealed.parent / "secret.key").write_bytes(bytes(32))
    with pytest.raises(CheckpointError, match="cannot be opened: the key is another one"), engine_of(sealed, *KEYED):
        pass


def refused(spec: Path, said: str, *overrides: str) -> None:
    with pytest.raises(SpecError) as caught:
        prepare(spec, overrides)
    assert any(said in each.message and each.hint for each in caught.value.diagnostics)
