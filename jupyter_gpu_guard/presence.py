"""Which people are at which notebook, as their browsers report it.

Pure memory: nothing is asked of a browser and nothing read from disk. A page reports after a change or an input, never
from a timer, so a page that says nothing for hours may still be there: only its own good-bye takes it away, or newer
pages where there are too many.

An input is presence at the kernel of the notebook that has the focus; an edit (a document turns dirty) at its kernel.
Opening a page is neither, as a browser restores its tabs by itself; nor is a document that turns clean, since Jupyter
saves by itself too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

from .core.model import Instant, OpenDocument, Presence

MAX_CLIENTS = 200
MAX_DOCUMENTS = 500
MAX_KERNELS = 2000
MAX_ID_LENGTH = 200
MAX_PATH_LENGTH = 4096
MAX_AGE_SECONDS = 10 * 365 * 86400
#: Pages report at most once a minute, so the very same report within this time was only sent twice.
REPEATED_WITHIN = timedelta(seconds=30)
#: The time that a report travels blurs the moment of an input: the same one comes out a little later each time.
BLUR = timedelta(seconds=2)


class BadReport(ValueError):
    """A report that says what cannot be. `key`: where, such as `documents[2].path`; `error`: what is right."""

    def __init__(self, key: str, error: str) -> None:
        super().__init__(f"{key}: {error}")
        self.key = key
        self.error = error


@dataclass(frozen=True, slots=True)
class _Client:
    documents: tuple[OpenDocument, ...]
    focused: str | None
    age: float | None
    reported: Instant
    visible: bool = True

    def content(self) -> tuple[object, ...]:
        open_now = frozenset((d.path, d.kernel_id, d.dirty) for d in self.documents)
        return open_now, self.focused, self.age

    def kernels(self) -> frozenset[str]:
        own = frozenset(d.kernel_id for d in self.documents)
        return own if self.focused is None else own | {self.focused}


class People:
    """The pages that have reported, and when somebody was last at each kernel."""

    def __init__(self) -> None:
        self._clients: dict[str, _Client] = {}  # the longest silent first
        self._inputs: dict[str, Instant] = {}

    def report(
        self,
        client_id: object,
        documents: object,
        focused_kernel_id: object,
        input_age_seconds: object,
        now: Instant,
        visible: object = True,
    ) -> frozenset[str]:
        """Take in what a page says of itself, as it came from JSON; it replaces what the page said before.

        Returns the kernels at which something may have changed. Raises BadReport (a ValueError) and changes nothing
        where a value has a wrong type, is out of bounds, or a key is unknown.
        """
        name = _identifier(client_id, "client_id")
        client = _Client(
            documents=_documents(documents, name, now),
            focused=None
            if focused_kernel_id is None
            else _identifier(focused_kernel_id, "focused_kernel_id"),
            age=_age(input_age_seconds),
            reported=now,
            visible=_flag(visible, "visible"),
        )
        before = self._clients.pop(name, None)
        self._clients[name] = client
        if before is None and len(self._clients) > MAX_CLIENTS:
            del self._clients[next(iter(self._clients))]
        if before is None or not _repeats(client, before):
            self._note_input(client)
        if before is not None:
            self._note_edits(client, before)
        return client.kernels() if before is None else client.kernels() | before.kernels()

    def gone(self, client_id: str) -> frozenset[str]:
        """The page says good-bye. Returns the kernels that it had open; none for an unknown page."""
        client = self._clients.pop(client_id, None)
        return frozenset() if client is None else client.kernels()

    def for_kernels(self, now: Instant) -> Mapping[str, Presence]:
        """People at each kernel, by kernel id. What was reported after `now` is shown as if at `now`, so that nobody
        is there in the future of an observation."""
        documents: dict[str, list[OpenDocument]] = {}
        for client in self._clients.values():
            for document in client.documents:
                documents.setdefault(document.kernel_id, []).append(document)
        found = {}
        for kernel_id in documents.keys() | self._inputs.keys():
            last = self._inputs.get(kernel_id)
            found[kernel_id] = Presence(
                last_input=None if last is None else min(last, now),
                open_documents=tuple(documents.get(kernel_id, ())),
            )
        return found

    def is_hidden(self, client_id: str) -> bool:
        """Whether the page has said that nobody can see it."""
        client = self._clients.get(client_id)
        return client is not None and not client.visible

    def clients_of(self, kernel_id: str) -> frozenset[str]:
        """The pages that have a document of this kernel open."""
        return frozenset(name for name, client in self._clients.items() if kernel_id in client.kernels())

    def _note_input(self, client: _Client) -> None:
        if client.focused is not None and client.age is not None:
            self._present(client.focused, client.reported.plus(timedelta(seconds=-client.age)))

    def _note_edits(self, client: _Client, before: _Client) -> None:
        clean = {(d.path, d.kernel_id) for d in before.documents if not d.dirty}
        for document in client.documents:
            if document.dirty and (document.path, document.kernel_id) in clean:
                self._present(document.kernel_id, client.reported)

    def _present(self, kernel_id: str, at: Instant) -> None:
        last = self._inputs.get(kernel_id)
        if last is not None and at.since(last) <= BLUR:
            return
        self._inputs.pop(kernel_id, None)
        self._inputs[kernel_id] = at
        if len(self._inputs) > MAX_KERNELS:
            del self._inputs[next(iter(self._inputs))]


def _repeats(client: _Client, before: _Client) -> bool:
    return client.content() == before.content() and client.reported.since(before.reported) < REPEATED_WITHIN


def _documents(value: object, client_id: str, now: Instant) -> tuple[OpenDocument, ...]:
    if not isinstance(value, (list, tuple)):
        raise BadReport("documents", "a list is needed")
    if len(value) > MAX_DOCUMENTS:
        raise BadReport("documents", f"at most {MAX_DOCUMENTS} are taken")
    found: dict[tuple[str, str], OpenDocument] = {}
    for index, item in enumerate(value):
        document = _document(item, f"documents[{index}]", client_id, now)
        same = found.get((document.path, document.kernel_id))  # shown twice in one window
        dirty = document.dirty or (same is not None and same.dirty)
        found[document.path, document.kernel_id] = replace(document, dirty=dirty)
    return tuple(found.values())


def _document(value: object, key: str, client_id: str, now: Instant) -> OpenDocument:
    if not isinstance(value, Mapping):
        raise BadReport(key, "an object is needed")
    for name in ("path", "kernel_id", "dirty"):
        if name not in value:
            raise BadReport(f"{key}.{name}", "it is missing")
    for name in value:
        if name not in ("path", "kernel_id", "dirty"):
            raise BadReport(f"{key}.{name}", "there is no such key")
    if not isinstance(value["dirty"], bool):
        raise BadReport(f"{key}.dirty", "true or false is needed")
    return OpenDocument(
        client_id=client_id,
        path=_text(value["path"], f"{key}.path", MAX_PATH_LENGTH),
        kernel_id=_identifier(value["kernel_id"], f"{key}.kernel_id"),
        dirty=value["dirty"],
        reported=now,
    )


def _identifier(value: object, key: str) -> str:
    text = _text(value, key, MAX_ID_LENGTH)
    if not text.isprintable():
        raise BadReport(key, "printable characters are needed")
    return text


def _text(value: object, key: str, longest: int) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= longest:
        raise BadReport(key, f"a text of 1 to {longest} characters is needed")
    if any(
        c == "\0" or "\ud800" <= c <= "\udfff" for c in value
    ):  # neither a file nor a database takes these
        raise BadReport(key, "it holds a character that no path can hold")
    return value


def _flag(value: object, key: str) -> bool:
    if not isinstance(value, bool):
        raise BadReport(key, "expected true or false")
    return value


def _age(value: object) -> float | None:
    if value is None:
        return None
    wrong = isinstance(value, bool) or not isinstance(value, (int, float))
    if wrong or not 0 <= value <= MAX_AGE_SECONDS:  # type: ignore[operator]  # nan is not between them either
        raise BadReport("input_age_seconds", f"seconds from 0 to {MAX_AGE_SECONDS} are needed")
    return float(value)  # type: ignore[arg-type]
