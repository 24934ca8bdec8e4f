"""Saving with real files: what front ends say against what lies on disk."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import stat
import time
from datetime import UTC, datetime, timedelta

import nbformat
import pytest
from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager
from nbformat.v4 import new_code_cell, new_notebook

from jupyter_gpu_guard.contents import Contents
from jupyter_gpu_guard.core.model import Instant, OpenDocument
from jupyter_gpu_guard.notebooks import (
    BadAnswer,
    DocumentAnswer,
    OldNonce,
    Saver,
    UnknownClient,
    parse_documents,
)
from jupyter_gpu_guard.recovery import RecoveryStore

LOG = logging.getLogger("test")
LONG = timedelta(minutes=5)
START = Instant(0.0, datetime(2026, 3, 1, 14, 0, tzinfo=UTC))


def book(source):
    return nbformat.writes(new_notebook(cells=[new_code_cell(source, id="one")])).encode()


def digest(data):
    return hashlib.sha256(data).hexdigest()


OLD, NEW, OTHER = book("old"), book("new"), book("other")


def clock():
    """Awake seconds since the machine started, as the server's own clock counts them."""
    return START.plus(timedelta(seconds=time.monotonic()))


def held(client, path, dirty=True, kernel="k"):
    return OpenDocument(client, path, kernel, dirty, START)


class Desk:
    """A server's saver with its files."""

    def __init__(self, root, data):
        self.root = root
        self.contents = Contents(AsyncLargeFileManager(root_dir=str(root)))
        self.store = RecoveryStore(self.contents, ["gpu_guard_recovery"], data, clock, LOG)
        self.saver = Saver(self.contents, clock, self.store, LOG)

    def write(self, path, data):
        (self.root / path).write_bytes(data)

    async def ask(self, *documents, timeout=LONG):
        return await self.saver.open_request("k", documents, timeout)

    async def outcome(self, request, answers):
        """Let clients answer `[(client, path, outcome, more)]`, then wait. The result, and its outcomes by window."""
        for client, path, outcome, *more in answers:
            self.saver.answer(request.nonce, client, [DocumentAnswer(path, outcome, **dict(*more))])
        result = await self.saver.wait(request.nonce)
        return result, {(d.client_id, d.path): d.outcome for d in result.documents}


@pytest.fixture
def desk(tmp_path):
    (tmp_path / "root").mkdir()
    desk = Desk(tmp_path / "root", tmp_path / "data")
    desk.write("a.ipynb", OLD)
    desk.write("b.ipynb", OLD)
    yield desk
    desk.contents.close()


# --- the request --------------------------------------------------------------------------------------------------


async def test_windows_with_one_file_write_it_one_after_the_other_the_unsaved_first(desk):
    documents = [
        held("clean", "a.ipynb", dirty=False),
        held("c1", "a.ipynb"),
        held("c2", "a.ipynb"),
        held("c2", "b.ipynb"),
    ]

    async def waits(timeout):
        request = await desk.ask(*documents, timeout=timeout)
        return {
            (client, d["path"][0]): d["wait_seconds"]
            for client in ("c1", "c2", "clean")
            for d in request.to_wire(client)["documents"]
        }

    known = {("c1", "a"): 0, ("c2", "a"): 10, ("clean", "a"): 20, ("c2", "b"): 0}
    assert await waits(timedelta(seconds=60)) == known
    assert (await waits(timedelta(seconds=12)))["clean", "a"] == 4, "the last one has time left to save"


async def test_only_windows_that_hold_a_document_of_this_kernel_are_asked(desk):
    request = await desk.ask(
        held("c1", "a.ipynb"),
        held("c2", "b.ipynb"),
        held("c2", "a.ipynb"),
        held("c3", "c.ipynb", kernel="other"),
    )
    assert request.clients == ("c1", "c2")
    assert request.documents == ("a.ipynb", "b.ipynb")
    wire = request.to_wire("c2")
    assert [d["path"] for d in wire["documents"]] == ["b.ipynb", "a.ipynb"]
    assert [d["hash"] for d in wire["documents"]] == ["contents", "contents"]
    assert wire["deadline"].endswith("Z")
    assert all((desk.root / d["recovery_path"]).parent.is_dir() for d in wire["documents"])
    assert len({d["recovery_path"] for c in ("c1", "c2") for d in request.to_wire(c)["documents"]}) == 3
    assert [d["path"] for d in request.to_wire()["documents"]] == ["a.ipynb", "b.ipynb"]


