"""Recovery copies: work that could not go into its own file, kept where a person finds it again.

Covers where a copy may go, writing one, proving that it can be read back, and the ids under which it is handed out.
It never touches the document that a copy was made of, and it removes no copy that was kept.

The places of `recovery_dir` are tried in order. A relative one is a folder beside the document, made through the
contents manager, so that a browser can write there itself; an absolute one is a folder of this server only. Folders
are 0700 and hold a `.gitignore` of `*`, files are 0600.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import logging
import os
import posixpath
import re
import secrets
import stat
import tempfile
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import nbformat

from .contents import Contents, ContentsError
from .core.model import Instant

T = TypeVar("T")

NOTEBOOK = ".ipynb"
IGNORE = ".gitignore"
MAX_STEM = 100  # bytes of the document's name that a copy's name keeps: file systems end at 255
ID = re.compile(r"[0-9a-f]{32}")


class RecoveryError(Exception):
    """A copy could not be kept or read back; one line says why."""


class NoSuchCopy(RecoveryError):
    """There is no copy of that id, or it was moved or deleted."""


@dataclass(frozen=True, slots=True)
class RecoveryCopy:
    """One copy, as its index file keeps it. `client_id`: the browser window whose content it is. `contents_path` is
    how a browser reaches it, `file` where it lies on this server's disk; at least one is set. `made` is ISO 8601 UTC.
    """

    id: str
    name: str
    document: str
    kernel_id: str
    client_id: str
    made: str
    contents_path: str | None
    file: str | None


@dataclass(frozen=True, slots=True)
class _Origin:
    document: str
    kernel_id: str
    client_id: str


class RecoveryStore:
    """The recovery copies of one server. `data` is our own folder in Jupyter's data folder: ids outlive the server
    there, and servers of one user share them."""

    def __init__(
        self,
        contents: Contents,
        recovery_dir: Sequence[str],
        data: Path,
        clock: Callable[[], Instant],
        log: logging.Logger,
    ) -> None:
        self._contents = contents
        self._places = [Path(entry) if os.path.isabs(entry) else entry.rstrip("/") for entry in recovery_dir]
        self._index = data / "recovery-index"
        self._clock = clock
        self._log = log

    async def recovery_path_for(self, document: str, client_id: str, nonce: str) -> str | None:
        """Where the front end may write its copy of `document`: a contents path whose folder is there and ours.

        None where no folder beside the document can be had; then the copy has to come in through `store`.
        """
        for place in self._places:
            if isinstance(place, Path):
                continue
            try:
                folder = await self._folder_beside(document, place)
            except (ContentsError, RecoveryError) as exc:
                self._log.debug("No recovery folder %r beside %s: %s", place, document, exc)
                continue
            return posixpath.join(folder, self._name(document, client_id, nonce))
        return None

    async def verify(self, recovery_path: str, expected_hash: str | None = None) -> bool:
        """Whether the copy at that contents path can be read back whole.

        A notebook must be valid nbformat and, where a hash is given, have it. Another document must have the hash, or
        at least not be empty.
        """
        try:
            data = await self._contents.read(recovery_path)
            on_disk = await self._contents.hash_of(recovery_path)
            if data is None or on_disk is None or expected_hash not in (None, on_disk.value):
                return False
            proven = expected_hash is not None and not recovery_path.endswith(NOTEBOOK)
            return proven or await self._contents.run(functools.partial(_readable, recovery_path, data))
        except ContentsError as exc:
            self._log.warning("The recovery copy %s cannot be read back: %s", recovery_path, exc)
            return False

    async def tidy(self, recovery_paths: Iterable[str]) -> None:
        """Remove the folders of these offered places again where no copy was put into them."""

        def remove() -> None:
            for folder in {posixpath.dirname(path) for path in recovery_paths}:
                local = self._contents.local_path(folder)
                if local is not None:
                    _remove_if_empty(local)

        with suppress(RecoveryError):  # an empty folder that stays harms nobody
            await self._blocking(remove)

    async def register(self, recovery_path: str, document: str, kernel_id: str, client_id: str) -> str | None:
        """Give a verified copy that a browser wrote its id, and close it to others.

        None when the id can't be kept: the copy is safe all the same, it is only not handed out by id.
        """

        def keep() -> str:
            local = self._contents.local_path(recovery_path)
            if local is not None:
                _close_file(local)
            file = None if local is None else str(local)
            origin = _Origin(document, kernel_id, client_id)
            return self._enter(posixpath.basename(recovery_path), origin, recovery_path, file).id

        try:
            return await self._blocking(keep)
        except RecoveryError as exc:
            self._log.warning("The recovery copy %s has no id: %s", recovery_path, exc)
            return None

    async def store(self, data: bytes, document: str, kernel_id: str, client_id: str) -> RecoveryCopy:
        """Keep `data` as a copy of `document`, in the first place that takes it, and compare what was written.

        Raises `RecoveryError` when no place does (disk full, read-only); then nothing of it is left behind.
        """
        if not data:
            raise RecoveryError(f"the copy of {document} is empty")
        origin = _Origin(document, kernel_id, client_id)
        name = self._name(document, client_id, secrets.token_hex(8))
        problems = []
        for place in self._places:
            try:
                return await self._store_in(place, name, data, origin)
            except (ContentsError, RecoveryError) as exc:
                problems.append(str(exc))
        raise RecoveryError("; ".join(problems) or "recovery_dir is empty")

    async def open(self, copy_id: str) -> tuple[bytes, str]:
        """The bytes and the name of a copy. Raises `NoSuchCopy`, or `RecoveryError` when it can't be read."""
        copy = await self._blocking(functools.partial(self._look_up, copy_id))
        if copy.file is not None:
            return await self._blocking(functools.partial(_read_file, Path(copy.file))), copy.name
        try:
            data = await self._contents.read(copy.contents_path or "")
        except ContentsError as exc:
            raise RecoveryError(str(exc)) from exc
        if data is None:
            raise NoSuchCopy(f"{copy.name} was moved or deleted")
        return data, copy.name

    async def holds(self, copy_id: str, document: str, kernel_id: str, client_id: str) -> bool:
        """Whether the copy of that id is the one of this document in this browser window, and reads back whole."""
        try:
            copy = await self._blocking(functools.partial(self._look_up, copy_id))
            data, name = await self.open(copy_id)
            whole = await self._blocking(functools.partial(_readable, name, data))
            asked = (document, kernel_id, client_id)
            return whole and (copy.document, copy.kernel_id, copy.client_id) == asked
        except RecoveryError as exc:
            self._log.warning("The recovery copy of %s cannot be read back: %s", document, exc)
            return False

    # --- places ---------------------------------------------------------------------------------------------------

    async def _folder_beside(self, document: str, entry: str) -> str:
        """The folder `entry` beside the document, ready for use, as a contents path. A document that lies in such a
        folder, being a copy itself, has its copies beside it."""
        folder = posixpath.dirname(document)
        if folder != entry and not folder.endswith("/" + entry):
            for part in entry.split("/"):
                folder = posixpath.join(folder, part)
                await self._contents.make_folder(folder)

        def close_to_others() -> None:
            local = self._contents.local_path(folder)
            if local is not None:
                _secure_folder(local)

        await self._blocking(close_to_others)
        return folder

    async def _store_in(self, place: str | Path, name: str, data: bytes, origin: _Origin) -> RecoveryCopy:
        beside = await self._folder_beside(origin.document, place) if isinstance(place, str) else None

        def write() -> RecoveryCopy:
            folder = place if isinstance(place, Path) else self._contents.local_path(beside or "")
            if folder is None:
                raise RecoveryError("the folder beside the document is not on this server's disk")
            if beside is None:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                _secure_folder(folder)
            file = folder / name
            _write_whole(file, data)
            try:
                path = None if beside is None else posixpath.join(beside, name)
                return self._enter(name, origin, path, str(file))
            except OSError:
                file.unlink()  # a copy without an id would be found by nobody
                raise

        return await self._blocking(write)

    def _name(self, document: str, client_id: str, nonce: str) -> str:
        """A name that no other copy has: the time, and a short hash of document, client and request (two documents
        may share a stem, two clients the beginning of their ids)."""
        stem, extension = posixpath.splitext(posixpath.basename(document))
        stem = stem.lstrip(".").encode(errors="replace")[:MAX_STEM].decode(errors="ignore") or "untitled"
        stamp = self._clock().at.strftime("%Y%m%dT%H%M%SZ")
        key = "\0".join((document, client_id, nonce)).encode(errors="replace")
        short = hashlib.sha256(key).hexdigest()[:8]
        return f"{stem}-{stamp}-{short}{extension[:MAX_STEM]}"

    # --- the index: one file for each copy, since the servers of one user share the data folder and need no lock then

    def _enter(self, name: str, origin: _Origin, contents_path: str | None, file: str | None) -> RecoveryCopy:
        made = self._clock().at.strftime("%Y-%m-%dT%H:%M:%SZ")
        copy = RecoveryCopy(
            id=secrets.token_hex(16),
            name=name,
            made=made,
            contents_path=contents_path,
            file=file,
            **asdict(origin),
        )
        self._index.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write_whole(self._index / f"{copy.id}.json", json.dumps(asdict(copy)).encode())
        return copy

    def _look_up(self, copy_id: str) -> RecoveryCopy:
        file = self._index / f"{copy_id}.json"
        if not ID.fullmatch(copy_id) or not file.exists():
            raise NoSuchCopy("there is no recovery copy of that id")
        try:
            return RecoveryCopy(**json.loads(_read_file(file)))
        except (ValueError, TypeError) as exc:
            raise RecoveryError(f"the index file of {copy_id} is damaged") from exc

    async def _blocking(self, work: Callable[[], T]) -> T:
        try:
            return await self._contents.run(work)
        except ContentsError as exc:
            raise RecoveryError(str(exc)) from exc
        except OSError as exc:
            raise RecoveryError(f"{exc.filename or 'recovery copy'}: {exc.strerror or exc}") from exc


