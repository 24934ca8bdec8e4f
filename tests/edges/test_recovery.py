"""Recovery copies on real disks through real contents managers: where they go, whether they can be read back."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import stat
from datetime import UTC, datetime

import nbformat
import pytest
from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager, LargeFileManager
from nbformat.v4 import new_code_cell, new_notebook

from jupyter_gpu_guard.contents import Contents
from jupyter_gpu_guard.core.model import Instant
from jupyter_gpu_guard.recovery import NoSuchCopy, RecoveryError, RecoveryStore
from tests.edges.small_disk import fill, remount, small_disk

NOW = Instant(0.0, datetime(2026, 3, 1, 14, 5, 9, tzinfo=UTC))
BOOK = nbformat.writes(new_notebook(cells=[new_code_cell("x = 1")])).encode()
LOG = logging.getLogger("test")


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[LargeFileManager, AsyncLargeFileManager], ids=["sync", "async"])
def contents(request, tmp_path):
    root = tmp_path / "root"
    (root / "work").mkdir(parents=True)
    contents = Contents(request.param(root_dir=str(root)))
    yield contents
    contents.close()


@pytest.fixture
def root(tmp_path):
    return tmp_path / "root"


@pytest.fixture
def store_with(contents, tmp_path):
    def make(*places):
        return RecoveryStore(contents, places or ["gpu_guard_recovery"], tmp_path / "data", lambda: NOW, LOG)

    return make


async def test_a_browser_is_offered_a_private_folder_beside_the_notebook(store_with, root):
    path = await store_with().recovery_path_for("work/train.ipynb", "client-1", "nonce")
    assert path.startswith("work/gpu_guard_recovery/train-20260301T140509Z-")
    assert path.endswith(".ipynb")
    folder = root / "work" / "gpu_guard_recovery"
    assert mode(folder) == 0o700
    assert (folder / ".gitignore").read_text() == "*\n"
    assert mode(folder / ".gitignore") == 0o600


async def test_a_folder_that_others_could_read_is_closed(store_with, root):
    folder = root / "work" / "gpu_guard_recovery"
    folder.mkdir(mode=0o755)
    await store_with().recovery_path_for("work/train.ipynb", "c", "n")
    assert mode(folder) == 0o700


async def test_no_two_copies_share_a_name(store_with):
    store = store_with()
    asked = [
        ("work/a.ipynb", "c1", "n"),
        ("work/a.ipynb", "c2", "n"),
        ("work/a.ipynb", "c1", "m"),
        ("work/a.py", "c1", "n"),
    ]
    names = {await store.recovery_path_for(*one) for one in asked}
    assert len(names) == len(asked)


async def test_copies_of_a_copy_lie_beside_it(store_with, root):
    (root / "work" / "gpu_guard_recovery").mkdir()
    path = await store_with().recovery_path_for("work/gpu_guard_recovery/a-1.ipynb", "c", "n")
    assert path.rpartition("/")[0] == "work/gpu_guard_recovery"


async def test_long_and_odd_names_become_names_that_a_disk_takes(store_with, root):
    store = store_with()
    for document in ("work/" + "ü" * 120 + ".ipynb", "work/.ipynb", "top.ipynb"):
        copy = await store.store(BOOK, document, "k", "c")
        assert (root / copy.contents_path).read_bytes() == BOOK
        assert not copy.name.startswith(".")


async def test_a_link_in_the_folder_s_place_is_refused(store_with, root, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o755)
    (root / "work" / "gpu_guard_recovery").symlink_to(elsewhere)
    assert await store_with().recovery_path_for("work/a.ipynb", "c", "n") is None
    assert mode(elsewhere) == 0o755


async def test_a_document_outside_the_root_gets_no_folder(store_with, tmp_path):
    assert await store_with().recovery_path_for("../a.ipynb", "c", "n") is None
    assert not (tmp_path / "gpu_guard_recovery").exists()


@pytest.mark.parametrize(
    ("name", "data", "whole"),
    [
        ("a.ipynb", BOOK, True),
        ("a.ipynb", BOOK[:-20], False),
        ("a.ipynb", b"", False),
        ("a.ipynb", b"[]", False),
        ("a.ipynb", b'{"cells": []}', False),
        (
            "a.ipynb",
            b'{"cells": [{"cell_type": "code"}], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}',
            False,
        ),
        ("a.ipynb", b"[" * 200_000, False),
        ("a.py", b"x = 1\n", True),
        ("a.py", b"", False),
    ],
)
async def test_a_copy_counts_when_it_reads_back_whole(store_with, root, name, data, whole):
    (root / "work" / name).write_bytes(data)
    assert await store_with().verify(f"work/{name}") is whole


async def test_a_copy_whose_hash_is_another_one_does_not_count(store_with, root):
    store = store_with()
    (root / "work" / "a.ipynb").write_bytes(BOOK)
    (root / "work" / "empty.py").write_bytes(b"")
    assert await store.verify("work/a.ipynb", hashlib.sha256(BOOK).hexdigest()) is True
    assert await store.verify("work/a.ipynb", hashlib.sha256(b"other").hexdigest()) is False
    assert await store.verify("work/empty.py", hashlib.sha256(b"").hexdigest()) is True
    assert await store.verify("work/nowhere.ipynb") is False
    assert await store.verify("../a.ipynb") is False


async def test_a_browser_s_copy_gets_an_id_and_is_closed_to_others(store_with, root):
    store = store_with()
    path = await store.recovery_path_for("work/a.ipynb", "c", "n")
    (root / path).write_bytes(BOOK)
    (root / path).chmod(0o644)
    copy_id = await store.register(path, "work/a.ipynb", "k", "c")
    assert mode(root / path) == 0o600
    assert await store.open(copy_id) == (BOOK, path.rpartition("/")[2])


async def test_ids_outlive_the_server(store_with):
    copy = await store_with().store(BOOK, "work/a.ipynb", "k", "c")
    assert await store_with().open(copy.id) == (BOOK, copy.name)


@pytest.mark.parametrize("copy_id", ["", "x", "0" * 32, "../" + "0" * 29, "/etc/passwd", "..%2f..%2fetc"])
async def test_unknown_and_crafted_ids_open_nothing(store_with, copy_id):
    with pytest.raises(NoSuchCopy):
        await store_with().open(copy_id)


async def test_a_copy_that_was_removed_or_swapped_for_a_link_is_not_opened(store_with, root, tmp_path):
    store = store_with()
    copy = await store.store(BOOK, "work/a.ipynb", "k", "c")
    (root / copy.contents_path).unlink()
    with pytest.raises(NoSuchCopy, match="moved or deleted"):
        await store.open(copy.id)
    (tmp_path / "secret").write_text("secret")
    (root / copy.contents_path).symlink_to(tmp_path / "secret")
    with pytest.raises(RecoveryError):
        await store.open(copy.id)
    (root / copy.contents_path).unlink()
    os.mkfifo(root / copy.contents_path)
    with pytest.raises(RecoveryError, match="plain file"):
        await store.open(copy.id)


async def test_a_copy_counts_only_for_the_window_that_it_came_from(store_with):
    store = store_with()
    copy = await store.store(BOOK, "work/a.ipynb", "k", "c")
    assert await store.holds(copy.id, "work/a.ipynb", "k", "c") is True
    assert await store.holds(copy.id, "work/b.ipynb", "k", "c") is False
    assert await store.holds(copy.id, "work/a.ipynb", "k", "other") is False
    assert await store.holds("0" * 32, "work/a.ipynb", "k", "c") is False


async def test_a_copy_kept_by_the_server_is_private_and_exact(store_with, root, tmp_path):
    inside = await store_with().store(BOOK, "work/a.ipynb", "k", "c")
    assert mode(root / inside.contents_path) == 0o600
    outside = await store_with(str(tmp_path / "kept" / "here")).store(b"\x00\xff", "work/a.bin", "k", "c")
    assert outside.contents_path is None
    assert mode(tmp_path / "kept" / "here") == 0o700
    assert mode(tmp_path / "kept" / "here" / outside.name) == 0o600
    assert await store_with().open(outside.id) == (b"\x00\xff", outside.name)


async def test_nothing_is_kept_of_nothing(store_with):
    with pytest.raises(RecoveryError, match="empty"):
        await store_with().store(b"", "work/a.ipynb", "k", "c")


async def test_the_next_place_is_taken_when_the_first_is_read_only(tmp_path):
    with small_disk(tmp_path / "root", 64) as disk:
        remount(disk, "ro")
        contents = Contents(LargeFileManager(root_dir=str(disk)))
        store = RecoveryStore(
            contents, ["gpu_guard_recovery", str(tmp_path / "kept")], tmp_path / "data", lambda: NOW, LOG
        )
        assert await store.recovery_path_for("a.ipynb", "c", "n") is None
        copy = await store.store(BOOK, "a.ipynb", "k", "c")
        assert copy.file == str(tmp_path / "kept" / copy.name)
        contents.close()


async def test_a_full_disk_leaves_nothing_half_written_and_says_so(tmp_path):
    with small_disk(tmp_path / "disk", 64) as disk:
        contents = Contents(LargeFileManager(root_dir=str(tmp_path)))
        store = RecoveryStore(contents, [str(disk / "kept")], tmp_path / "data", lambda: NOW, LOG)
        before = await store.store(b"small", "a.py", "k", "c")
        filler = fill(disk)
        with pytest.raises(RecoveryError, match="No space left"):
            await store.store(b"x" * 20_000, "a.py", "k", "c")
        assert sorted(p.name for p in (disk / "kept").iterdir()) == sorted([".gitignore", before.name])
        filler.unlink()
        after = await store.store(b"x" * 20_000, "a.py", "k", "c")
        assert (await store.open(after.id))[0] == b"x" * 20_000
        contents.close()


async def test_a_copy_that_gets_no_id_is_not_left_behind(tmp_path):
    with small_disk(tmp_path / "data", 64) as disk:
        contents = Contents(LargeFileManager(root_dir=str(tmp_path)))
        store = RecoveryStore(contents, [str(tmp_path / "kept")], disk, lambda: NOW, LOG)
        fill(disk)
        with pytest.raises(RecoveryError, match="No space left"):
            await store.store(BOOK, "a.ipynb", "k", "c")
        assert [p.name for p in (tmp_path / "kept").iterdir()] == [".gitignore"]
        (tmp_path / "a.ipynb").write_bytes(BOOK)
        assert await store.register("a.ipynb", "b.ipynb", "k", "c") is None
        contents.close()


async def test_copies_kept_at_the_same_time_all_get_through(store_with):
    store = store_with()
    books = [BOOK + b" " * i for i in range(8)]
    copies = await asyncio.gather(*(store.store(book, "work/a.ipynb", "k", "c") for book in books))
    assert [(await store.open(copy.id))[0] for copy in copies] == books


async def test_a_place_that_nobody_used_is_taken_away_again(store_with, root):
    store = store_with("gpu_guard_recovery")
    offered = await store.recovery_path_for("work/nb.ipynb", "client", "nonce")
    assert (root / offered).parent.is_dir()
    await store.tidy([offered])
    assert not (root / offered).parent.exists()
    assert (root / "work").is_dir()


async def test_a_place_with_a_copy_stays(store_with, root):
    store = store_with("gpu_guard_recovery")
    offered = await store.recovery_path_for("work/nb.ipynb", "client", "nonce")
    (root / offered).write_text("copy")
    await store.tidy([offered])
    assert (root / offered).read_text() == "copy"
