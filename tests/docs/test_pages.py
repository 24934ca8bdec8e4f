"""Links in the docs lead somewhere, commands exist, and nothing speaks of the machine it was written on."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.docs.repository import ROOT, pages, texts

#: Written in pieces, so that this file isn't found itself.
UNWANTED = [
    "/work" + r"/(main|shared|notes|venv)\b",
    r"\.\./" + "shared",
    r"\b(BRIEF|CONTRACT)" + r"\.md",
    r"\bthe " + "brief\\b",
    r"\bfacts/" + r"\w+\.md",
    r"pypi\." + "org",
    "pythonhosted" + r"\.org",
    r"registry\." + r"(npmjs|yarnpkg)\.",
    r"(deb|security)\." + r"debian\.org",
    r"\bwork" + r"place\b",
]


def prose(text: str) -> str:
    """A page without its code."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "code", text)


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.+?) *$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.M), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links() -> list[tuple[Path, str]]:
    """Every link to another place of this project."""
    found = []
    for path, text in pages().items():
        for target in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", prose(text)):
            if not re.match(r"[a-z]+:", target):
                found.append((path, target))
    return found


@pytest.mark.parametrize(("page", "target"), links(), ids=lambda value: str(value).removeprefix(f"{ROOT}/"))
def test_a_link_leads_somewhere(page: Path, target: str) -> None:
    file, _, anchor = target.partition("#")
    where = page if not file else (page.parent / file).resolve()
    assert where.exists(), f"{page.name} links to {target}"
    assert where.is_relative_to(ROOT)
    if anchor:
        assert anchor in anchors(where.read_text(encoding="utf-8"))


def test_the_commands_that_the_readme_begins_with_are_there() -> None:
    block = re.search(r"^## Try it.*?^```bash\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.M)
    assert block is not None
    programs = [line.split()[0] for line in block[1].splitlines()]
    assert len(programs) == 2
    for program in programs:
        assert os.access(ROOT / program, os.X_OK), program


def test_nothing_speaks_of_the_machine_it_was_written_on() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path, text in texts().items()
        for match in re.finditer("|".join(UNWANTED), text)
    ]
    assert found == []
