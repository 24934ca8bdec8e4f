"""The Jupyter servers of this user, and asking the guard in one of them.

For the magic in a kernel and for the command line, so it needs the standard library alone. Covers the files in which
servers say where they listen, the token, one deadline for a whole answer, and what to say of an answer that is none.
Doesn't cover servers that listen on a Unix socket, nor what an answer means.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import time
import urllib.error
import urllib.request
from glob import glob
from typing import Any, Dict, Iterable, NamedTuple
from urllib.parse import urlsplit

API = "gpu-guard/api/v1/"
#: Seconds for one answer, from the connection to its last byte.
PATIENCE = 5.0
#: Longer answers are not from the guard.
LONGEST_ANSWER = 16 << 20

#: What to say of an answer that makes no sense.
NOT_OURS = "it answered something that is not the guard's"
REFUSED = "it refused the token"

_LOOPBACK = {"localhost", "127.0.0.1", "::1", "0.0.0.0", "::"}

Json = Dict[str, Any]


class Server(NamedTuple):
    """Where a server listens. `own`: found on this machine, by a file that only this user can write."""

    url: str
    token: str
    pid: int | None = None
    root_dir: str | None = None
    own: bool = False


class NoAnswer(Exception):
    """The server gave no answer that can be used; `str()` is one sentence that says why.

    `code` is the HTTP status, if there was one; `reason` the guard's own reason, where the guard itself refused.
    """

    def __init__(self, why: str, code: int | None = None, reason: Json | None = None) -> None:
        super().__init__(why)
        self.code = code
        self.reason = reason


def server_of(info: Json) -> Server:
    """A server as it describes itself in its file. Raises KeyError, TypeError or ValueError for a broken description.

    Where a hub stands before the server, the file has no token, and the hub's own opens the server to its user.
    """
    token = str(info.get("token") or os.environ.get("JUPYTERHUB_API_TOKEN", ""))
    url, pid = str(info["url"]), int(info["pid"])
    return Server(url if url.endswith("/") else f"{url}/", token, pid, info.get("root_dir"), own=True)


def servers_in(folders: Iterable[str], first_pid: int | None = None) -> list[Server]:
    """The servers that live and have left their file in one of `folders`; the one with `first_pid` comes first."""
    found: dict[int, Server] = {}
    for folder in folders:
        for path in sorted(glob(os.path.join(folder, "jpserver-*.json"))):
            server = _read(path)
            if server is not None and server.pid is not None and _lives(server.pid):
                found.setdefault(server.pid, server)
    return sorted(found.values(), key=lambda server: server.pid != first_pid)


def ask(server: Server, path: str, method: str = "GET", body: Json | None = None) -> Json:
    """What the guard of `server` answers to `path` (below its API); a DELETE may be answered by nothing. Raises
    NoAnswer."""
    content = fetch(server, API + path, method, body)
    return decoded(content) if content or method != "DELETE" else {}


def fetch(server: Server, path: str, method: str = "GET", body: Json | None = None) -> bytes:
    """The answer to a request at `path`, relative to the server's base URL. Raises NoAnswer."""
    if not server.url.startswith(("http://", "https://")):
        raise NoAnswer(f"{server.url} is no web address: a server on a Unix socket cannot be asked")
    data = None if body is None else json.dumps(body).encode()
    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    if server.token:
        headers["Authorization"] = f"token {server.token}"
    due = time.monotonic() + PATIENCE
    try:
        _ = urlsplit(server.url).port  # raises ValueError where http.client has an error of its own
        request = urllib.request.Request(server.url + path, data, headers, method=method)
        with _opener(server).open(request, timeout=PATIENCE) as response:
            return _all_of(response, due)
    except urllib.error.HTTPError as error:
        with error:
            raise _refusal(error, due) from None
    except (OSError, ValueError, EOFError) as error:
        raise NoAnswer(_failure(error)) from None
    except Exception as error:  # http.client has errors of its own for what is no HTTP
        raise NoAnswer(f"it does not speak HTTP ({type(error).__name__})") from None


def decoded(content: bytes) -> Json:
    """The JSON object that an answer is. Raises NoAnswer."""
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise NoAnswer(NOT_OURS)
    return answer


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """urllib would send the token along to wherever a redirect points."""

    def redirect_request(self, *arguments: Any, **named: Any) -> None:
        return None


def _opener(server: Server) -> urllib.request.OpenerDirector:
    handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
    if server.own or _is_loopback(server.url):
        # What is on this machine is not behind a proxy, and its certificate is made out to another name than the one
        # under which it is reached here.
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        handlers += [urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)]
    return urllib.request.build_opener(*handlers)


def _is_loopback(url: str) -> bool:
    return (urlsplit(url).hostname or "") in _LOOPBACK


def _all_of(response: Any, due: float) -> bytes:
    """The whole body. The timeout of a socket is for each of its reads: one that drips would never meet it."""
    content = bytearray()
    while True:
        part = response.read1(1 << 16)
        if not part:
            return bytes(content)
        content += part
        if time.monotonic() > due:
            raise socket.timeout("timed out")
        if len(content) > LONGEST_ANSWER:
            raise ValueError("the answer is too long")


def _refusal(error: urllib.error.HTTPError, due: float) -> NoAnswer:
    """What an HTTP error means; the guard's own come with a message and a reason."""
    try:
        said = json.loads(_all_of(error, due))
        message, reason = str(said["message"]), {"params": {}, **said["reason"]}
    except Exception:
        message, reason = "", None
    if reason and reason.get("code") != "not_allowed":
        return NoAnswer(message, error.code, reason)
    if error.code in (401, 403):
        return NoAnswer(REFUSED, error.code)
    if error.code == 404:
        return NoAnswer("no guard runs in it", error.code)
    if error.code in (301, 302, 303, 307, 308):
        place = error.headers.get("Location", "")
        return NoAnswer(f"it sends us to {urlsplit(place)._replace(query='').geturl()}", error.code)
    return NoAnswer(f"it answered with the error {error.code}", error.code)


def _failure(error: Exception) -> str:
    cause = getattr(error, "reason", error)
    if isinstance(cause, socket.timeout):
        return f"it did not answer within {PATIENCE:.0f} s"
    if isinstance(cause, OSError) and cause.strerror:
        return f"it cannot be reached ({cause.strerror})"
    return f"it cannot be reached ({cause})"


def _read(path: str) -> Server | None:
    """None for a file that is being written, is broken or is another user's."""
    try:
        with open(path, encoding="utf-8") as file:
            if os.fstat(file.fileno()).st_uid != os.getuid():
                return None
            return server_of(json.load(file))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return False  # another user's process has the number now
    return pid > 0
