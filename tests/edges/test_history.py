"""The history on real files: what outlives a kill, a full disk, damage and an older schema."""

from __future__ import annotations

import json
import logging
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import textwrap
import threading
from datetime import UTC, datetime, timedelta

import pytest

from jupyter_gpu_guard import history as history_module
from jupyter_gpu_guard.core.model import Instant
from jupyter_gpu_guard.history import History, HistoryError
from jupyter_gpu_guard.history_file import HistoryFile, migrate, on_local_disk, transaction
from tests.edges.small_disk import fill, remount, small_disk

START = datetime(2026, 3, 1, 14, 0, tzinfo=UTC)
LOG = logging.getLogger("test")


class Clock:
    """Stands where it is put."""

    def __init__(self):
        self.at = START

    def __call__(self):
        return Instant((self.at - START).total_seconds(), self.at)


def transition(minutes=0, kernel_id="k", **more):
    at = (START + timedelta(minutes=minutes)).isoformat().replace("+00:00", "Z")
    return {
        "at": at,
        "kernel_id": kernel_id,
        "from": "active",
        "to": "idle",
        "reason": {"code": "idle"},
        **more,
    }


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "gpu_guard" / "history.sqlite"


@pytest.fixture
def opened(path, clock):
    made = []

    def make(place=path, server="server", **options):
        made.append(History(place, server, clock, LOG, **options))
        return made[-1]

    yield make
    for history in made:
        history.close()


# --- what is kept -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_memory", [False, True])
def test_transitions_come_back_newest_first(opened, path, in_memory):
    history = opened(":memory:" if in_memory else path)
    rows = [transition(m, kernel_id=k) for m, k in ((0, "a"), (2, "b"), (1, "a"))]
    history.record(*rows)
    assert history.transitions() == [rows[1], rows[2], rows[0]]
    assert history.transitions(kernel_id="a") == [rows[2], rows[0]]
    assert history.transitions(since=START + timedelta(minutes=1)) == [rows[1], rows[2]]
    assert history.transitions(limit=1) == [rows[1]]
    assert path.exists() is not in_memory


def test_transitions_are_kept_all_or_none(opened):
    history = opened()
    with pytest.raises(KeyError):
        history.record(transition(0), {"at": START})
    with pytest.raises(ValueError, match="time zone"):
        history.record(transition(0), transition(0, at="2026-03-01T14:00:00"))
    assert history.transitions() == []


def test_everything_is_there_again_after_a_restart(opened):
    first = opened()
    first.record(transition())
    first.add_tombstone({"kernel_id": "k", "notebooks": ["a.ipynb"]})
    entry = first.open_journal("k", "saving", {"n": 1})
    first.charge("ada", "a.ipynb", 60, START)
    first.close()
    second = opened()
    assert second.transitions() == [transition()]
    assert [t["kernel_id"] for t in second.tombstones()] == ["k"]
    assert [e["id"] for e in second.open_entries()] == [entry]
    assert second.charged("ada", "a.ipynb", START) == 60


def test_tombstones_are_found_by_kernel_path_and_time(opened, clock):
    history = opened()
    history.add_tombstone(
        {"kernel_id": "k1", "notebooks": ["a.ipynb", "b.ipynb", "a.ipynb"], "saved": [{"path": "a.ipynb"}]}
    )
    clock.at += timedelta(hours=1)
    history.add_tombstone({"kernel_id": "k2", "notebooks": ["b.ipynb"]})
    history.add_tombstone({"kernel_id": "k3"})
    assert [t["kernel_id"] for t in history.tombstones()] == ["k3", "k2", "k1"]
    assert [t["kernel_id"] for t in history.tombstones(path="b.ipynb")] == ["k2", "k1"]
    assert [t["kernel_id"] for t in history.tombstones(path="b.ipynb", since=clock.at)] == ["k2"]
    assert history.tombstones(kernel_id="k1") == [
        {
            "at": "2026-03-01T14:00:00.000Z",
            "kernel_id": "k1",
            "notebooks": ["a.ipynb", "b.ipynb", "a.ipynb"],
            "saved": [{"path": "a.ipynb"}],
        }
    ]


