"""Ask the browsers that hold a kernel's documents open to save them, and check on disk what they say.

Covers the server's half of a save: the request with its nonce and deadline, the answers, their verification, and what
comes out for the guard. It believes no answer: a document counts as saved when the hash that the front end names is
the one of the file as it lies on disk, and as recovered when a copy of it can be read back. It writes no document.
Shared live documents and outputs that no browser received are not its business.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol

from .contents import Contents, ContentsError, FileHash
from .core.model import Instant, OpenDocument
from .core.reasons import Reason, because

#: Its own file took the document.
IN_ITS_FILE = ("saved", "clean")
#: Its own file could not take it without harm, so it is in a recovery copy.
IN_A_COPY = ("conflict", "read_only", "deleted")
ANSWERS = (*IN_ITS_FILE, *IN_A_COPY, "failed")
#: Optional texts of an answered document, with their longest length.
TEXTS = {"hash": 512, "recovery_path": 4096, "recovery_hash": 512, "recovery_id": 64, "error": 1024}
MAX_DOCUMENTS = 200

Outcome = Literal["saved", "clean", "recovered", "failed", "silent"]
Kind = Literal["saved", "failed", "silent", "nothing_open"]
Held = tuple[str, str]  # client_id and path: one document in one browser window


class OldNonce(Exception):
    """The save request is closed, was replaced by a newer one, or never was."""


class UnknownClient(Exception):
    """The client was not asked."""


class BadAnswer(ValueError):
    """An answer that breaks the rules: `key` names the place in the body, `error` what is wrong there."""

    def __init__(self, key: str, error: str) -> None:
        super().__init__(f"{key}: {error}")
        self.key = key
        self.error = error


class Copies(Protocol):
    """What a save needs of the store of recovery copies."""

    async def recovery_path_for(self, document: str, client_id: str, nonce: str) -> str | None:
        """Where the front end may write its copy; None where it can't."""

    async def verify(self, recovery_path: str, expected_hash: str | None = None) -> bool:
        """Whether that copy reads back whole."""

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

    def to_wire(self, client_id: str) -> dict[str, object]:
        """The request as that client gets it: its own documents only.

        `hash` says which hash to answer with: `contents` the one of the contents API, `sha256` that of the file's
        bytes, where the contents manager knows no hashes.
        """
        documents = [
            {"path": path, "recovery_path": copy, "hash": self._kind_of_hash(path)}
            for (client, path), copy in self.copies.items()
            if client == client_id
        ]
        deadline = self.deadline.isoformat().replace("+00:00", "Z")
        return {"nonce": self.nonce, "kernel_id": self.kernel_id, "deadline": deadline, "documents": documents}

    def _kind_of_hash(self, path: str) -> str:
        before = self.before[path]
        return "sha256" if before is not None and not before.by_manager else "contents"


@dataclass(frozen=True, slots=True)
class DocumentAnswer:
    """What a front end says of one document. `hash`: of the file as it was after the save; `recovery_hash`: of the
    recovery copy; `recovery_id`: of a copy that it handed to the server instead of writing it itself."""

    path: str
    outcome: str
    hash: str | None = None
    recovery_path: str | None = None
    recovery_hash: str | None = None
    recovery_id: str | None = None
    error: str | None = None


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