async def test_the_deadline_is_the_timeout_from_now(desk):
    before = clock().at
    request = await desk.ask(held("c1", "a.ipynb"), timeout=timedelta(seconds=60))
    assert timedelta(seconds=60) <= request.deadline - before <= clock().at - before + timedelta(seconds=60)
    assert request.deadline.isoformat().replace("+00:00", "Z") == request.to_wire("c1")["deadline"]


async def test_nothing_open_needs_no_answer(desk):
    request = await desk.ask(held("c1", "a.ipynb", kernel="other"))
    result, documents = await desk.outcome(request, [])
    assert (result.kind, documents, result.reason) == ("nothing_open", {}, None)


async def test_requests_that_still_take_answers_are_listed(desk):
    request = await desk.ask(held("c1", "a.ipynb"))
    over = await desk.saver.open_request("k2", [held("c1", "b.ipynb", kernel="k2")], timedelta(0))
    assert [r.nonce for r in desk.saver.pending] == [request.nonce]
    with pytest.raises(OldNonce):
        desk.saver.answer(over.nonce, "c1", [])


# --- who may answer -----------------------------------------------------------------------------------------------


async def test_an_old_foreign_or_made_up_nonce_is_refused(desk):
    old = await desk.ask(held("c1", "a.ipynb"))
    new = await desk.ask(held("c1", "a.ipynb"))
    saved = [DocumentAnswer("a.ipynb", "saved", digest(OLD))]
    for nonce, kernel in ((old.nonce, "k"), ("made up", "k"), (new.nonce, "another")):
        with pytest.raises(OldNonce):
            desk.saver.answer(nonce, "c1", saved, kernel)
    desk.saver.answer(new.nonce, "c1", saved, "k")
    assert (await desk.saver.wait(new.nonce)).kind == "saved"
    with pytest.raises(OldNonce):
        desk.saver.answer(new.nonce, "c1", saved)
    with pytest.raises(OldNonce):
        await desk.saver.wait(new.nonce)


async def test_a_client_that_was_not_asked_is_refused(desk):
    request = await desk.ask(held("c1", "a.ipynb"))
    with pytest.raises(UnknownClient):
        desk.saver.answer(request.nonce, "c9", [])


async def test_one_wrong_recovery_path_spoils_the_whole_answer(desk):
    request = await desk.ask(held("c1", "a.ipynb"), held("c1", "b.ipynb"), timeout=timedelta(seconds=1))
    offered = request.copies["c1", "a.ipynb"]
    for path in (
        "b.ipynb",
        "a.ipynb",
        "../x.ipynb",
        offered + "/../../b.ipynb",
        offered.replace(".ipynb", "/x.ipynb"),
    ):
        with pytest.raises(BadAnswer) as caught:
            answers = [
                DocumentAnswer("b.ipynb", "saved", digest(OLD)),
                DocumentAnswer("a.ipynb", "conflict", None, path),
            ]
            desk.saver.answer(request.nonce, "c1", answers)
        assert caught.value.key == "documents[1].recovery_path"
    _, documents = await desk.outcome(request, [])
    assert set(documents.values()) == {"silent"}


GOOD = {"path": "a.ipynb", "outcome": "saved"}


@pytest.mark.parametrize(
    ("body", "key"),
    [
        ({}, "documents"),
        (None, "documents"),
        ([GOOD] * 201, "documents"),
        (["a.ipynb"], "documents[0]"),
        ([GOOD, {"outcome": "saved"}], "documents[1].path"),
        ([{"path": "a.ipynb"}], "documents[0].outcome"),
        ([{**GOOD, "outcome": "done"}], "documents[0].outcome"),
        ([{**GOOD, "outcome": True}], "documents[0].outcome"),
        ([{**GOOD, "path": ""}], "documents[0].path"),
        ([{**GOOD, "path": 7}], "documents[0].path"),
        ([{**GOOD, "hash": 7}], "documents[0].hash"),
        ([{**GOOD, "hash": "x" * 513}], "documents[0].hash"),
        ([{**GOOD, "dirty": False}], "documents[0].dirty"),
    ],
)
def test_a_malformed_answer_is_refused_by_the_name_of_its_place(body, key):
    with pytest.raises(BadAnswer) as caught:
        parse_documents(body)
    assert caught.value.key == key


