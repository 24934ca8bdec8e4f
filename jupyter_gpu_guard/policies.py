"""The policy file: TOML on a disk, read again when it changes, checked, and explained.

A wrong file never stops a server. Until a first good one was read everything runs in `observe`; after that the last
good one stays in force. The grammar of its values is the core's; this module finds the file and the lines.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from .config import Settings
from .core.policy import KernelFacts, PolicyError, PolicyLayers, resolve
from .core.policy_fields import BY_NAME, show_field
from .core.policy_layers import FILE, with_file
from .core.policy_vain import Vain, find_vain

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: A policy file is a page or two; what is larger is something else.
MOST_BYTES = 1 << 20
#: Two edits within one tick of a file system's clock leave the same times: what is this young is read again.
SETTLED_NANOSECONDS = 2_000_000_000

_ENTRY = re.compile(r"\s*\[\[\s*policies\s*\]\]")

Stamp = tuple[int, int, int, int]


class PolicyFile:
    """The policy file at `path`, laid over `base`, the layers of the server's own configuration.

    `refresh` touches the disk and belongs in one thread; everything else looks at what it found and may be called
    from any. Until the first `refresh` the file counts as wrong. `clock` gives nanoseconds, as file times do.
    """

    def __init__(self, path: str, base: PolicyLayers, clock: Callable[[], int] = time.time_ns) -> None:
        self.path = os.path.expanduser(path)
        self._base = base
        self._clock = clock
        self._stamp: Stamp | None = None
        self._text: str | None = None
        self._found = _Found(
            replace(base, observe_because="observe: policy_file has not been good yet"),
            PolicyError("policy_file", path, "a file that has been read"),
        )

    @property
    def error(self) -> PolicyError | None:
        """What is wrong with the file as it lies there now."""
        return self._found.error

    @property
    def valid(self) -> bool:
        """Whether the file as it lies there now is the one in force."""
        return self._found.error is None

    @property
    def hash(self) -> str:
        """SHA-256 of all that decides: the file in force and the layers that it lies over."""
        return self._found.layers.hash

    def layers(self) -> PolicyLayers:
        """The layers in force: with the last good file, or in `observe` while there has been none."""
        return self._found.layers

    def refresh(self) -> bool:
        """Look whether the file changed, by its times, size and identity, and read it if so. Blocks on the disk.

        True when other layers are in force, or another error is to be told, than before. Never raises.
        """
        try:
            text = self._changed_text()
            if text is None:
                return False
            layers, errors = _laid_over(self._base, text, self.path)
        except PolicyError as error:
            self._text = self._stamp = None
            layers, errors = self._found.layers, [error]
        before = self._found
        # One assignment, so that a reader in another thread sees layers and error of the same reading.
        self._found = _Found(before.layers, errors[0]) if errors else _Found(layers, None)
        return self._found.layers != before.layers or str(self._found.error) != str(before.error)

    def _changed_text(self) -> str | None:
        """The text of the file; None when it is the one that was read before."""
        stamp, text = _read(self.path, unless=self._stamp)
        # Two edits within a tick of the file system's clock leave equal times: trust them only once they are old.
        settled = stamp is not None and self._clock() - max(stamp[0], stamp[1]) > SETTLED_NANOSECONDS
        if text is None:
            return None
        self._stamp = stamp if settled else None
        if text == self._text:
            return None
        self._text = text
        return text


@dataclass(frozen=True, slots=True)
class _Found:
    """What the last reading came to."""

    layers: PolicyLayers
    error: PolicyError | None


def check_file(path: str, base: PolicyLayers | None = None) -> list[PolicyError]:
    """Every mistake in a policy file, also against `base` if that is given. Empty: the file is good."""
    try:
        _, text = _read(path, unless=None)
        return _laid_over(base or PolicyLayers(), text or "", path)[1]
    except PolicyError as error:
        return [error]


def vain_in(path: str, base: PolicyLayers, now: datetime) -> list[Vain]:
    """What never has an effect in a policy file laid over `base`, with its lines, and in `base` under it. A file with
    mistakes is left out."""
    try:
        _, text = _read(path, unless=None)
        layers, errors = _laid_over(base, text or "", path)
    except PolicyError as error:
        text, layers, errors = "", base, [error]
    found = find_vain(base if errors else layers, now)
    return [
        replace(vain, place=_place(vain.key, vain.entry, text or "", path)) if vain.in_file else vain
        for vain in found
    ]


def explain(
    settings: Settings,
    *,
    now: datetime,
    kernel_name: str = "",
    path: str = "",
    gpu: str = "",
    user: str | None = None,
    groups: tuple[str, ...] = (),
    label: str | None = None,
) -> list[tuple[str, object, str]]:
    """What would hold for such a kernel: (setting, value as in TOML, where it came from), the entry's name first."""
    layers = settings.layers
    if settings.policy_file:
        file = PolicyFile(settings.policy_file, layers)
        file.refresh()
        layers = file.layers()
    facts = KernelFacts(kernel_name, (path,) if path else (), (gpu,) if gpu else (), user, groups, label)
    policy = resolve(layers, facts, now)
    rows = [(name, show_field(name, getattr(policy, name)), policy.sources[name]) for name in BY_NAME]
    return [("policy", policy.name, policy.reason), *rows]


