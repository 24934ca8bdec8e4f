"""One SQLite file that outlives what happens to it: full disks, read-only ones, damage, removal, two writers.

Covers opening, transactions, the schema's migrations and the choice of journal. It knows nothing of what is kept.

All calls block and belong to one thread, the one that makes the first of them. What was written in a transaction is on
disk when it ends (`synchronous=FULL`), or `HistoryError` is raised; the next one opens the file afresh, so that
writing goes on by itself once the disk takes it again.
"""

from __future__ import annotations

import logging
import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from .core.model import Instant

BUSY_SECONDS = 5.0
MEMORY = ":memory:"
#: Marks the file as ours, so that another program's database named by mistake is left alone.
APPLICATION_ID = 0x4A474744

#: Write-ahead logging needs memory shared between processes, which network file systems lack; a file system that isn't
#: known to be local counts as remote.
LOCAL = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "overlay", "tmpfs", "ramfs"}

Migrations = Sequence[Sequence[str]]


class HistoryError(Exception):
    """The history could not be read or written; one line says why."""


class HistoryFile:
    """The file at `path`, or `:memory:`. Making one touches no disk.

    `moved_aside` names the damaged files that were replaced by new ones.
    """

    def __init__(
        self, path: str, migrations: Migrations, clock: Callable[[], Instant], log: logging.Logger
    ) -> None:
        self._path = path
        self._migrations = migrations
        self._clock = clock
        self._log = log
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self.moved_aside: list[Path] = []

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection to read with. Raises `HistoryError`."""
        try:
            yield self._ready()
        except (sqlite3.Error, OSError) as exc:
            if self._path != MEMORY:
                self.close()
            if _damaged(exc):
                self._move_aside(exc)
            raise HistoryError(_one_line(self._path, exc)) from exc

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction: all of it is on disk at the end, or none. Raises `HistoryError`."""
        with self.reading() as connection, transaction(connection):
            yield connection

    def close(self) -> None:
        """Let go of the file. A later call opens it again; what is in memory only is lost."""
        if self._connection is not None:
            with suppress(sqlite3.Error):  # nothing is pending: each transaction has ended
                self._connection.close()
            self._connection = None

    def _ready(self) -> sqlite3.Connection:
        if self._connection is not None and self._path != MEMORY and _identity(self._path) != self._identity:
            self.close()  # the file was removed or replaced: what went into the old one would be found by nobody
        if self._connection is None:
            try:
                self._connection = self._open()
            except sqlite3.DatabaseError as exc:
                if not _damaged(exc):
                    raise
                self._move_aside(exc)
                self._connection = self._open()
        return self._connection

    def _open(self) -> sqlite3.Connection:
        if self._path != MEMORY:
            Path(self._path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._identity = _identity(self._path)
        connection = sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None)
        try:
            for (finding,) in connection.execute("PRAGMA quick_check(1)"):
                if finding != "ok":
                    raise sqlite3.DatabaseError(finding)
            _refuse_foreign(connection)
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            if self._path != MEMORY:
                _choose_journal(connection, on_local_disk(Path(self._path)))
            migrate(connection, self._migrations)
        except BaseException:
            connection.close()
            raise
        return connection

    def _move_aside(self, why: Exception) -> None:
        aside = f"{self._path}.corrupt-{self._clock().at:%Y%m%dT%H%M%S%fZ}"
        for suffix in ("", "-wal", "-shm", "-journal"):
            with suppress(FileNotFoundError):
                os.rename(self._path + suffix, aside + suffix)
        self.moved_aside.append(Path(aside))
        self._log.error(
            "The history %s is damaged (%s): kept as %s, a new one is begun", self._path, why, aside
        )


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All that is executed within, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # SQLite has rolled back by itself when the disk is full
            connection.execute("ROLLBACK")
        raise


def migrate(connection: sqlite3.Connection, migrations: Migrations) -> None:
    """Bring the schema to the newest version, all the way or not at all.

    Raises `HistoryError` for a file that a newer version of this package has written.
    """
    if _version(connection) < len(migrations):
        with transaction(connection):  # and look again: another server may have been faster
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute("CREATE TABLE IF NOT EXISTS migrations (version INTEGER PRIMARY KEY)")
            for version in range(_version(connection), len(migrations)):
                for statement in migrations[version]:
                    connection.execute(statement)
                connection.execute("INSERT INTO migrations (version) VALUES (?)", (version + 1,))
    if (found := _version(connection)) > len(migrations):
        raise HistoryError(
            f"the history has schema version {found}, this version knows {len(migrations)}: update it"
        )


def on_local_disk(path: Path, mountinfo: str | None = None) -> bool:
    """Whether `path` lies on a file system that is known to be local. `mountinfo`: text of /proc/self/mountinfo."""
    if mountinfo is None:
        try:
            mountinfo = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            return False
    place = os.path.realpath(path)
    best, kind = -1, ""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), left.split()[4])
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:  # a later mount hides an earlier one at the same point
            best, kind = len(point), right.split()[0]
    return kind in LOCAL


def _choose_journal(connection: sqlite3.Connection, local: bool) -> None:
    wanted = "wal" if local else "delete"
    (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    if mode != wanted:
        try:
            connection.execute(f"PRAGMA journal_mode = {wanted}")
        except sqlite3.OperationalError:
            if not local:  # a rollback journal is safe everywhere, the other only on local disks
                raise


def _refuse_foreign(connection: sqlite3.Connection) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and application != APPLICATION_ID:
        raise HistoryError("history_path names another program's database")


def _version(connection: sqlite3.Connection) -> int:
    (known,) = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'migrations'").fetchone()
    if not known:
        return 0
    (version,) = connection.execute("SELECT coalesce(max(version), 0) FROM migrations").fetchone()
    return int(version)


def _damaged(exc: BaseException) -> bool:
    """SQLite's "malformed" and "not a database" come as a plain DatabaseError; what comes and goes (full, read-only,
    locked) as its subclass OperationalError."""
    return type(exc) is sqlite3.DatabaseError


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _one_line(path: str, exc: Exception) -> str:
    said = exc.strerror or str(exc) if isinstance(exc, OSError) else str(exc)
    return " ".join(f"{path}: {said}".split())
