"""What happened and why, kept across restarts: transitions, tombstones, the journal of culls, keep-alives.

Covers what is kept, for how long, and how it is found again. It decides nothing; what may become of the file is
history_file's business.

All calls block, belong to one thread (the one that makes the first of them) and raise `HistoryError`. What a call was
given is on disk when it returns. Times go in as aware datetimes or ISO 8601 texts and come out as texts.
"""

from __future__ import annotations

import json
import logging
import math
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from .core.model import Instant
from .history_file import HistoryError, HistoryFile

__all__ = ["History", "HistoryError"]

KEEP = timedelta(days=30)
PRUNE_EVERY = timedelta(days=1)
#: The newest rows that are kept of each table, whatever their age.
MAX_ROWS = 50_000
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

#: For each schema version, the statements that lead to it from the one before. Times are microseconds since 1970.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE transitions (id INTEGER PRIMARY KEY, at INTEGER, kernel_id TEXT, body TEXT)",
        "CREATE INDEX transitions_at ON transitions (at)",
        "CREATE INDEX transitions_kernel ON transitions (kernel_id, at)",
        "CREATE TABLE journal (id INTEGER PRIMARY KEY, at INTEGER, entry INTEGER UNIQUE, server_id TEXT,"
        " kernel_id TEXT, step TEXT, body TEXT, outcome TEXT)",
        "CREATE TABLE tombstones (id INTEGER PRIMARY KEY, at INTEGER, kernel_id TEXT, body TEXT)",
        "CREATE INDEX tombstones_kernel ON tombstones (kernel_id)",
        "CREATE TABLE tombstone_paths (path TEXT, tombstone INTEGER REFERENCES tombstones ON DELETE CASCADE)",
        "CREATE INDEX tombstone_paths_path ON tombstone_paths (path)",
        "CREATE INDEX tombstone_paths_tombstone ON tombstone_paths (tombstone)",
        "CREATE TABLE keep_alives (id INTEGER PRIMARY KEY, at INTEGER, owner TEXT, path TEXT, seconds REAL)",
        "CREATE INDEX keep_alives_owner ON keep_alives (owner, path, at)",
    ),
)