# --- the disk -----------------------------------------------------------------------------------------------------


def _read(path: str, unless: Stamp | None) -> tuple[Stamp | None, str | None]:
    """The file's stamp and text; no text when the stamp is `unless`. Raises PolicyError when it can't be read."""
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise PolicyError("policy_file", path, "a regular file")
            stamp = (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)
            if stamp == unless:
                return stamp, None
            data = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        why = error.strerror if isinstance(error, OSError) else error
        raise PolicyError("policy_file", path, f"a readable file ({why})") from None
    if len(data) > MOST_BYTES:
        raise PolicyError("policy_file", path, f"at most {MOST_BYTES} bytes")
    try:
        return stamp, data.decode()
    except UnicodeDecodeError as error:
        raise PolicyError("policy_file", path, f"UTF-8 ({error.reason} at byte {error.start})") from None


def _open_at_once(path: str, flags: int) -> int:
    """Without O_NONBLOCK, opening a named pipe would wait for a writer."""
    return os.open(path, flags | os.O_NONBLOCK)


# --- the text -----------------------------------------------------------------------------------------------------


def _laid_over(base: PolicyLayers, text: str, path: str) -> tuple[PolicyLayers, list[PolicyError]]:
    """`base` with the file's layers, and the file's mistakes with their lines. Raises PolicyError if it is no TOML."""
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as wrong:  # ValueError: bad TOML, or a number of thousands of digits
        raise PolicyError("policy_file", path, f"TOML ({wrong})") from None
    layers, errors = with_file(base, content)
    for error in errors:
        _locate(error, text, path)
    return layers, errors


def _locate(error: PolicyError, text: str, path: str) -> None:
    """Put file and line before the place that an error names, if it lies in the file."""
    if not error.where.startswith(FILE) and error.where:
        return
    place = _place(error.key, error.entry, text, path)
    error.where = f"{place}, {error.where}" if error.entry is not None and error.where else place


def _place(key: str, entry: int | None, text: str, path: str) -> str:
    name, line = os.path.basename(path), _line_of(key or "name", entry, text)
    return f"{name}:{line}" if line else name


def _line_of(key: str, entry: int | None, text: str) -> int | None:
    """The line that sets `key` at the top level, or in the entry of that index; else the entry's first line."""
    last = key.rpartition(".")[2].partition("[")[0]
    setting = re.compile(rf"""(?:^|[{{,])\s*["']?{re.escape(last)}["']?\s*=""")
    current, header = None, None
    for number, line in enumerate(text.splitlines(), start=1):
        if _ENTRY.match(line):
            current = 0 if current is None else current + 1
            header = number if current == entry else header
        elif current == entry and setting.search(line):
            return number
    return header