def test_what_may_be_missing_may_be_null():
    (answer,) = parse_documents([{**GOOD, "hash": None, "recovery_path": None}])
    assert answer == DocumentAnswer("a.ipynb", "saved")


# --- what counts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "said", "kind", "became"),
    [
        ("saved", digest(NEW), "saved", "saved"),
        ("clean", digest(NEW), "saved", "clean"),
        ("saved", digest(OTHER), "failed", "failed"),
        ("clean", digest(OTHER), "failed", "failed"),
        ("clean", digest(OLD), "failed", "failed"),
        ("saved", None, "failed", "failed"),
        ("failed", digest(NEW), "failed", "failed"),
        ("conflict", digest(NEW), "failed", "failed"),
    ],
)
async def test_only_the_hash_on_disk_makes_a_save(desk, outcome, said, kind, became):
    request = await desk.ask(held("c1", "a.ipynb"))
    desk.write("a.ipynb", NEW)
    result, documents = await desk.outcome(request, [("c1", "a.ipynb", outcome, {"hash": said})])
    assert (result.kind, documents) == (kind, {("c1", "a.ipynb"): became})
    assert (result.reason is None) == (kind == "saved")
    assert (desk.root / "a.ipynb").read_bytes() == NEW


async def test_a_file_that_is_gone_or_unreadable_fails_and_says_why(desk):
    request = await desk.ask(held("c1", "a.ipynb"), held("c1", "b.ipynb"))
    (desk.root / "a.ipynb").unlink()
    (desk.root / "b.ipynb").unlink()
    (desk.root / "b.ipynb").mkdir()
    same = {"hash": digest(OLD)}
    result, _ = await desk.outcome(
        request, [("c1", "a.ipynb", "clean", same), ("c1", "b.ipynb", "saved", same)]
    )
    assert [d.error for d in result.documents] == [
        "the file is not there",
        "the file could not be verified: b.ipynb is a folder",
    ]
    assert result.reason.text == "saving a.ipynb failed: the file is not there"


async def test_a_clean_window_is_fine_when_another_one_has_just_saved(desk):
    request = await desk.ask(held("c1", "a.ipynb", dirty=False), held("c2", "a.ipynb"))
    desk.write("a.ipynb", NEW)
    result, documents = await desk.outcome(
        request,
        [
            ("c1", "a.ipynb", "clean", {"hash": digest(OLD)}),
            ("c2", "a.ipynb", "saved", {"hash": digest(NEW)}),
        ],
    )
    assert (result.kind, documents["c1", "a.ipynb"]) == ("saved", "clean")


async def test_a_window_whose_save_was_written_over_has_failed(desk):
    request = await desk.ask(held("c1", "a.ipynb"), held("c2", "a.ipynb"))
    desk.write("a.ipynb", NEW)
    result, documents = await desk.outcome(
        request,
        [
            ("c1", "a.ipynb", "saved", {"hash": digest(OTHER)}),
            ("c2", "a.ipynb", "saved", {"hash": digest(NEW)}),
        ],
    )
    assert result.kind == "failed"
    assert documents == {("c1", "a.ipynb"): "failed", ("c2", "a.ipynb"): "saved"}


@pytest.mark.parametrize("said", ["conflict", "read_only", "deleted"])
async def test_a_verified_recovery_copy_counts_as_saved(desk, said):
    request = await desk.ask(held("c1", "a.ipynb"))
    copy = request.copies["c1", "a.ipynb"]
    desk.write(copy, NEW)
    result, _ = await desk.outcome(request, [("c1", "a.ipynb", said, {"recovery_path": copy})])
    (document,) = result.documents
    assert (result.kind, document.outcome, document.recovery_path) == ("saved", "recovered", copy)
    assert (await desk.store.open(document.recovery_id))[0] == NEW
    assert (desk.root / "a.ipynb").read_bytes() == OLD