# --- blocking file work -------------------------------------------------------------------------------------------


def _readable(name: str, data: bytes) -> bool:
    """Whether `data` is what its name says: a valid notebook, or anything that isn't empty."""
    if not name.endswith(NOTEBOOK):
        return bool(data)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of cell ids that nbformat would add
            nbformat.validate(json.loads(data), relax_add_props=True)
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError, nbformat.ValidationError):
        return False
    return True


def _remove_if_empty(folder: Path) -> None:
    """Remove a folder that holds nothing but our own ignore file."""
    if {entry.name for entry in folder.iterdir()} == {IGNORE}:
        (folder / IGNORE).unlink()
        folder.rmdir()


def _secure_folder(folder: Path) -> None:
    """Make the folder ours alone. Refuses a link and another user's folder: whoever owns it reads what is in it."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise RecoveryError(f"{folder} is not a folder")
    if status.st_uid != os.geteuid():
        raise RecoveryError(f"{folder} belongs to another user")
    if stat.S_IMODE(status.st_mode) != 0o700:
        folder.chmod(0o700)
    ignore = folder / IGNORE
    if not ignore.exists():
        _write_whole(ignore, b"*\n")
    if not os.access(folder, os.W_OK):
        raise RecoveryError(f"{folder} is not writable")


def _close_file(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)


def _read_file(file: Path) -> bytes:
    """The bytes of a plain file; a link put in its place is not followed, a pipe not waited for."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise NoSuchCopy(f"{file.name} was moved or deleted") from None
    with os.fdopen(descriptor, "rb") as opened:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise RecoveryError(f"{file.name} is not a plain file")
        return opened.read()


def _write_whole(file: Path, data: bytes) -> None:
    """Write all of it, to stay through a power cut, or nothing. Raises OSError; `RecoveryError` when the disk gives
    back something else than was written."""
    descriptor, temporary = tempfile.mkstemp(prefix=".writing-", dir=file.parent)  # mkstemp makes it 0600
    try:
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(data)
            opened.flush()
            os.fsync(descriptor)
        if Path(temporary).read_bytes() != data:
            raise RecoveryError(f"{file.name} reads back differently")
        os.replace(temporary, file)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    _sync_folder(file.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as exc:
        if exc.errno != errno.EINVAL:  # some network file systems can't sync a folder
            raise
    finally:
        os.close(descriptor)
