from pathlib import Path

import pytest

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.sources.address import (
    Address,
    HubAddress,
    IndexAddress,
    PathAddress,
    WebAddress,
    expand_braces,
    file_name,
    parse_address,
)

RESOLVED = "https://huggingface.co/O/N/resolve/main/b.gguf"
PAGES = ("", "gpt2", "datasets/O/N", "spaces/O/N", "O/N/tree/main/sub", "O/N/blob/main", "O/N/discussions", "docs/hub")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("hf://o/n", HubAddress("o/n", None, None)),
        ("hf://o/n/", HubAddress("o/n", None, None)),
        ("hf://o/n@v1", HubAddress("o/n", None, "v1")),
        ("hf://o/n/a/b.gguf", HubAddress("o/n", "a/b.gguf", None)),
        ("hf://o/n@v1/b.gguf", HubAddress("o/n", "b.gguf", "v1")),
        ("Qwen/Qwen2.5-0.5B", HubAddress("Qwen/Qwen2.5-0.5B", None, None)),
        ("hf://o/n:Q4_K_M", HubAddress("o/n", None, None, "Q4_K_M")),
        ("hf://o/n@v1:q8_0", HubAddress("o/n", None, "v1", "q8_0")),
        ("o/n-GGUF:UD-Q4_K_XL", HubAddress("o/n-GGUF", None, None, "UD-Q4_K_XL")),
        ("https://host/x.gguf", WebAddress("https://host/x.gguf")),
        ("https://huggingface.co/O/N", HubAddress("O/N", None, None)),
        ("https://huggingface.co/O/N/", HubAddress("O/N", None, None)),
        ("https://huggingface.co/O/N.5-GGUF/tree/main", HubAddress("O/N.5-GGUF", None, None)),
        ("http://www.huggingface.co/O/N/tree/v1?x=y#z", HubAddress("O/N", None, "v1")),
        ("https://hf.co/O/N/tree/refs%2Fpr%2F1", HubAddress("O/N", None, "refs/pr/1")),
        ("https://huggingface.co/O/N/blob/main/a/b.gguf", HubAddress("O/N", "a/b.gguf", None)),
        ("https://huggingface.co/O/N?show_file_info=b.gguf", HubAddress("O/N", "b.gguf", None)),
        (f"{RESOLVED}?download=true", WebAddress(f"{RESOLVED}?download=true")),
        ("https://huggingface.co.evil/O/N", WebAddress("https://huggingface.co.evil/O/N")),
        ("pypi://p==1.0", IndexAddress(("p==1.0",), None)),
        ("pypi://p-part{1..3}", IndexAddress(("p-part1", "p-part2", "p-part3"), None)),
    ],
)
def test_what_sources_name(tmp_path: Path, source: str, expected: Address) -> None:
    assert parse_address(source, tmp_path) == expected


def test_paths_start_from_the_spec(tmp_path: Path) -> None:
    (tmp_path / "o" / "n").mkdir(parents=True)
    assert parse_address("o/n", tmp_path) == PathAddress(tmp_path / "o" / "n")  # a folder that is there is meant
    assert parse_address("models/x.gguf", tmp_path) == PathAddress(tmp_path / "models" / "x.gguf")
    assert parse_address("./x", tmp_path) == PathAddress(tmp_path / "x")
    assert parse_address("/abs/x.gguf", tmp_path) == PathAddress(Path("/abs/x.gguf"))


def test_the_fragment_is_the_payload_pattern(tmp_path: Path) -> None:
    address = parse_address(r"pypi://p==1#data/part\d+\.bin$", tmp_path)
    assert isinstance(address, IndexAddress)
    assert address.payload is not None
    assert address.payload.search("p/data/part01.bin")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("ftp://host/x", "scheme 'ftp' is not known"),
        ("hf://only", "not a hub address"),
        ("hf://o/n/../secret", "not a hub address"),
        ("hf://o/n:", "not a hub address"),
        ("hf://o/n:Q4_K_M/x.gguf", "not a hub address"),
        ("https:///x", "no host"),
        *((f"https://huggingface.co/{path}", "names neither a model nor a file") for path in PAGES),
        ("https://huggingface.co/O/N/blob/main/..%2Fx", "not a hub address"),
        ("https://huggingface.co/O/N%20x", "not a hub address"),
        ("pypi://--index-url=evil", "not a list of wheels"),
        ("pypi://a b", "not a list of wheels"),
        ("pypi://p==1 --pre", "not a list of wheels"),
        ("pypi://p#[", "not a regular expression"),
        ("pypi://p{3..1}", "must count upwards"),
        ("pypi://p{1..100000}", "at most 1000 parts"),
        ("pypi://p{1..2}-{1..2}", "two ranges"),
    ],
)
def test_faults(tmp_path: Path, source: str, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        parse_address(source, tmp_path)


def test_braces_keep_leading_zeros() -> None:
    assert expand_braces("p{08..10}") == ["p08", "p09", "p10"]
    assert expand_braces("plain") == ["plain"]


def test_file_names() -> None:
    assert file_name(HubAddress("o/n", "a/b.gguf", None)) == "b.gguf"
    assert file_name(HubAddress("o/n", None, None)) is None
    assert file_name(WebAddress("https://h/d/x.gguf?download=true")) == "x.gguf"
    assert file_name(PathAddress(Path("/m/y.gguf"))) == "y.gguf"