def test_the_journal_knows_what_is_under_way(opened):
    history = opened()
    first = history.open_journal("k1", "saving", {"why": "idle"})
    second = history.open_journal("k2", "saving", {})
    history.step_journal(first, "culling", {"why": "idle", "saved": 1})
    assert history.open_entries() == [
        {
            "id": first,
            "kernel_id": "k1",
            "step": "culling",
            "at": "2026-03-01T14:00:00.000Z",
            "data": {"why": "idle", "saved": 1},
        },
        {"id": second, "kernel_id": "k2", "step": "saving", "at": "2026-03-01T14:00:00.000Z", "data": {}},
    ]
    history.close_journal(first, "culled", {"kernel_id": "k1", "notebooks": []})
    assert [e["id"] for e in history.open_entries()] == [second]
    assert [t["kernel_id"] for t in history.tombstones()] == ["k1"]
    with pytest.raises(HistoryError, match="closed"):
        history.step_journal(first, "saving", {})


def test_a_tombstone_that_cannot_be_kept_leaves_the_entry_open(opened):
    history = opened()
    entry = history.open_journal("k", "culling", {})
    with pytest.raises(KeyError):
        history.close_journal(entry, "culled", {"notebooks": ["a.ipynb"]})
    assert [e["id"] for e in history.open_entries()] == [entry]


def test_another_server_s_journal_is_not_ours(opened):
    mine, theirs = opened(server="one"), opened(server="two")
    mine.open_journal("k1", "saving", {})
    theirs.open_journal("k2", "saving", {})
    assert [e["kernel_id"] for e in mine.open_entries()] == ["k1"]
    assert [e["kernel_id"] for e in theirs.open_entries()] == ["k2"]


def test_the_ledger_counts_what_was_charged_within_the_window(opened, clock):
    history = opened()
    week = timedelta(days=7)
    for days, seconds in ((0, 3600), (3, 1800), (3, -600), (7, 60)):
        history.charge("ada", "a.ipynb", seconds, START + timedelta(days=days))
    history.charge("ada", "b.ipynb", 7, START)
    history.charge("bob", "a.ipynb", 9, START)
    for days, sum_ in ((7, 4860), (8, 1260), (10, 1260), (11, 60), (15, 0)):
        assert history.charged("ada", "a.ipynb", START + timedelta(days=days) - week) == sum_
    history.charge("eve", "a.ipynb", -50, START)
    assert history.charged("eve", "a.ipynb", START) == 0
    with pytest.raises(ValueError, match="finite"):
        history.charge("ada", "a.ipynb", float("nan"), START)


# --- for how long -------------------------------------------------------------------------------------------------


def test_after_thirty_days_rows_go_but_what_is_under_way_stays(opened, clock):
    history = opened()
    history.record(transition(0, "old"))
    history.add_tombstone({"kernel_id": "old", "notebooks": ["a.ipynb"]})
    closed, still_open = history.open_journal("old", "saving", {}), history.open_journal("open", "saving", {})
    history.close_journal(closed, "culled")
    clock.at += timedelta(days=29)
    history.record(transition(29 * 24 * 60, "young"))
    assert [t["kernel_id"] for t in history.transitions()] == ["young", "old"]
    clock.at += timedelta(days=1, seconds=1)
    history.record(transition(30 * 24 * 60, "new"))
    assert [t["kernel_id"] for t in history.transitions()] == ["new", "young"]
    assert history.tombstones() == history.tombstones(path="a.ipynb") == []
    assert [e["id"] for e in history.open_entries()] == [still_open]


def test_old_rows_go_when_a_server_starts_again(opened, clock):
    first = opened()
    first.record(transition(0, "old"))
    first.close()
    clock.at += timedelta(days=31)
    second = opened()
    second.record(transition(31 * 24 * 60, "new"))
    assert [t["kernel_id"] for t in second.transitions()] == ["new"]