def parse_answer(body: object) -> tuple[str, str, list[DocumentAnswer]]:
    """Nonce, client id and documents of `POST kernels/<kernel_id>/saved`. Raises `BadAnswer`."""
    fields = _fields(body, "body", {"nonce", "client_id", "documents"}, set())
    documents = fields["documents"]
    if not isinstance(documents, list) or len(documents) > MAX_DOCUMENTS:
        raise BadAnswer("documents", f"expected a list of at most {MAX_DOCUMENTS}")
    answers = [_parse_document(document, f"documents[{i}]") for i, document in enumerate(documents)]
    return _text(fields, "nonce", "nonce", 128), _text(fields, "client_id", "client_id", 256), answers


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
        request = SaveRequest(nonce, kernel_id, expires.at, paths, clients, copies, before)
        if kernel_id in self._open:
            self._open[kernel_id].end.set()
        self._open[kernel_id] = _Open(request, expires, held)
        if not held:
            self._open[kernel_id].end.set()
        return request

    def answer(
        self, nonce: str, client_id: str, answers: Iterable[DocumentAnswer], kernel_id: str | None = None
    ) -> None:
        """Take what a client says, of all its documents or some of them; the last word on each counts.

        Raises `OldNonce` (also when the nonce is not of `kernel_id`), `UnknownClient`, and `BadAnswer` for a document
        or a recovery path that the client was not asked for; then nothing of the answer is taken.
        """
        opened = self._of(nonce)
        if kernel_id not in (None, opened.request.kernel_id) or self._over(opened):
            raise OldNonce(nonce)
        if client_id not in opened.request.clients:
            raise UnknownClient(client_id)
        taken: dict[Held, DocumentAnswer] = {}
        for i, answer in enumerate(answers):
            key = (client_id, answer.path)
            if key not in opened.held or key in taken:
                raise BadAnswer(f"documents[{i}].path", "was not asked for, or stands there twice")
            if answer.recovery_path not in (None, opened.request.copies[key]):
                raise BadAnswer(f"documents[{i}].recovery_path", "is not the one that was offered")
            taken[key] = answer
        opened.answers.update(taken)
        if opened.answers.keys() == opened.held.keys():
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
            self._log.info("Not all front ends answered the save request of kernel %s", opened.request.kernel_id)
        finally:
            self.close(nonce)
        return await self._verify(opened)

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
        disk = {path: await self._on_disk(path) for path in opened.request.documents}
        replaced = {
            path
            for (_, path), answer in opened.answers.items()
            if answer.outcome == "saved" and _is_hash(answer.hash, disk[path][0])
        }
        documents = [await self._judge(opened, key, disk[key[1]], key[1] in replaced) for key in opened.held]
        outcomes = {document.outcome for document in documents}
        kind: Kind = "failed" if "failed" in outcomes else "silent" if "silent" in outcomes else "saved"
        return SaveOutcome(kind, tuple(documents))

    async def _judge(
        self, opened: _Open, key: Held, disk: tuple[FileHash | None, str], replaced: bool
    ) -> DocumentOutcome:
        client_id, path = key
        dirty = opened.held[key].dirty
        answer = opened.answers.get(key)
        if answer is None:
            return DocumentOutcome(path, client_id, "silent", dirty)
        if answer.outcome in IN_ITS_FILE:
            # A clean window whose file another window has just saved anew holds nothing that was not on disk.
            passed_on = answer.outcome == "clean" and replaced and _is_hash(answer.hash, opened.request.before[path])
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
    answers: dict[Held, DocumentAnswer] = field(default_factory=dict)
    end: asyncio.Event = field(default_factory=asyncio.Event)


def _is_hash(said: str | None, found: FileHash | None) -> bool:
    return said is not None and found is not None and said == found.value


def _why(answer: DocumentAnswer, on_disk: str, copied: bool) -> str:
    if answer.outcome in IN_ITS_FILE:
        return "the answer names no hash" if answer.hash is None else on_disk
    said = f"{answer.outcome}: {answer.error}" if answer.error else answer.outcome
    return said if copied or answer.outcome == "failed" else f"{said}, and no recovery copy of it can be read back"


def _parse_document(value: object, where: str) -> DocumentAnswer:
    fields = _fields(value, where, {"path", "outcome"}, set(TEXTS))
    outcome = _text(fields, "outcome", f"{where}.outcome", 32)
    if outcome not in ANSWERS:
        raise BadAnswer(f"{where}.outcome", f"expected one of {', '.join(ANSWERS)}")
    texts = {
        name: _text(fields, name, f"{where}.{name}", longest)
        for name, longest in TEXTS.items()
        if fields.get(name) is not None
    }
    return DocumentAnswer(_text(fields, "path", f"{where}.path", 4096), outcome, **texts)


def _fields(value: object, where: str, needed: set[str], optional: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadAnswer(where, "expected an object")
    for name in sorted(needed - value.keys()):
        raise BadAnswer(f"{where}.{name}", "is missing")
    for name in sorted(map(str, value.keys() - needed - optional)):
        raise BadAnswer(f"{where}.{name}", "is not known")
    return value


def _text(fields: Mapping[str, Any], name: str, where: str, longest: int) -> str:
    value = fields[name]
    if not isinstance(value, str) or not value or len(value) > longest:
        raise BadAnswer(where, f"expected a text of 1 to {longest} characters")
    return value