@pytest.mark.parametrize("content", [None, b"", NEW[:-9]])
async def test_a_recovery_copy_that_does_not_read_back_is_none(desk, content):
    request = await desk.ask(held("c1", "a.ipynb"))
    copy = request.copies["c1", "a.ipynb"]
    if content is not None:
        desk.write(copy, content)
    result, _ = await desk.outcome(request, [("c1", "a.ipynb", "conflict", {"recovery_path": copy})])
    (document,) = result.documents
    assert (result.kind, document.copied, result.all_copied) == ("failed", False, False)
    assert document.error == "conflict, and no recovery copy of it can be read back"


async def test_a_failed_save_stays_failed_but_its_copy_is_known(desk):
    request = await desk.ask(held("c1", "a.ipynb"))
    copy = request.copies["c1", "a.ipynb"]
    desk.write(copy, NEW)
    result, _ = await desk.outcome(
        request, [("c1", "a.ipynb", "failed", {"recovery_path": copy, "error": "disk full"})]
    )
    assert (result.kind, result.all_copied) == ("failed", True)
    assert result.documents[0].to_row() == {
        "path": "a.ipynb",
        "client_id": "c1",
        "outcome": "failed",
        "last_seen_dirty": True,
        "hash": None,
        "recovery_path": copy,
        "recovery_id": result.documents[0].recovery_id,
        "error": "failed: disk full",
    }


async def test_a_second_copy_beside_a_taken_name_is_accepted(desk):
    request = await desk.ask(held("c1", "a.ipynb"))
    copy = request.copies["c1", "a.ipynb"].replace(".ipynb", "-0a1b2c3d.ipynb")
    desk.write(copy, NEW)
    _, documents = await desk.outcome(request, [("c1", "a.ipynb", "conflict", {"recovery_path": copy})])
    assert documents == {("c1", "a.ipynb"): "recovered"}


async def test_a_copy_handed_to_the_server_counts_for_its_own_window_only(desk):
    kept = await desk.store.store(NEW, "a.ipynb", "k", "c1")
    request = await desk.ask(held("c1", "a.ipynb"), held("c2", "a.ipynb"))
    result, documents = await desk.outcome(
        request, [(c, "a.ipynb", "read_only", {"recovery_id": kept.id}) for c in ("c1", "c2")]
    )
    assert documents == {("c1", "a.ipynb"): "recovered", ("c2", "a.ipynb"): "failed"}
    assert [d.recovery_id for d in result.documents] == [kept.id, None]


async def test_a_browser_can_write_its_copy_where_it_was_told_to(
    jp_serverapp, jp_fetch, jp_root_dir, tmp_path
):
    (jp_root_dir / "work").mkdir()
    (jp_root_dir / "work" / "a.ipynb").write_bytes(OLD)
    contents = Contents(jp_serverapp.contents_manager)
    store = RecoveryStore(contents, ["gpu_guard_recovery"], tmp_path / "data", clock, LOG)
    saver = Saver(contents, clock, store, LOG)
    request = await saver.open_request("k", [held("c1", "work/a.ipynb")], LONG)
    (document,) = request.to_wire("c1")["documents"]
    copy = document["recovery_path"]
    body = json.dumps({"type": "notebook", "format": "json", "content": json.loads(NEW)})
    await jp_fetch("api", "contents", *copy.split("/"), method="PUT", body=body)
    told = await jp_fetch("api", "contents", *copy.split("/"), params={"hash": "1", "content": "0"})
    answer = DocumentAnswer(
        "work/a.ipynb", "conflict", recovery_path=copy, recovery_hash=json.loads(told.body)["hash"]
    )
    saver.answer(request.nonce, "c1", [answer])
    (outcome,) = (await saver.wait(request.nonce)).documents
    assert (outcome.outcome, stat.S_IMODE((jp_root_dir / copy).stat().st_mode)) == ("recovered", 0o600)
    data, name = await store.open(outcome.recovery_id)
    assert name == copy.rpartition("/")[2]
    assert json.loads(data)["cells"] == json.loads(NEW)["cells"]
    contents.close()


