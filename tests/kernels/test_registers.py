"""The loops of the AVX-512 and AMX tiles keep their sums in registers, and those of few rows prefetch. The tests read
the machine code, so they run on any machine."""

import re
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from appliance.base.native import library_path

BUILD = Path(__file__).parent.parent.parent / "build"
LEVEL = "avx512_bf16"

# Tiles of dot products, as (name, products in the loop). Their loops do nothing but load, multiply and add.
TILES = (
    *(
        (f"Bf16DotSteps<{rows}, {panels}>, {rows}, {panels}>::run", rows * panels)
        for rows, panels in ((1, 4), (2, 4), (3, 1), (12, 1), (6, 4), (12, 2))
    ),
    *(
        (f"Int8Type, {rows}, {panels}>::run", rows * panels)
        for rows, panels in ((1, 4), (3, 1), (8, 1), (6, 4), (12, 2))
    ),
    ("AnyTile<appl::(anonymous namespace)::Int4Type, 12, 2>::run", 48),
    *((f"BookType<(appl_layout){layout}>, 12, 2>::run", 48) for layout in (8, 11)),
    *(  # two sub-groups are written out in a loop
        (f"SubGroupTile<appl::(anonymous namespace)::{kind}, {size}, {rows}, {panels}>::run", size // 2 * rows * panels)
        for kind, size in (("Int4Type", 32), ("Int4Type", 16), ("PlaneType<5>", 32), ("PlaneType<6>", 16))
        for rows, panels in ((1, 1), (5, 2), (12, 1))
    ),
)
JUMP = re.compile(r"^j\w+\s+([0-9a-f]+)")
PRODUCT = re.compile(r"^v(dpbf16ps|pdpbusd)")
STACK = re.compile(r"\(%r[sb]p\).*%zmm|%zmm.*\(%r[sb]p\)")


def machine_code(level: str) -> str:
    """Returns the machine code of the library as linked: an installed one has no names of functions."""
    linked = sorted(BUILD.glob(f"py3-none-*/{library_path(level).name}"))
    objdump = shutil.which("objdump")
    if objdump is None or not linked:
        pytest.skip(f"needs objdump and the build of {level}")
    command = [objdump, "-d", "-C", "--no-show-raw-insn", str(linked[-1])]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def listing() -> str:
    return machine_code(LEVEL)


def functions_of(listing: str, *names: str) -> list[str]:
    """Returns the functions whose names contain all of `names`."""
    parts = listing.split("\n\n")
    functions = [part for part in parts if all(name in part.strip().partition("\n")[0] for name in names)]
    assert functions, "it is not in the library"
    return functions


def loops_of(function: str, *, inner: bool = False) -> list[list[str]]:
    """Returns the code between the target of a backward jump and the jump; or only the innermost loops."""
    lines = [line.split("\t", 1) for line in function.splitlines() if "\t" in line]
    code = [(int(address.strip(" :"), 16), instruction) for address, instruction in lines]
    index = {address: at for at, (address, _) in enumerate(code)}
    jumps = [(at, match) for at, (_, text) in enumerate(code) if (match := JUMP.match(text))]
    spans = [(index.get(int(match[1], 16), at), at) for at, match in jumps]
    loops = [(first, last) for first, last in spans if first < last]
    if inner:
        loops = [
            (first, last)
            for first, last in loops
            if not any(first <= start and end <= last and (start, end) != (first, last) for start, end in loops)
        ]
    return [[text for _, text in code[first : last + 1]] for first, last in loops]


def inner_loops(function: str) -> list[list[str]]:
    return loops_of(function, inner=True)


@pytest.mark.parametrize(("name", "products"), TILES)
def test_inner_loop_does_not_touch_the_stack(listing: str, name: str, products: int) -> None:
    loops = [loop for part in functions_of(listing, name) for loop in inner_loops(part)]
    counts = [(sum(map(bool, map(PRODUCT.match, loop))), loop) for loop in loops]
    inner = [loop for count, loop in counts if count and count % products == 0]
    assert inner, "no loop has the products of the tile"
    for loop in inner:
        assert not [text for text in loop if STACK.search(text)]


@pytest.mark.parametrize("has_offset", ["true", "false"])
@pytest.mark.parametrize("size", [16, 32])
def test_two_sub_groups_share_registers(listing: str, size: int, has_offset: str) -> None:
    """The tile has six rows by two vectors, with the prefetching loops in it."""
    name = f"PairTallTile<appl::(anonymous namespace)::ByteProducts<{size // 4}>, 6>::run<{has_offset}>"
    loops = [loop for part in functions_of(listing, name) for loop in loops_of(part)]
    pairs = [loop for loop in loops if sum(map(bool, map(PRODUCT.match, loop))) == 2 * size // 4 * 12]
    assert pairs, "no loop has the products of two sub-groups"
    shortest = min(pairs, key=len)
    assert sum(text.startswith("vpdpwssd") for text in shortest) == 12
    assert not [text for text in shortest if STACK.search(text)]


def test_half_of_the_products_of_words_are_additions() -> None:
    """Eight columns of four rows by two vectors, on AVX2: 32 numbers a product, and all sums in registers."""
    for function in functions_of(machine_code("avx2"), "WordTallTile<", "4>::run<"):
        loop = min((loop for loop in loops_of(function) if sum("vpmaddwd" in text for text in loop) == 16), key=len)
        assert sum(text.startswith("vpaddw") for text in loop) == 32
        assert sum(text.startswith("vpaddd") for text in loop) == 16
        assert not [text for text in loop if re.search(r"\(%r[sb]p\)", text) and "%ymm" in text]


# Of AVX2 and few rows, as (parts of the name, product in the loop): over packed codes, and over the cache of attention.
ASKING_TILES = (
    *(
        ((tile, f"{kind}, {size}1, 2>::run"), "vpmaddubsw")
        for tile, size in (("StreamTile", ""), ("SubGroupTile", "32, "))
        for kind in ("Int4Type", "PlaneType<5>", "PlaneType<6>")
    ),
    *(
        ((f"run_segments<appl::{asker}<2>", "Bf16Reader, 2, 2>"), "vfmadd231ps")
        for asker in ("AskedPanels", "AskedSegments")
    ),
    *((("FloatSteps", f"Bf16Reader, 2, {panels}>, 2, {panels}>::run"), "vfmadd231ps") for panels in (1, 2)),
)


@pytest.mark.parametrize(("names", "product"), ASKING_TILES)
def test_few_rows_ask_for_memory_as_they_multiply(names: tuple[str, str], product: str) -> None:
    """Compilers remove calls that only prefetch."""
    functions = functions_of(machine_code("avx2"), *names)
    loops = [loop for part in functions for loop in inner_loops(part) if any(product in text for text in loop)]
    assert loops, "no loop multiplies"
    for loop in loops:
        assert [text for text in loop if text.startswith("prefetch")]


@pytest.mark.parametrize(
    "name",
    [
        *(f"Bf16DotSteps<{shape}>, {shape}>::run" for shape in ("2, 2", "8, 1")),
        *(f"Int8Type, {shape}>::run" for shape in ("2, 2", "8, 1")),
        "Int4Type, 2, 4>::run",
    ],
)
def test_few_rows_can_ask_either_level_of_the_caches(listing: str, name: str) -> None:
    """The level is chosen at run time, on the machine."""
    loops = [loop for part in functions_of(listing, name) for loop in inner_loops(part)]
    asked = [set(re.findall(r"prefetcht[01]", "\n".join(loop))) for loop in loops]
    assert {"prefetcht0", "prefetcht1"} in asked


@pytest.mark.parametrize("tile", ["Bf16DotSteps<{0}>, {0}>::run", "Int8Type, {0}>::run"])
@pytest.mark.parametrize("shape", ["1, 4", "8, 1"])
def test_few_rows_of_plain_weights_can_ask_both_levels(listing: str, tile: str, shape: str) -> None:
    loops = [loop for part in functions_of(listing, tile.format(shape)) for loop in loops_of(part)]
    both = re.compile(r"prefetcht1[^\n]*\n(jns[^\n]*\n)?prefetcht0")
    assert [loop for loop in loops if both.search("\n".join(loop))]


@pytest.mark.parametrize("kind", ["Int4Type", "PlaneType<5>", "PlaneType<6>"])
@pytest.mark.parametrize(
    ("tile", "shape"), [("AnyTile", "1, 4"), ("SubGroupTile", "32, 1, 4"), ("SubGroupTile", "32, 4, 2")]
)
def test_few_rows_of_codes_side_by_side_ask_both_levels(listing: str, tile: str, shape: str, kind: str) -> None:
    name = f"{tile}<appl::(anonymous namespace)::{kind}, {shape}>::run"
    loops = [loop for part in functions_of(listing, name) for loop in loops_of(part) if any(map(PRODUCT.match, loop))]
    assert loops, "no loop multiplies"
    for loop in loops:
        asked = [(text.split()[0], behind) for text, behind in pairwise(loop) if text.startswith("prefetch")]
        nears, fars = ([behind for name, behind in asked if name == f"prefetcht{level}"] for level in (0, 1))
        assert len(nears) == len(fars) > 0
        assert not [behind for behind in nears if behind.startswith("jmp")], "one or the other is asked"


@pytest.mark.parametrize("name", ["Run::in_place(", "Run::tall_panels("])
def test_many_rows_ask_for_the_sums_that_come_next(listing: str, name: str) -> None:
    """Their other prefetches are in the tiles."""
    for function in functions_of(listing, name):
        assert re.search(r"\sprefetch", function)


def test_the_matrix_unit_multiplies_as_often_as_it_loads() -> None:
    """32 rows by two panels: each of the two registers of input and of weights is used twice."""
    functions = functions_of(machine_code("amx"), "Bf16Product, 2, 2>")
    loops = [loop for part in functions for loop in inner_loops(part)]
    shortest = min((loop for loop in loops if any("tdpbf16ps" in text for text in loop)), key=len)
    assert sum("tdpbf16ps" in text for text in shortest) == sum("tileloadd" in text for text in shortest) == 4
    assert len(shortest) < 20
