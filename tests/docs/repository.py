"""The files of this project, as git has them or, in an unpacked sdist or without git, as they lie there."""

from __future__ import annotations

import shutil
import subprocess
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"


def files() -> list[Path]:
    """Every file that belongs to the project, new ones included."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        return [path for path in ROOT.rglob("*") if path.is_file() and not _is_made(path)]
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


def _is_made(path: Path) -> bool:
    """Whether git would ignore the file. Of what .gitignore may say only what ours does: a name, a folder, a path."""
    below = path.relative_to(ROOT)
    if below.parts[0] == ".git":
        return True
    for line in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            name = line.rstrip("/")
            as_path = "/" in name and f"{below.as_posix()}/".startswith(f"{name}/")
            if as_path or any(fnmatch(part, name) for part in below.parts):
                return True
    return False


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
