"""Ask the browsers that hold a kernel's documents open to save them, and check on disk what they say.

Covers the server's half of a save: the request with its nonce and deadline, the answers, their verification, and what
comes out for the guard. It believes no answer: a document counts as saved when the hash that the front end names is
the one of the file as it lies on disk, and as recovered when a copy of it can be read back. It writes no document.
Shared live documents and outputs that no browser received are not its business.
"""

from __future__ import annotations

import asyncio
import logging
import posixpath
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol

from .contents import Contents, ContentsError, FileHash
from .core.model import Instant, OpenDocument
from .core.reasons import Reason, because
from .save_answers import IN_A_COPY, IN_ITS_FILE, BadAnswer, DocumentAnswer, parse_documents

__all__ = [
    "BadAnswer",
    "DocumentAnswer",
    "DocumentOutcome",
    "OldNonce",
    "SaveOutcome",
    "SaveRequest",
    "Saver",
    "UnknownClient",
    "parse_documents",
]

#: How long a window that has a document open waits for another one that writes the same file, and the share of the
#: time that all these waits may take.
TURN_SECONDS = 10.0
SHARE_FOR_TURNS = 0.5

Outcome = Literal["saved", "clean", "recovered", "failed", "silent"]
Kind = Literal["saved", "failed", "silent", "nothing_open"]
Held = tuple[str, str]  # client_id and path: one document in one browser window


class OldNonce(Exception):
    """The save request is closed, was replaced by a newer one, or never was."""


class UnknownClient(Exception):
    """The client was not asked."""


class Copies(Protocol):
    """What a save needs of the store of recovery copies."""

    async def recovery_path_for(self, document: str, client_id: str, nonce: str) -> str | None:
        """Where the front end may write its copy; None where it can't."""

    async def verify(self, recovery_path: str, expected_hash: str | None = None) -> bool:
        """Whether that copy reads back whole."""

    async def tidy(self, recovery_paths: Iterable[str]) -> None:
        """Take away what was prepared for copies that nobody made."""

    async def register(self, recovery_path: str, document: str, kernel_id: str, client_id: str) -> str | None:
        """Give it an id."""

    async def holds(self, copy_id: str, document: str, kernel_id: str, client_id: str) -> bool:
        """Whether a copy handed to the server is there and whole."""


@dataclass(frozen=True, slots=True)
class SaveRequest:
    """What the front ends are asked. `copies`: where each may write a recovery copy, None where it can't."""

    nonce: str
    kernel_id: str
    deadline: datetime
    documents: tuple[str, ...]
    clients: tuple[str, ...]
    copies: Mapping[Held, str | None]
    #: The files as they lay on disk when the request was made; None for those that were not there or not readable.
    before: Mapping[str, FileHash | None]
    #: Seconds that each waits before it writes. Two windows that save one file at once may leave a mixture of both.
    waits: Mapping[Held, float]

    def to_wire(self, client_id: str | None = None) -> dict[str, object]:
        """The request as that client gets it, with its own documents; without one, each document once.

        `hash` says which hash to answer with: `contents` the one of the contents API, `sha256` that of the file's
        bytes, where the contents manager knows no hashes.
        """
        mine: dict[str, Held] = {}
        for held in self.copies:
            if client_id in (None, held[0]):
                mine.setdefault(held[1], held)
        documents = [
            {
                "path": path,
                "recovery_path": self.copies[held],
                "hash": self._kind_of_hash(path),
                "wait_seconds": self.waits[held],
            }
            for path, held in mine.items()
        ]
        deadline = self.deadline.isoformat().replace("+00:00", "Z")
        return {
            "nonce": self.nonce,
            "kernel_id": self.kernel_id,
            "deadline": deadline,
            "documents": documents,
        }

    def _kind_of_hash(self, path: str) -> str:
        before = self.before[path]
        return "sha256" if before is not None and not before.by_manager else "contents"

    def offered(self, path: str, recovery_path: str) -> bool:
        """Whether that is where a copy of `path` was to go: a name offered to any client, or that name with something
        added, as a front end does when it finds the name taken by its own earlier answer."""
        for (_, document), copy in self.copies.items():
            if document != path or copy is None:
                continue
            stem, extension = posixpath.splitext(copy)
            rest = recovery_path[len(stem) :]
            if recovery_path.startswith(stem) and rest.endswith(extension) and "/" not in rest:
                return True
        return False


@dataclass(frozen=True, slots=True)
class DocumentOutcome:
    """What became of one document in one browser window, as the disk shows it."""

    path: str
    client_id: str
    outcome: Outcome
    last_seen_dirty: bool
    hash: str | None = None
    recovery_path: str | None = None
    recovery_id: str | None = None
    error: str | None = None

    def to_row(self) -> dict[str, Any]:
        """As tombstones, history and REST have it."""
        return asdict(self)

    @property
    def copied(self) -> bool:
        """Whether a recovery copy of it was verified, however the save itself went."""
        return self.recovery_path is not None or self.recovery_id is not None