# --- when it is over ----------------------------------------------------------------------------------------------


async def test_silence_until_the_deadline_is_silence_with_what_was_last_seen(desk):
    documents = (
        held("c1", "a.ipynb"),
        held("c1", "b.ipynb", dirty=False),
        held("c2", "a.ipynb", dirty=False),
    )
    request = await desk.ask(*documents, timeout=timedelta(seconds=1))
    result, outcomes = await desk.outcome(request, [("c2", "a.ipynb", "clean", {"hash": digest(OLD)})])
    assert result.kind == "silent"
    assert outcomes == {("c1", "a.ipynb"): "silent", ("c1", "b.ipynb"): "silent", ("c2", "a.ipynb"): "clean"}
    assert [(d.path, d.last_seen_dirty) for d in result.documents if d.outcome == "silent"] == [
        ("a.ipynb", True),
        ("b.ipynb", False),
    ]
    assert result.reason.text == "2 open tabs did not answer"


async def test_a_failure_outweighs_silence(desk):
    request = await desk.ask(held("c1", "a.ipynb"), held("c2", "a.ipynb"), timeout=timedelta(seconds=1))
    result, _ = await desk.outcome(request, [("c1", "a.ipynb", "failed", {})])
    assert result.kind == "failed"


async def test_answers_may_come_in_parts_and_the_last_one_counts(desk):
    request = await desk.ask(held("c1", "a.ipynb"), held("c1", "b.ipynb"))
    waiting = asyncio.create_task(desk.saver.wait(request.nonce))
    await asyncio.sleep(0)
    desk.saver.answer(request.nonce, "c1", [DocumentAnswer("a.ipynb", "failed")])
    desk.saver.answer(request.nonce, "c1", [DocumentAnswer("a.ipynb", "clean", digest(OLD))])
    await asyncio.sleep(0)
    assert not waiting.done()
    desk.saver.answer(request.nonce, "c1", [DocumentAnswer("b.ipynb", "clean", digest(OLD))])
    result = await waiting
    assert (result.kind, [d.outcome for d in result.documents]) == ("saved", ["clean", "clean"])


async def test_a_document_opened_since_counts_and_so_does_a_path_that_is_open_twice(desk):
    request = await desk.ask(held("c1", "a.ipynb"))
    answers = [
        DocumentAnswer("a.ipynb", "clean", digest(OLD)),
        DocumentAnswer("a.ipynb", "failed", error="as a text"),
        DocumentAnswer("b.ipynb", "saved", digest(OLD)),
    ]
    desk.saver.answer(request.nonce, "c1", answers)
    result = await desk.saver.wait(request.nonce)
    assert result.kind == "failed"
    assert sorted((d.path, d.outcome) for d in result.documents) == [
        ("a.ipynb", "clean"),
        ("a.ipynb", "failed"),
        ("b.ipynb", "saved"),
    ]


async def test_closing_ends_the_wait_and_takes_no_more_answers(desk):
    request = await desk.ask(held("c1", "a.ipynb"))
    waiting = asyncio.create_task(desk.saver.wait(request.nonce))
    await asyncio.sleep(0)
    desk.saver.close(request.nonce)
    assert (await waiting).kind == "silent"
    with pytest.raises(OldNonce):
        desk.saver.answer(request.nonce, "c1", [])


async def test_a_newer_request_ends_the_wait_for_the_older_one(desk):
    request = await desk.ask(held("c1", "a.ipynb"))
    waiting = asyncio.create_task(desk.saver.wait(request.nonce))
    await asyncio.sleep(0)
    newer = await desk.ask(held("c1", "a.ipynb"))
    assert (await waiting).kind == "silent"
    assert [r.nonce for r in desk.saver.pending] == [newer.nonce]


async def test_cancelling_the_wait_closes_the_request(desk):
    request = await desk.ask(held("c1", "a.ipynb"))
    waiting = asyncio.create_task(desk.saver.wait(request.nonce))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert desk.saver.pending == ()
