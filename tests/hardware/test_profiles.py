import itertools
from pathlib import Path

import msgspec
import pytest

from appliance.catalog.kernel_sets import KERNEL_SETS
from appliance.hardware import (
    HardwareError,
    HardwareFacts,
    Predicate,
    Profile,
    facts_names,
    find_profile,
    load_facts,
    load_profiles,
    match_profile,
    select_profile,
)
from appliance.hardware.library import load_profile
from appliance.kernels.gpu.triton.architectures import ARCHITECTURES
from tests.kernels.triton.cases import ARCHS

PROFILES = load_profiles()
EXPECTED = {
    "amd-8xmi300x-192g": "amd-gfx942",
    "amd-8xmi355x-288g": "amd-gfx950",
    "amd-mi210-64g": "amd-gfx90a",
    "amd-mi250x-128g": "amd-gfx90a",
    "amd-mi300x-192g": "amd-gfx942",
    "amd-mi325x-256g": "amd-gfx942",
    "amd-rx-7900-xtx-24g": "amd-gfx1100",
    "desktop-ryzen-9-7950x": "cpu-avx512-bf16",
    "laptop-core-i7-1365u": "cpu-avx2",
    "laptop-ryzen-7-5800u": "cpu-avx2",
    "laptop-ryzen-7-7840u": "cpu-avx512-bf16",
    "nvidia-8xh100-sxm-80g": "nvidia-sm90",
    "nvidia-8xh200-sxm-141g": "nvidia-sm90",
    "nvidia-a10-24g": "nvidia-sm86",
    "nvidia-a100-sxm-40g": "nvidia-sm80",
    "nvidia-a100-sxm-80g": "nvidia-sm80",
    "nvidia-b200-180g": "nvidia-sm100",
    "nvidia-h100-pcie-80g": "nvidia-sm90",
    "nvidia-h100-sxm-80g": "nvidia-sm90",
    "nvidia-h200-sxm-141g": "nvidia-sm90",
    "nvidia-l4-24g": "nvidia-sm89",
    "nvidia-l40s-48g": "nvidia-sm89",
    "nvidia-rtx-3090-24g": "nvidia-sm86",
    "nvidia-rtx-4090-24g": "nvidia-sm89",
    "nvidia-rtx-5090-32g": "nvidia-sm120",
    "server-epyc-9654": "cpu-avx512-bf16",
    "server-epyc-9755": "cpu-avx512-bf16",
    "server-xeon-e5-2680-v2": "cpu-generic",
    "server-xeon-gold-6148": "cpu-avx512",
    "server-xeon-gold-6338": "cpu-avx512-vnni",
    "server-xeon-platinum-8480": "cpu-amx",
}
REFUSED = {"aws-graviton3-c7g-16xlarge"}


def test_every_known_machine_has_an_expectation() -> None:
    assert set(facts_names()) == set(EXPECTED) | REFUSED


@pytest.mark.parametrize("name", EXPECTED)
def test_known_machines_get_their_profile(name: str) -> None:
    facts = load_facts(name)
    assert facts.name == name
    assert select_profile(facts, PROFILES).profile.name == EXPECTED[name]


def test_an_architecture_without_kernels_is_refused_in_words() -> None:
    with pytest.raises(HardwareError, match=r"cpu\.architecture equals x86_64 \(found: aarch64\)"):
        select_profile(load_facts("aws-graviton3-c7g-16xlarge"), PROFILES)


def test_bf16_dot_products_of_intel_are_left_alone() -> None:
    """They run at half the rate of f32: a Sapphire Rapids whose host hides AMX gets the level without them."""
    facts = load_facts("server-xeon-platinum-8480")
    flags = tuple(flag for flag in facts.cpu.flags if not flag.startswith("amx"))
    assert "avx512_bf16" in flags
    hidden = msgspec.structs.replace(facts, cpu=msgspec.structs.replace(facts.cpu, flags=flags))
    assert select_profile(hidden, PROFILES).profile.name == "cpu-avx512-vnni"


def test_every_profile_is_chosen_by_some_machine() -> None:
    assert {profile.name for profile in PROFILES} == set(EXPECTED.values())


def test_profiles_name_kernel_sets_of_the_catalogue_and_their_flags() -> None:
    for profile in PROFILES:
        best = KERNEL_SETS[profile.kernel_sets[0]]
        wanted = {flag for predicate in profile.match for flag in predicate.contains_all or ()}
        assert wanted == set(best.required_flags)
        assert profile.support == ("untested" if is_not_compiled(profile) else best.support)
        for name in profile.kernel_sets:
            assert KERNEL_SETS[name].device == profile.device
            assert profile.defaults.block_size in KERNEL_SETS[name].block_sizes
            assert profile.defaults.kv_cache_dtype in KERNEL_SETS[name].kv_dtypes


def is_not_compiled(profile: Profile) -> bool:
    """Kernels are compiled for some generations of GPUs; of the others there are tables of tiles."""
    generations = {str(each.operand) for each in profile.match if each.fact == "accelerators.architecture"}
    assert generations <= set(ARCHITECTURES)
    return bool(generations - set(ARCHS))


def test_every_card_that_is_known_has_figures() -> None:
    for name, profile in EXPECTED.items():
        facts = load_facts(name)
        if facts.accelerators:
            assert find_profile(profile, PROFILES).speed(facts) is not None, name