@dataclass(frozen=True, slots=True)
class SaveOutcome:
    """What came of a request: `failed` when any document did, else `silent` when any front end was, else `saved`."""

    kind: Kind
    documents: tuple[DocumentOutcome, ...] = ()

    @property
    def all_copied(self) -> bool:
        """Whether each failed document has a verified recovery copy: what `on_save_failure = "recovery-copy"` needs."""
        return all(document.copied for document in self.documents if document.outcome == "failed")

    @property
    def reason(self) -> Reason | None:
        """Why it is not simply saved; None when it is."""
        for document in self.documents:
            if document.outcome == "failed":
                return because("save_failed", path=document.path, error=document.error)
        silent = sum(document.outcome == "silent" for document in self.documents)
        return because("save_unanswered", count=silent) if silent else None


class Saver:
    """The save requests of one server. Lives on the event loop; reads files through `contents`."""

    def __init__(
        self, contents: Contents, clock: Callable[[], Instant], recovery: Copies, log: logging.Logger
    ) -> None:
        self._contents = contents
        self._clock = clock
        self._recovery = recovery
        self._log = log
        self._open: dict[str, _Open] = {}  # by kernel_id

    @property
    def pending(self) -> tuple[SaveRequest, ...]:
        """The requests that still take answers, for clients that poll."""
        return tuple(opened.request for opened in self._open.values() if not self._over(opened))

    async def open_request(
        self, kernel_id: str, documents: Sequence[OpenDocument], timeout: timedelta
    ) -> SaveRequest:
        """Make a request to all clients that reported a document of this kernel; it replaces an older one.

        Folders for recovery copies are made before the time runs, since a browser's write into a missing one fails.
        """
        held = {(d.client_id, d.path): d for d in documents if d.kernel_id == kernel_id}
        nonce = secrets.token_urlsafe(24)
        copies = {key: await self._recovery.recovery_path_for(key[1], key[0], nonce) for key in held}
        paths = tuple(dict.fromkeys(path for _, path in held))
        before = {path: (await self._on_disk(path))[0] for path in paths}
        expires = self._clock().plus(timeout)
        clients = tuple(dict.fromkeys(client for client, _ in held))
        waits = _turns(held, timeout)
        request = SaveRequest(nonce, kernel_id, expires.at, paths, clients, copies, before, waits)
        if kernel_id in self._open:
            self._open[kernel_id].end.set()
        self._open[kernel_id] = _Open(request, expires, held)
        if not held:
            self._open[kernel_id].end.set()
        return request

    def answer(
        self, nonce: str, client_id: str, answers: Iterable[DocumentAnswer], kernel_id: str | None = None
    ) -> None:
        """Take what a client says, of all its documents or some of them; the last call that names one counts.

        It may name documents that were opened since it was asked, and one path twice (open as a notebook and as a
        text): all must come out well. Raises `OldNonce` (also when the nonce is not of `kernel_id`), `UnknownClient`,
        and `BadAnswer` for a recovery path that was not offered; then nothing of the answer is taken.
        """
        opened = self._of(nonce)
        if kernel_id not in (None, opened.request.kernel_id) or self._over(opened):
            raise OldNonce(nonce)
        if client_id not in opened.request.clients:
            raise UnknownClient(client_id)
        taken: dict[Held, list[DocumentAnswer]] = {}
        for i, answer in enumerate(answers):
            copy = answer.recovery_path
            if copy is not None and not opened.request.offered(answer.path, copy):
                raise BadAnswer(f"documents[{i}].recovery_path", "is not the one that was offered")
            taken.setdefault((client_id, answer.path), []).append(answer)
        opened.answers.update(taken)
        if opened.held.keys() <= opened.answers.keys():
            opened.end.set()

    async def wait(self, nonce: str) -> SaveOutcome:
        """Wait for all answers, at most until the deadline, then close the request and verify on disk.

        Raises `OldNonce`. Cancelling it closes the request as well.
        """
        opened = self._of(nonce)
        left = opened.expires.since(self._clock()).total_seconds()
        try:
            await asyncio.wait_for(opened.end.wait(), max(left, 0))
        except asyncio.TimeoutError:
            self._log.info(
                "Not all front ends answered the save request of kernel %s", opened.request.kernel_id
            )
        finally:
            self.close(nonce)
        outcome = await self._verify(opened)
        if outcome.kind != "silent":  # whoever was silent may still put its copy there
            await self._recovery.tidy(path for path in opened.request.copies.values() if path is not None)
        return outcome

    def close(self, nonce: str) -> None:
        """Take no more answers. Whoever waits gets what was answered so far."""
        for kernel_id, opened in list(self._open.items()):
            if opened.request.nonce == nonce:
                del self._open[kernel_id]
                opened.end.set()

    def _of(self, nonce: str) -> _Open:
        for opened in self._open.values():
            if opened.request.nonce == nonce:
                return opened
        raise OldNonce(nonce)

    def _over(self, opened: _Open) -> bool:
        return opened.expires.monotonic <= self._clock().monotonic

    # --- verification ---------------------------------------------------------------------------------------------

    async def _verify(self, opened: _Open) -> SaveOutcome:
        if not opened.held:
            return SaveOutcome("nothing_open")
        paths = dict.fromkeys(path for _, path in (*opened.held, *opened.answers))
        disk = {path: await self._on_disk(path) for path in paths}
        replaced = {
            answer.path
            for answers in opened.answers.values()
            for answer in answers
            if answer.outcome == "saved" and _is_hash(answer.hash, disk[answer.path][0])
        }
        silent = [key for key in opened.held if key not in opened.answers]
        documents = [
            DocumentOutcome(path, client, "silent", opened.dirty(client, path)) for client, path in silent
        ]
        for (client_id, path), answers in opened.answers.items():
            for answer in answers:
                documents.append(await self._judge(opened, client_id, answer, disk[path], path in replaced))
        outcomes = {document.outcome for document in documents}
        kind: Kind = "failed" if "failed" in outcomes else "silent" if "silent" in outcomes else "saved"
        return SaveOutcome(kind, tuple(documents))

    async def _judge(
        self,
        opened: _Open,
        client_id: str,
        answer: DocumentAnswer,
        disk: tuple[FileHash | None, str],
        replaced: bool,
    ) -> DocumentOutcome:
        path, dirty = answer.path, opened.dirty(client_id, answer.path)
        if answer.outcome in IN_ITS_FILE:
            # A clean window whose file another window has just saved anew holds nothing that was not on disk.
            before = opened.request.before.get(path)
            passed_on = answer.outcome == "clean" and replaced and _is_hash(answer.hash, before)
            if passed_on or _is_hash(answer.hash, disk[0]):
                outcome: Outcome = "saved" if answer.outcome == "saved" else "clean"
                return DocumentOutcome(path, client_id, outcome, dirty, answer.hash)
        copied, copy_id = await self._copy(answer, path, opened.request.kernel_id, client_id)
        outcome = "recovered" if answer.outcome in IN_A_COPY and copied else "failed"
        copy_path = answer.recovery_path if copied else None
        error = None if outcome == "recovered" else _why(answer, disk[1], copied)
        return DocumentOutcome(path, client_id, outcome, dirty, answer.hash, copy_path, copy_id, error)

    async def _copy(
        self, answer: DocumentAnswer, path: str, kernel_id: str, client_id: str
    ) -> tuple[bool, str | None]:
        """Whether the copy that the answer names reads back whole, and its id."""
        if answer.recovery_path is not None:
            if not await self._recovery.verify(answer.recovery_path, answer.recovery_hash):
                return False, None
            return True, await self._recovery.register(answer.recovery_path, path, kernel_id, client_id)
        if answer.recovery_id is not None:
            held = await self._recovery.holds(answer.recovery_id, path, kernel_id, client_id)
            return held, answer.recovery_id if held else None
        return False, None

    async def _on_disk(self, path: str) -> tuple[FileHash | None, str]:
        """The file's hash, and what to say when it isn't the right one."""
        try:
            found = await self._contents.hash_of(path)
        except ContentsError as exc:
            self._log.warning("%s cannot be verified: %s", path, exc)
            return None, f"the file could not be verified: {exc}"
        if found is None:
            return None, "the file is not there"
        return found, "the file on disk is another one than was saved"


