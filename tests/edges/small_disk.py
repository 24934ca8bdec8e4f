"""A file system of a few pages, to be filled up or made read-only. Needs the right to mount."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(place: Path, kilobytes: int) -> Iterator[Path]:
    """Mount a tmpfs of that size at `place`; skips the test where that isn't allowed."""
    if os.geteuid() != 0:
        pytest.skip("a small file system can only be mounted by root")
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(place)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a small file system can't be mounted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def remount(place: Path, options: str) -> None:
    """Change the options of what is mounted at `place`: `ro`, `rw`, `size=512k`."""
    subprocess.run(["mount", "-o", f"remount,{options}", str(place)], check=True)


def fill(place: Path) -> Path:
    """Use up what is free, and return the file that does."""
    filler = place / "filler"
    with open(filler, "wb", buffering=0) as opened:
        try:
            while True:
                opened.write(b"x" * 512)
        except OSError:
            return filler
