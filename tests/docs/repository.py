"""The files of this project, as git has them or, in an unpacked sdist, as they lie there."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"


def files() -> list[Path]:
    """Every file that belongs to the project, new ones included."""
    if not (ROOT / ".git").exists():
        left_out = {".venv", "node_modules", "__pycache__", ".hypothesis"}
        return [p for p in ROOT.rglob("*") if p.is_file() and not left_out & set(p.parts)]
    command = [
        "git",
        "-c",
        f"safe.directory={ROOT}",
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    return [p for name in listed.split(b"\0") if name and (p := ROOT / name.decode()).is_file()]


def texts() -> dict[Path, str]:
    """The text files with their text."""
    found = {}
    for path in files():
        try:
            found[path] = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # an image
    return found


def pages() -> dict[Path, str]:
    """The Markdown files."""
    return {path: text for path, text in texts().items() if path.suffix == ".md"}


def reference(*names: str) -> str:
    """The named pages of the reference, or all of them."""
    paths = [REFERENCE / f"{name}.md" for name in names] or sorted(REFERENCE.glob("*.md"))
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)