def test_known_machines_are_consistent() -> None:
    for name in facts_names():
        facts = load_facts(name)
        assert facts.cpu.flags == tuple(sorted(facts.cpu.flags))
        assert len(facts.cpu.affinity) == facts.cpu.num_threads >= facts.cpu.num_cores
        assert facts.memory.limit_bytes <= facts.memory.total_bytes
        assert facts.measured is None


def machine(**changes: object) -> HardwareFacts:
    facts = load_facts("laptop-ryzen-7-5800u")
    return msgspec.structs.replace(facts, **changes)


def profile(name: str, priority: int, *match: Predicate) -> Profile:
    return msgspec.structs.replace(PROFILES[0], name=name, priority=priority, match=match)


HERE = Predicate(fact="os", equals="linux")


def test_a_tie_is_an_error_and_a_loser_below_it_is_not() -> None:
    low, one, two = profile("low", 1, HERE), profile("one", 2, HERE), profile("two", 2, HERE)
    for order in itertools.permutations([low, one, two]):
        with pytest.raises(HardwareError, match=r"one and two match .* same priority 2"):
            select_profile(machine(), order)
    assert select_profile(machine(), [low, one]).profile == one
    assert select_profile(machine(), [one, low]).reason == "os equals linux; above low by priority"


@pytest.mark.parametrize(
    ("predicate", "holds", "found"),
    [
        (Predicate(fact="cpu.flags", contains_all=("avx2", "fma")), True, "all there"),
        (Predicate(fact="cpu.flags", contains_all=("avx2", "amx_tile")), False, "missing: amx_tile"),
        (Predicate(fact="cpu.vendor", one_of=("AuthenticAMD", "GenuineIntel")), True, "found: AuthenticAMD"),
        (Predicate(fact="cpu.num_cores", at_least=9), False, "found: 8"),
        (Predicate(fact="cpu.num_cores", at_most=8), True, "found: 8"),
        (Predicate(fact="memory.limit_bytes", at_least=1 << 30), True, "found: 17179869184"),
        (Predicate(fact="accelerators.count", equals=0), True, "found: 0"),
        (Predicate(fact="accelerators.architecture", equals="sm90"), False, "found: no accelerator"),
    ],
)
def test_predicates(predicate: Predicate, holds: bool, found: str) -> None:
    (result,) = match_profile(machine(), profile("p", 1, predicate)).results
    assert (result.holds, result.found) == (holds, found)


def test_every_accelerator_must_satisfy_a_condition() -> None:
    one, two = load_facts("nvidia-l4-24g").accelerators[0], load_facts("nvidia-a10-24g").accelerators[0]
    predicate = Predicate(fact="accelerators.architecture", equals="sm89")
    (mixed,) = match_profile(machine(accelerators=(one, two)), profile("p", 1, predicate)).results
    assert (mixed.holds, mixed.found) == (False, "found: sm89, sm86")
    (same,) = match_profile(machine(accelerators=(one, one)), profile("p", 1, predicate)).results
    assert same.holds


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("fact: os\n    equals: linux\n    at_least: 3", "exactly one of"),
        ("fact: os", "exactly one of"),
        ("fact: cpu.colour\n    equals: red", "Invalid enum value 'cpu.colour'"),
        ("fact: os\n    equal: linux", "unknown field `equal`"),
        ("fact: [", "while parsing"),
    ],
)
def test_a_wrong_profile_file_is_named(tmp_path: Path, change: str, words: str) -> None:
    text = f"version: 1\nname: x\ndescription: d\ndevice: cpu\npriority: 1\nmatch:\n  - {change}\nkernel_sets: []\n"
    path = tmp_path / "x.yaml"
    path.write_text(text + "support: untested\ndefaults: {}\n")
    with pytest.raises(HardwareError, match=rf"profile x\.yaml: (.|\n)*{words}"):
        load_profile(path)


def test_names_that_are_nearly_right() -> None:
    with pytest.raises(HardwareError) as raised:
        load_facts("nvidia-h100-sxm-80gb")
    assert raised.value.hint is not None
    assert "nvidia-h100-sxm-80g" in raised.value.hint
    with pytest.raises(HardwareError) as raised:
        find_profile("cpu-avx", PROFILES)
    assert raised.value.hint is not None
    assert "cpu-avx2" in raised.value.hint


def test_facts_files(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_bytes(msgspec.json.encode(machine(name="mine")))
    assert load_facts(path).name == "mine"
    path.write_text('{"version": 1}')
    with pytest.raises(HardwareError, match=r"mine\.json"):
        load_facts(str(path))
    path.write_bytes(msgspec.json.encode(machine(version=9)))
    with pytest.raises(HardwareError, match="version 9"):
        load_facts(path)
    with pytest.raises(HardwareError, match="cannot be read"):
        load_facts(tmp_path / "none.json")


def test_a_profile_of_the_users(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_bytes(msgspec.yaml.encode(profile("own", 500, HERE)))
    assert find_profile(str(path), PROFILES).name == "own"


def test_a_part_of_a_known_machine_suggests_those_that_have_it() -> None:
    with pytest.raises(HardwareError) as caught:
        load_facts("H100")
    assert caught.value.hint == "did you mean nvidia-8xh100-sxm-80g, nvidia-h100-pcie-80g, nvidia-h100-sxm-80g?"