def test_no_table_grows_without_bound(opened, clock):
    history = opened(max_rows=10)
    for minute in range(25):
        history.record(transition(minute))
        history.charge("ada", "a.ipynb", 1, START)
        history.add_tombstone({"kernel_id": str(minute)})
    clock.at += timedelta(days=1)
    history.charge("ada", "a.ipynb", 1, START)
    assert [t["at"] for t in history.transitions()] == [transition(m)["at"] for m in range(24, 14, -1)]
    assert [t["kernel_id"] for t in history.tombstones()] == [str(m) for m in range(24, 14, -1)]
    assert history.charged("ada", "a.ipynb", START) == 11


# --- the file -----------------------------------------------------------------------------------------------------


def test_the_file_is_private(opened, path):
    opened().record(transition())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_making_one_touches_no_disk(opened, path):
    opened()
    assert not path.parent.exists()


WRITER = """
    import logging, sys
    from datetime import datetime, timezone
    from jupyter_gpu_guard.core.model import Instant
    from jupyter_gpu_guard.history import History

    now = Instant(0.0, datetime(2026, 3, 1, tzinfo=timezone.utc))
    history = History(sys.argv[1], "server", lambda: now, logging.getLogger())
    for n in range(100000):
        kernel = f"k{n}"
        entry = history.open_journal(kernel, "saving", {"n": n})
        print("open", n, flush=True)
        history.step_journal(entry, "culling", {"n": n})
        print("step", n, flush=True)
        history.record({"at": now.at.isoformat(), "kernel_id": kernel})
        print("record", n, flush=True)
        history.close_journal(entry, "culled", {"kernel_id": kernel, "notebooks": [kernel]})
        print("close", n, flush=True)
"""


