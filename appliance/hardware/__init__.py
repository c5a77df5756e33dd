"""Facts about machines, and the profiles that match them."""

from appliance.hardware.errors import HardwareError
from appliance.hardware.facts import AcceleratorFacts, CpuFacts, HardwareFacts, MeasuredFacts, MemoryFacts
from appliance.hardware.library import facts_names, find_profile, load_facts, load_profiles
from appliance.hardware.probe.machine import probe_machine
from appliance.hardware.profile import Predicate, Profile, ProfileDefaults
from appliance.hardware.select import ProfileMatch, ProfileSelection, match_profile, match_profiles, select_profile

__all__ = [
    "AcceleratorFacts",
    "CpuFacts",
    "HardwareError",
    "HardwareFacts",
    "MeasuredFacts",
    "MemoryFacts",
    "Predicate",
    "Profile",
    "ProfileDefaults",
    "ProfileMatch",
    "ProfileSelection",
    "facts_names",
    "find_profile",
    "load_facts",
    "load_profiles",
    "match_profile",
    "match_profiles",
    "probe_machine",
    "select_profile",
]