class History:
    """The history of one server. `server_id` tells its journal from another server's, should two share a file.

    Making one touches no disk.
    """

    def __init__(
        self,
        path: str | Path,
        server_id: str,
        clock: Callable[[], Instant],
        log: logging.Logger,
        max_rows: int = MAX_ROWS,
    ) -> None:
        self._file = HistoryFile(str(path), MIGRATIONS, clock, log)
        self._server_id = server_id
        self._clock = clock
        self._max_rows = max_rows
        self._pruned: datetime | None = None

    @property
    def moved_aside(self) -> tuple[Path, ...]:
        """Damaged files that were replaced by new ones since the start."""
        return tuple(self._file.moved_aside)

    def close(self) -> None:
        """Let go of the file. A later call opens it again; what is in memory only is lost."""
        self._file.close()

    # --- transitions and tombstones -------------------------------------------------------------------------------

    def record(self, *transitions: Mapping[str, Any]) -> None:
        """Keep transitions, all of them or none. Each names its `at` and its `kernel_id`."""
        rows = [(_moment(t["at"]), t["kernel_id"], _dump(t)) for t in transitions]
        with self._writing() as connection:
            connection.executemany("INSERT INTO transitions (at, kernel_id, body) VALUES (?, ?, ?)", rows)

    def transitions(
        self, since: datetime | None = None, kernel_id: str | None = None, limit: int = 1000
    ) -> list[dict[str, Any]]:
        """Transitions from `since` on, newest first, at most `limit`."""
        where, values = _where(("at >= ?", since and _moment(since)), ("kernel_id = ?", kernel_id))
        with self._file.reading() as connection:
            rows = connection.execute(
                f"SELECT body FROM transitions {where} ORDER BY at DESC, id DESC LIMIT ?", (*values, limit)
            )
            return [json.loads(body) for (body,) in rows]

    def add_tombstone(self, tombstone: Mapping[str, Any]) -> None:
        """Keep what is left to read of a kernel; names its `kernel_id` and its `notebooks`."""
        with self._writing() as connection:
            self._bury(connection, tombstone)

    def tombstones(
        self, kernel_id: str | None = None, path: str | None = None, since: datetime | None = None
    ) -> list[dict[str, Any]]:
        """Tombstones of a kernel, or of the kernels that a notebook had, newest first. `at` is when each was kept."""
        where, values = _where(
            ("kernel_id = ?", kernel_id),
            ("id IN (SELECT tombstone FROM tombstone_paths WHERE path = ?)", path),
            ("at >= ?", since and _moment(since)),
        )
        with self._file.reading() as connection:
            rows = connection.execute(
                f"SELECT body FROM tombstones {where} ORDER BY at DESC, id DESC", values
            )
            return [json.loads(body) for (body,) in rows]

    # --- the journal: a cull under way leaves a trace even if the server is killed in the middle of it ------------

    def open_journal(self, kernel_id: str, step: str, data: Mapping[str, Any]) -> int:
        """Begin an entry and return its id."""
        entry = secrets.randbits(62)  # counted ids would start afresh in a file that replaces a damaged one
        row = (_moment(self._clock().at), entry, self._server_id, kernel_id, step, _dump(data))
        columns = "at, entry, server_id, kernel_id, step, body"
        with self._writing() as connection:
            connection.execute(f"INSERT INTO journal ({columns}) VALUES (?, ?, ?, ?, ?, ?)", row)
        return entry

    def step_journal(self, entry: int, step: str, data: Mapping[str, Any]) -> None:
        """Say how far an open entry has come. Raises `HistoryError` when it isn't there any more."""
        change = "UPDATE journal SET step = ?, body = ? WHERE entry = ? AND outcome IS NULL"
        with self._writing() as connection:
            if connection.execute(change, (step, _dump(data), entry)).rowcount != 1:
                raise HistoryError(f"journal entry {entry} is closed, or went with a damaged file")

    def close_journal(self, entry: int, outcome: str, tombstone: Mapping[str, Any] | None = None) -> None:
        """End an entry, together with its tombstone, if it leaves one: both are kept or none. The first outcome of an
        entry stays."""
        change = "UPDATE journal SET outcome = ? WHERE entry = ? AND outcome IS NULL"
        with self._writing() as connection:
            connection.execute(change, (outcome, entry))
            if tombstone is not None:
                self._bury(connection, tombstone)

    def open_entries(self) -> list[dict[str, Any]]:
        """Entries of this server that nobody closed, oldest first: `{id, kernel_id, step, at, data}`."""
        with self._file.reading() as connection:
            rows = connection.execute(
                "SELECT entry, kernel_id, step, at, body FROM journal"
                " WHERE outcome IS NULL AND server_id = ? ORDER BY id",
                (self._server_id,),
            )
            return [
                {"id": entry, "kernel_id": kernel_id, "step": step, "at": _iso(at), "data": json.loads(body)}
                for entry, kernel_id, step, at, body in rows
            ]

    # --- the ledger of keep-alives --------------------------------------------------------------------------------

    def charge(self, owner: str, path: str, seconds: float, at: datetime) -> None:
        """Charge an extension to its owner and notebook; a negative amount gives back what was not used.

        Raises ValueError for an amount that is not finite.
        """
        if not math.isfinite(seconds):
            raise ValueError(f"seconds: {seconds} is not a finite number")
        with self._writing() as connection:
            connection.execute(
                "INSERT INTO keep_alives (at, owner, path, seconds) VALUES (?, ?, ?, ?)",
                (_moment(at), owner, path, seconds),
            )

    def charged(self, owner: str, path: str, since: datetime) -> float:
        """Seconds charged to this owner and notebook from `since` on; never below 0."""
        with self._file.reading() as connection:
            (total,) = connection.execute(
                "SELECT coalesce(sum(seconds), 0.0) FROM keep_alives WHERE owner = ? AND path = ? AND at >= ?",
                (owner, path, _moment(since)),
            ).fetchone()
            return max(float(total), 0.0)

    def _bury(self, connection: sqlite3.Connection, tombstone: Mapping[str, Any]) -> None:
        at = _moment(self._clock().at)
        cursor = connection.execute(
            "INSERT INTO tombstones (at, kernel_id, body) VALUES (?, ?, ?)",
            (at, tombstone["kernel_id"], _dump({**tombstone, "at": _iso(at)})),
        )
        paths = [(path, cursor.lastrowid) for path in dict.fromkeys(tombstone.get("notebooks", ()))]
        connection.executemany("INSERT INTO tombstone_paths (path, tombstone) VALUES (?, ?)", paths)

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        pruned = self._pruned
        try:
            with self._file.writing() as connection:
                self._prune(connection)
                yield connection
        except BaseException:
            self._pruned = pruned
            raise

    def _prune(self, connection: sqlite3.Connection) -> None:
        """Once after opening and once a day: what is older than 30 days goes, and what is beyond the newest rows."""
        now = self._clock().at
        if self._pruned is not None and abs(now - self._pruned) < PRUNE_EVERY:
            return
        for table in ("transitions", "tombstones", "keep_alives", "journal"):
            spared = " AND outcome IS NOT NULL" if table == "journal" else ""
            connection.execute(
                f"DELETE FROM {table} WHERE (at < ? OR id <="
                f" (SELECT id FROM {table} ORDER BY id DESC LIMIT 1 OFFSET ?)){spared}",
                (_moment(now - KEEP), self._max_rows),
            )
        self._pruned = now


def _where(*conditions: tuple[str, object]) -> tuple[str, tuple[object, ...]]:
    asked = [(text, value) for text, value in conditions if value is not None]
    clause = "WHERE " + " AND ".join(text for text, _ in asked) if asked else ""
    return clause, tuple(value for _, value in asked)


def _moment(value: datetime | str) -> int:
    at = datetime.fromisoformat(value.replace("Z", "+00:00")) if isinstance(value, str) else value
    if at.tzinfo is None:
        raise ValueError(f"at: {value} has no time zone")
    return (at - EPOCH) // timedelta(microseconds=1)


def _iso(moment: int) -> str:
    at = EPOCH + timedelta(microseconds=moment)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"


def _dump(data: Mapping[str, Any]) -> str:
    return json.dumps(dict(data), separators=(",", ":"))