@pytest.mark.parametrize("lines", [1, 2, 3, 4, 5, 18, 39, 60])
def test_what_was_acknowledged_outlives_a_kill(opened, path, lines):
    program = [sys.executable, "-c", textwrap.dedent(WRITER), str(path)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as writer:
        said = [writer.stdout.readline().split() for _ in range(lines)]
        writer.send_signal(signal.SIGKILL)
        said += [line.split() for line in writer.stdout.read().splitlines()]
    done = {what: {int(n) for w, n in said if w == what} for what in ("open", "step", "record", "close")}
    history = opened()
    assert history.moved_aside == ()
    entries = {e["data"]["n"]: e["step"] for e in history.open_entries()}
    buried = {int(t["kernel_id"][1:]) for t in history.tombstones()}
    recorded = {int(t["kernel_id"][1:]) for t in history.transitions()}
    assert recorded >= done["record"]
    assert buried >= done["close"]
    assert buried.isdisjoint(entries), "an entry and its tombstone go together"
    assert set(entries) | buried >= done["open"]
    assert len(entries) <= 1
    assert all(entries.get(n, "culling") == "culling" for n in done["step"])


def test_two_servers_that_write_one_file_do_not_harm_it(opened, path, clock):
    def write(server):
        history = History(path, server, clock, LOG)
        for n in range(40):
            history.record(transition(n, f"{server}-{n}"))
        history.close()

    opened().transitions()
    writers = [threading.Thread(target=write, args=(server,)) for server in ("one", "two", "three")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    kept = {t["kernel_id"] for t in opened().transitions()}
    assert kept == {f"{server}-{n}" for server in ("one", "two", "three") for n in range(40)}
    with sqlite3.connect(path) as check:
        assert check.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.parametrize("damage", ["not a database", "zeroed pages", "cut short"])
def test_a_damaged_file_is_kept_aside_and_a_new_one_begun(opened, path, damage):
    first = opened()
    first.record(*(transition(n, note="x" * 500) for n in range(200)))
    first.close()
    data = path.read_bytes()
    broken = {
        "not a database": b"this is not a database" * 500,
        "zeroed pages": data[:4096] + bytes(len(data) - 4096),
        "cut short": data[: len(data) // 2],
    }[damage]
    path.write_bytes(broken)
    second = opened()
    second.record(transition(0, "new"))
    assert [t["kernel_id"] for t in second.transitions()] == ["new"]
    (aside,) = second.moved_aside
    assert aside.name.startswith("history.sqlite.corrupt-20260301T140000")
    assert aside.read_bytes() == broken
    assert opened().transitions() == second.transitions()


def test_damage_under_way_is_an_error_once_and_then_a_new_file(opened, path):
    history = opened()
    history.record(*(transition(n, note="x" * 2000) for n in range(4000)))  # more than SQLite keeps in memory
    history.close()
    history.transitions(limit=1)
    size = path.stat().st_size
    with open(path, "r+b") as opened_file:
        opened_file.seek(4096)
        opened_file.write(b"\xff" * (size - 4096))
    with pytest.raises(HistoryError, match="malformed"):
        history.transitions(limit=4000)
    history.record(transition(0, "new"))
    assert [t["kernel_id"] for t in history.transitions()] == ["new"]
    assert len(history.moved_aside) == 1


def test_a_file_removed_under_way_is_begun_anew_instead_of_writing_into_nowhere(opened, path):
    history = opened()
    history.record(transition(0, "before"))
    path.unlink()
    history.record(transition(0, "after"))
    assert [t["kernel_id"] for t in opened().transitions()] == ["after"]


def test_another_program_s_database_is_left_alone(opened, path):
    path.parent.mkdir()
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE theirs (x)")
    before = path.read_bytes()
    with pytest.raises(HistoryError, match="another program"):
        opened().record(transition())
    assert path.read_bytes() == before


def test_a_full_disk_is_an_error_and_writing_goes_on_when_there_is_room(tmp_path, opened):
    with small_disk(tmp_path / "disk", 512) as disk:
        history = opened(disk / "history.sqlite")
        history.record(transition(0, "before"))
        filler = fill(disk)
        with pytest.raises(HistoryError) as caught:
            for _ in range(1000):  # what is free within the file's last page is used first
                history.record(transition(1, "during", note="x" * 4000))
        assert "\n" not in str(caught.value)
        assert "full" in str(caught.value)
        kept = len(history.transitions(kernel_id="during"))
        filler.unlink()
        history.record(transition(2, "after"))
        assert [t["kernel_id"] for t in history.transitions()] == ["after", *["during"] * kept, "before"]
        assert history.moved_aside == ()
        history.close()


def test_a_read_only_disk_is_an_error_and_writing_goes_on_afterwards(tmp_path, opened):
    with small_disk(tmp_path / "disk", 512) as disk:
        history = opened(disk / "history.sqlite")
        history.record(transition(0, "before"))
        history.close()
        remount(disk, "ro")
        with pytest.raises(HistoryError, match="Read-only file system"):
            history.record(transition(1, "during"))
        remount(disk, "rw")
        history.record(transition(2, "after"))
        assert [t["kernel_id"] for t in history.transitions()] == ["after", "before"]
        history.close()


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path, opened):
    (tmp_path / "file").write_text("")
    with pytest.raises(HistoryError, match=r"history\.sqlite: File exists"):
        opened(tmp_path / "file" / "history.sqlite").record(transition())


# --- the schema ---------------------------------------------------------------------------------------------------


def test_an_older_schema_is_brought_up_to_date_with_its_rows(opened, monkeypatch):
    first = opened()
    first.record(transition(0, "old"))
    first.close()
    newer = (*history_module.MIGRATIONS, ("ALTER TABLE transitions ADD COLUMN colour TEXT DEFAULT 'red'",))
    monkeypatch.setattr(history_module, "MIGRATIONS", newer)
    second = opened()
    second.record(transition(1, "new"))
    assert [t["kernel_id"] for t in second.transitions()] == ["new", "old"]
    second.close()
    monkeypatch.undo()
    with pytest.raises(HistoryError, match="schema version 2, this version knows 1"):
        opened().transitions()


def test_a_migration_that_fails_leaves_the_schema_as_it_was(tmp_path):
    connection = sqlite3.connect(tmp_path / "x.sqlite", isolation_level=None)
    migrate(connection, [["CREATE TABLE a (x)"]])
    with pytest.raises(sqlite3.OperationalError):
        migrate(connection, [["CREATE TABLE a (x)"], ["CREATE TABLE b (x)"], ["CREATE TABLE a (x)"]])
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert tables == {"a", "migrations"}
    assert connection.execute("SELECT version FROM migrations").fetchall() == [(1,)]
    connection.close()


def test_a_transaction_is_all_or_nothing(tmp_path):
    connection = sqlite3.connect(tmp_path / "x.sqlite", isolation_level=None)
    connection.execute("CREATE TABLE a (x)")
    with pytest.raises(RuntimeError, match="in the middle"), transaction(connection):
        connection.execute("INSERT INTO a VALUES (1)")
        raise RuntimeError("in the middle")
    assert connection.execute("SELECT count(*) FROM a").fetchone() == (0,)
    connection.close()


# --- the file system ----------------------------------------------------------------------------------------------

MOUNTS = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
40 27 0:50 / /home rw,relatime shared:1 - nfs4 server:/home rw,vers=4.2
41 40 0:51 / /home/ada/fast rw - xfs /dev/nvme0n1 rw
42 27 0:52 / /mnt/my\040disk rw - fuse.sshfs user@host: rw
43 27 0:53 / /scratch rw - ext4 /dev/sdb rw
44 43 0:54 / /scratch rw - lustre mds:/scratch rw
45 27 0:55 / /home2 rw - cifs //server/share rw
""".strip()


@pytest.mark.parametrize(
    ("path", "local"),
    [
        ("/var/lib/history.sqlite", True),
        ("/home/ada/history.sqlite", False),
        ("/home/ada/fast/history.sqlite", True),
        ("/home/ada/faster/history.sqlite", False),
        ("/mnt/my disk/history.sqlite", False),
        ("/scratch/history.sqlite", False),
        ("/home2/history.sqlite", False),
        ("/homestead/history.sqlite", True),
    ],
)
def test_network_file_systems_are_told_from_local_ones(path, local):
    assert on_local_disk(path, MOUNTS) is local


def test_a_link_is_followed_to_the_file_system_that_it_leads_to(tmp_path):
    (tmp_path / "link").symlink_to("/home/ada")
    assert on_local_disk(tmp_path / "link" / "history.sqlite", MOUNTS) is False


@pytest.mark.parametrize(("local", "mode"), [(True, "wal"), (False, "delete")])
def test_write_ahead_logging_is_for_local_disks_only(opened, path, monkeypatch, local, mode):
    monkeypatch.setattr("jupyter_gpu_guard.history_file.on_local_disk", lambda _: local)
    history = opened()
    history.record(transition())
    with sqlite3.connect(path) as check:
        assert check.execute("PRAGMA journal_mode").fetchone() == (mode,)
    assert history.transitions() == [transition()]


def test_a_file_that_moved_to_a_network_disk_gives_up_write_ahead_logging(opened, path, monkeypatch):
    first = opened()
    first.record(transition())
    first.close()
    monkeypatch.setattr("jupyter_gpu_guard.history_file.on_local_disk", lambda _: False)
    second = opened()
    assert second.transitions() == [transition()]
    assert not os.path.exists(f"{path}-wal")


def test_every_write_waits_for_the_disk(path, clock):
    file = HistoryFile(str(path), (), clock, LOG)
    with file.reading() as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
    file.close()


def test_bodies_are_plain_json(opened, path):
    opened().record(transition(0, note="ü"))
    with sqlite3.connect(path) as check:
        ((body,),) = check.execute("SELECT body FROM transitions").fetchall()
    assert json.loads(body) == transition(0, note="ü")