@dataclass(slots=True)
class _Open:
    request: SaveRequest
    expires: Instant
    held: Mapping[Held, OpenDocument]
    answers: dict[Held, list[DocumentAnswer]] = field(default_factory=dict)
    end: asyncio.Event = field(default_factory=asyncio.Event)

    def dirty(self, client_id: str, path: str) -> bool:
        """Whether the window last reported unsaved edits; one that was never heard of before it answered, did not."""
        held = self.held.get((client_id, path))
        return held is not None and held.dirty


def _turns(held: Mapping[Held, OpenDocument], timeout: timedelta) -> dict[Held, float]:
    """When each window may write, in seconds from the request: one after the other for each file, those that reported
    unsaved edits first. Jupyter's server lets two saves of one file run into each other."""
    waits: dict[Held, float] = {}
    for path in {path for _, path in held}:
        windows = sorted((key for key in held if key[1] == path), key=lambda key: not held[key].dirty)
        turn = min(TURN_SECONDS, timeout.total_seconds() * SHARE_FOR_TURNS / len(windows))
        waits.update({key: turn * place for place, key in enumerate(windows)})
    return waits


def _is_hash(said: str | None, found: FileHash | None) -> bool:
    return said is not None and found is not None and said == found.value


def _why(answer: DocumentAnswer, on_disk: str, copied: bool) -> str:
    if answer.outcome in IN_ITS_FILE:
        return "the answer names no hash" if answer.hash is None else on_disk
    said = f"{answer.outcome}: {answer.error}" if answer.error else answer.outcome
    if copied or answer.outcome == "failed":
        return said
    return f"{said}, and no recovery copy of it can be read back"
