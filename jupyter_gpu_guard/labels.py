"""What notebooks say of themselves: `gpu_guard: {label, owner, project}` in their metadata.

Read from the saved file when it changed, never on the event loop. A mistake in it is told and changes nothing: the
notebook has no label then. Not here: what a label may do to a policy (core.policy_rules: only tighten, unless trusted).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from logging import Logger

from .contents import Contents, ContentsError
from .core.reasons import Reason, because

KEY = "gpu_guard"
FIELDS = ("label", "owner", "project")
MAX_TEXT = 100
#: A larger notebook would take noticeable time to read; its metadata is left unread, and it is said.
MAX_BYTES = 32 << 20

Stamp = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class NotebookMetadata:
    """What one notebook says. `error` says why it counts as saying nothing."""

    label: str | None = None
    owner: str | None = None
    project: str | None = None
    error: Reason | None = None


Known = tuple[Stamp | None, NotebookMetadata]


class Labels:
    """The metadata of the notebooks that kernels have. Lives on the event loop."""

    def __init__(self, contents: Contents, log: Logger) -> None:
        self._contents = contents
        self._log = log
        self._known: dict[str, Known] = {}
        self._reading: asyncio.Task[None] | None = None

    def of(self, paths: Iterable[str]) -> NotebookMetadata:
        """What the first of these notebooks that says anything says, as far as it was read."""
        found = [self._known[path][1] for path in paths if path in self._known]
        return next((m for m in found if m != NotebookMetadata()), NotebookMetadata())

    def look(self, paths: Iterable[str]) -> None:
        """Read those that changed, in the background; forget the others."""
        wanted = set(paths)
        for path in self._known.keys() - wanted:
            del self._known[path]
        if wanted and (self._reading is None or self._reading.done()):
            self._reading = asyncio.get_running_loop().create_task(self.refresh(wanted))

    async def refresh(self, paths: Iterable[str]) -> None:
        """Read those of these notebooks that changed since they were last read."""
        before = {path: self._known.get(path) for path in paths}
        # One trip to the thread for all: most have not changed, and the trip takes longer than the look.
        try:
            found = await self._contents.run(functools.partial(self._read_all, before))
        except ContentsError:
            return  # the disk hangs: what was known holds
        for path, known in found.items():
            last, error = before[path], known[1].error
            if error is not None and (last is None or last[1] != known[1]):
                self._log.warning("gpu_guard: %s: %s", path, error.text)
            self._known[path] = known

    def _read_all(self, paths: Mapping[str, Known | None]) -> dict[str, Known]:
        """Those that can be read now; of the others holds what was known."""
        found = {}
        for path, before in paths.items():
            with contextlib.suppress(ContentsError, OSError):
                found[path] = self._read(path, before)
        return found

    def _read(self, path: str, before: Known | None) -> Known:
        """In the contents' thread."""
        local = self._contents.local_path(path)
        if local is None or not path.endswith(".ipynb"):
            return None, NotebookMetadata()
        found = os.stat(local)
        stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
        if before is not None and before[0] == stamp:
            return before
        if found.st_size > MAX_BYTES:
            return stamp, _wrong(
                "metadata", f"the notebook is larger than {MAX_BYTES >> 20} MiB, so it is not read"
            )
        try:
            notebook = json.loads(local.read_bytes())
        except ValueError:
            return stamp, NotebookMetadata()  # being written, or no notebook: Jupyter says so itself
        return stamp, parse(notebook.get("metadata") if isinstance(notebook, dict) else None)


def parse(metadata: object) -> NotebookMetadata:
    """Read a notebook's metadata. A mistake names the key and what would be right."""
    mine = metadata.get(KEY) if isinstance(metadata, Mapping) else None
    if mine is None:
        return NotebookMetadata()
    if not isinstance(mine, Mapping):
        return _wrong(KEY, "expected an object with label, owner or project")
    for key, value in mine.items():
        if key not in FIELDS:
            return _wrong(f"{KEY}.{str(key)[:40]}", f"unknown; expected {', '.join(FIELDS)}")
        if not isinstance(value, str) or not value or len(value) > MAX_TEXT:
            return _wrong(f"{KEY}.{key}", f"expected a text of 1 to {MAX_TEXT} characters")
    return NotebookMetadata(**{field: mine.get(field) for field in FIELDS})


def _wrong(key: str, error: str) -> NotebookMetadata:
    return NotebookMetadata(error=because("bad_metadata", key=key, error=error))
