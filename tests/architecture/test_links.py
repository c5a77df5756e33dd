"""Links within the documents lead to files, and to headings, that are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")


def anchors(document: Path) -> set[str]:
    """Returns anchors as GitHub makes them: lower case, hyphens for spaces, only letters, digits, `-` and `_`."""
    heads = [line.lstrip("#") for line in document.read_text().splitlines() if line.startswith("#")]
    return {re.sub(r"[^\w -]", "", head.strip().lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    for target, anchor in LINK.findall(document.read_text()):
        if "://" in target or target.startswith("mailto:"):
            continue
        found = (document.parent / target).resolve() if target else document
        assert found.exists(), f"{document.relative_to(ROOT)}: {target}"
        if anchor and found.suffix == ".md":
            assert anchor in anchors(found), f"{document.relative_to(ROOT)}: {target}#{anchor}"


def test_the_index_leads_to_every_page() -> None:
    """Pages are reached from docs/README.md, over as many links as it takes."""
    index = ROOT / "docs" / "README.md"
    reached, waiting = {index}, [index]
    while waiting:
        document = waiting.pop()
        for target, _ in LINK.findall(document.read_text()):
            found = (document.parent / target).resolve() if target and "://" not in target else document
            if found.suffix == ".md" and found.exists() and found not in reached:
                reached.add(found)
                waiting.append(found)
    pages = set((ROOT / "docs").rglob("*.md"))
    assert len(pages) > 40
    assert not {str(page.relative_to(ROOT)) for page in pages - reached}
