"""The contents manager behind `Contents`: real managers on real files, hashes, threads and events."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading

import pytest
from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager, LargeFileManager
from jupyter_server.services.contents.manager import ContentsManager

from jupyter_gpu_guard.contents import Contents, ContentsError

TEXT = b"print('kept')\n"
SHA256 = hashlib.sha256(TEXT).hexdigest()


@pytest.fixture(params=[LargeFileManager, AsyncLargeFileManager], ids=["sync", "async"])
def manager(request, tmp_path):
    (tmp_path / "a.py").write_bytes(TEXT)
    return request.param(root_dir=str(tmp_path))


@pytest.fixture
def contents(manager):
    contents = Contents(manager)
    yield contents
    contents.close()


async def test_the_hash_is_the_one_that_the_manager_gives_to_browsers(contents):
    found = await contents.hash_of("a.py")
    assert (found.value, found.by_manager) == (SHA256, True)


async def test_another_algorithm_of_the_manager_is_followed(manager):
    manager.hash_algorithm = "sha512"
    contents = Contents(manager)
    assert (await contents.hash_of("a.py")).value == hashlib.sha512(TEXT).hexdigest()
    contents.close()


async def test_what_is_not_there_has_no_hash_and_a_folder_is_an_error(contents, tmp_path):
    (tmp_path / "folder").mkdir()
    assert await contents.hash_of("nowhere.ipynb") is None
    assert await contents.read("nowhere.ipynb") is None
    with pytest.raises(ContentsError, match="folder"):
        await contents.hash_of("folder")


async def test_a_path_outside_the_root_is_not_read(contents, tmp_path):
    (tmp_path.parent / "secret.py").write_text("x")
    assert await contents.hash_of("../secret.py") is None
    with pytest.raises(ContentsError):
        await contents.run(lambda: contents.local_path("../secret.py"))


async def test_bytes_come_back_as_they_lie_on_disk(contents, tmp_path):
    for data in (TEXT, b"\x00\xff\x80", b""):
        (tmp_path / "data.bin").write_bytes(data)
        assert await contents.read("data.bin") == data


async def test_a_damaged_notebook_is_read_as_it_is_and_left_alone(contents, tmp_path):
    (tmp_path / "n.ipynb").write_bytes(b'{"cells": [')
    (tmp_path / ".~n.ipynb").write_bytes(b'{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}')
    assert await contents.read("n.ipynb") == b'{"cells": ['
    assert sorted(p.name for p in tmp_path.iterdir()) == [".~n.ipynb", "a.py", "n.ipynb"]


class Written(logging.Handler):
    """What is written of events, and in which thread."""

    def __init__(self):
        super().__init__()
        self.events = []

    def emit(self, record):
        self.events.append((record.msg["path"], threading.current_thread()))


async def test_listeners_of_contents_events_are_called_on_the_loop(manager):
    here, heard, written = threading.current_thread(), asyncio.Queue(), Written()
    manager.event_logger.register_handler(written)

    async def listener(logger, schema_id, data):
        if data["path"] == "a.py":
            manager.emit({"action": "get", "path": "told by the listener"})
            heard.put_nowait((threading.current_thread(), written.events[:]))

    manager.event_logger.add_listener(schema_id=manager.event_schema_id, listener=listener)
    contents = Contents(manager)
    assert (await contents.hash_of("a.py")).value == SHA256
    at_once = [("a.py", here), ("told by the listener", here)]
    assert await asyncio.wait_for(heard.get(), 10) == (here, at_once)
    contents.close()
    assert "emit" not in vars(manager.event_logger)


async def test_events_of_other_threads_stay_in_them(manager):
    written = Written()
    manager.event_logger.register_handler(written)
    contents = Contents(manager)
    await contents.hash_of("a.py")
    await asyncio.sleep(0)  # the loop's turn
    assert written.events == [("a.py", threading.current_thread())]
    other = threading.Thread(target=manager.emit, args=({"action": "get", "path": "b.py"},))
    other.start()
    other.join()
    assert written.events[1:] == [("b.py", other)]
    contents.close()


class WithoutHashes(ContentsManager):
    """A manager from before hashes, that keeps files in memory and refuses to be asked for one."""

    def __init__(self, files, **kwargs):
        super().__init__(**kwargs)
        self.files = files

    def get(self, path, content=True, type=None, format=None):
        return {"type": "file", "content": self.files[path] if content else None, "format": "text"}


class Slow(WithoutHashes):
    """Stays in `get` until it is let go."""

    entered = threading.Event()
    let_go = threading.Event()

    def get(self, path, content=True, type=None, format=None, require_hash=False):
        self.entered.set()
        self.let_go.wait(30)
        return {"type": "file", "hash": "abc"}


async def test_without_hashes_the_bytes_of_the_file_are_hashed():
    contents = Contents(WithoutHashes({"a.py": TEXT.decode()}))
    found = await contents.hash_of("a.py")
    assert (found.value, found.by_manager) == (SHA256, False)
    assert await contents.run(lambda: contents.local_path("a.py")) is None
    contents.close()


async def test_whatever_a_manager_raises_is_one_line():
    contents = Contents(WithoutHashes({}))
    with pytest.raises(ContentsError, match=r"^'b\.py'$"):
        await contents.read("b.py")
    contents.close()


async def test_the_loop_runs_on_while_the_manager_waits_for_the_disk():
    contents = Contents(Slow({}))
    asked = asyncio.create_task(contents.hash_of("a.py"))
    while not Slow.entered.is_set():  # never left if the manager ran on this loop
        await asyncio.sleep(0.01)
    Slow.let_go.set()
    assert (await asked).value == "abc"
    contents.close()


async def test_a_disk_that_hangs_is_given_up():
    Slow.let_go.clear()
    contents = Contents(Slow({}), deadline=0.05)
    with pytest.raises(ContentsError, match="no answer"):
        await contents.hash_of("a.py")
    Slow.let_go.set()
    contents.close()
