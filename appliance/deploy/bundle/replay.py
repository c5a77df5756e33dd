"""The plan of a bundle, made again: on any machine, without the checkpoint."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from appliance.checkpoint.facts import ModelFacts
from appliance.deploy.bundle import contents
from appliance.deploy.bundle.archive import BundleError, read_archive
from appliance.deploy.bundle.contents import BUNDLE_VERSION, FilesRecord, Manifest
from appliance.deploy.reconcile import PlanChange, changes
from appliance.hardware import HardwareFacts, find_profile, load_profiles
from appliance.plan.compile import compile_plan
from appliance.plan.inputs import ResolvedFiles
from appliance.plan.types import EnginePlan
from appliance.spec import load_text

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Replayed:
    manifest: Manifest
    plan: EnginePlan
    changes: tuple[PlanChange, ...]  # from the bundle's plan to this one
    is_same: bool  # both digests


def compile_shared(
    text: str,
    facts: HardwareFacts,
    profile: str,
    model: ModelFacts,
    files: FilesRecord,
    overrides: Sequence[str] = (),
) -> EnginePlan:
    """The plan of a spec that was made shareable. This process's environment has no part in it."""
    loaded = load_text(text, contents.SPEC, overrides, {})
    resolved = ResolvedFiles(**msgspec.structs.asdict(files))
    return compile_plan(loaded, facts, find_profile(profile, load_profiles()), model, resolved)


def replay(path: Path, overrides: Sequence[str] = ()) -> Replayed:
    """Raises BundleError where the bundle has no plan, and what compile_plan raises."""
    members = read_archive(path)
    manifest = _part(path, members, contents.MANIFEST, Manifest)
    if manifest.version != BUNDLE_VERSION:
        raise BundleError(f"{path} has version {manifest.version}; this appliance reads {BUNDLE_VERSION}")
    if contents.PLAN not in members:
        reason = manifest.missing.get(contents.PLAN) or manifest.missing.get(contents.SPEC, "it holds none")
        raise BundleError(f"{path} has no plan to make again: {reason}")
    then = _part(path, members, contents.PLAN, EnginePlan)
    now = compile_shared(
        members[contents.SPEC],
        _part(path, members, contents.FACTS, HardwareFacts),
        manifest.profile,
        _part(path, members, contents.MODEL, ModelFacts),
        manifest.files,
        overrides,
    )
    same = _hashes(then) == _hashes(now)
    return Replayed(manifest, now, tuple(changes(then, now)), same)


def _hashes(plan: EnginePlan) -> tuple[str, str, str]:
    return plan.engine_sha256, plan.adapters_sha256, plan.serving_sha256


def _part(path: Path, members: dict[str, str], name: str, kind: type[T]) -> T:
    try:
        text: Any = members[name]
        return msgspec.json.decode(text, type=kind)
    except KeyError:
        raise BundleError(f"{path} is no bundle: it has no {name}") from None
    except msgspec.MsgspecError as error:
        raise BundleError(f"{path}: {name} cannot be read: {error}") from error
