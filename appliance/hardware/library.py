"""The profiles and the facts of known machines that come with the package, and such files of the user's."""

import difflib
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from appliance.base.texts import NotUtf8Error, utf8_text, without_mark
from appliance.hardware.errors import HardwareError
from appliance.hardware.facts import FACTS_VERSION, HardwareFacts
from appliance.hardware.profile import PROFILE_VERSION, Profile

_Loader: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def profiles_dir() -> Path:
    """The data folder: beside the package when installed, beside its folder in a source tree."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "profiles"
    return installed if installed.is_dir() else package.parent / "profiles"


def load_profiles(folder: Path | None = None) -> tuple[Profile, ...]:
    """All profiles of a folder (default: those of the package), by name. Raises HardwareError."""
    folder = folder or profiles_dir()
    profiles = tuple(load_profile(path) for path in sorted(folder.glob("*.yaml")))
    names = [profile.name for profile in profiles]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise HardwareError(f"profile names appear twice: {', '.join(sorted(repeated))}")
    return tuple(sorted(profiles, key=lambda profile: profile.name))


def load_profile(path: Path) -> Profile:
    """One profile file. Raises HardwareError that names the file and the field."""
    try:
        profile = msgspec.convert(yaml.load(utf8_text(path.read_bytes(), f"profile {path.name}"), _Loader), Profile)
    except OSError as error:
        raise HardwareError(f"profile {path.name} cannot be read: {error.strerror}") from error
    except NotUtf8Error as error:
        raise HardwareError(str(error), hint=error.hint) from error
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise HardwareError(f"profile {path.name}: {error}") from error
    if profile.version != PROFILE_VERSION:
        raise HardwareError(f"profile {path.name} has version {profile.version}; this version reads {PROFILE_VERSION}")
    return profile


def find_profile(name: str, profiles: tuple[Profile, ...]) -> Profile:
    """Finds a profile by its name, or by the path of its file. Raises HardwareError with the nearest name."""
    for profile in profiles:
        if profile.name == name:
            return profile
    if name.endswith((".yaml", ".yml")):
        return load_profile(Path(name))
    raise HardwareError(f"there is no profile {name!r}", hint=_suggest(name, [profile.name for profile in profiles]))


def facts_names() -> tuple[str, ...]:
    """The known machines."""
    return tuple(sorted(path.stem for path in (profiles_dir() / "hardware").glob("*.json")))


def load_facts(name_or_path: str | Path) -> HardwareFacts:
    """Facts of a known machine by name, or of a facts file. Raises HardwareError."""
    path = Path(name_or_path)
    if path.suffix != ".json" and len(path.parts) == 1:
        known = profiles_dir() / "hardware" / f"{path.name}.json"
        if not known.is_file():
            raise HardwareError(f"there is no known machine {path.name!r}", hint=_suggest(path.name, facts_names()))
        path = known
    try:
        facts = msgspec.json.decode(without_mark(path.read_bytes(), f"hardware facts {path.name}"), type=HardwareFacts)
    except OSError as error:
        raise HardwareError(f"hardware facts {path.name} cannot be read: {error.strerror}") from error
    except NotUtf8Error as error:
        raise HardwareError(str(error), hint=error.hint) from error
    except msgspec.DecodeError as error:
        raise HardwareError(f"hardware facts {path.name}: {error}") from error
    if facts.version != FACTS_VERSION:
        raise HardwareError(f"hardware facts {path.name}: version {facts.version}; this version reads {FACTS_VERSION}")
    return facts


def _suggest(name: str, known: tuple[str, ...] | list[str]) -> str:
    near = [each for each in known if name.lower() in each] or difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(known)}"
