"""The reader of TCP connections, on real connections over loopback and real processes."""

from __future__ import annotations

import errno
import os
import platform
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpu_guard import sock_diag
from jupyter_gpu_guard.core.model import Instant, Unknown
from jupyter_gpu_guard.core.reasons import because
from jupyter_gpu_guard.sock_diag import Part, dump_tcp, parse_message, parse_part, whole_list
from jupyter_gpu_guard.sockets import Connection, NetworkReading, NetworkUse, SocketReader, rates

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
ME = os.getpid()
NOBODY = 65534
MB = 1_000_000
#: What a handshake may add to the count of acknowledged bytes, each end.
SLACK = 4


class Child:
    """A Python process that runs one line of code after the other as it is told."""

    def __init__(self) -> None:
        loop = "import socket, os, sys\nfor line in sys.stdin:\n exec(line)\n print('done', flush=True)"
        self.process = subprocess.Popen(
            [sys.executable, "-c", loop], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self.process.pid

    def do(self, code: str) -> str:
        """Run one line; what it printed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(code + "\n")
        self.process.stdin.flush()
        printed = []
        while (line := self.process.stdout.readline().strip()) != "done":
            assert line or self.process.poll() is None, "the child died"
            printed.append(line)
        return "\n".join(printed)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def spawn() -> Iterator[Callable[[], Child]]:
    children: list[Child] = []

    def start() -> Child:
        children.append(Child())
        children[-1].do("pass")
        return children[-1]

    yield start
    for child in children:
        child.end()


@pytest.fixture
def child(spawn: Callable[[], Child]) -> Child:
    return spawn()


class Clock:
    """A clock that moves on by ten seconds at each look."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> Instant:
        self.seconds += 10.0
        return Instant(self.seconds, BEGIN + timedelta(seconds=self.seconds))


@pytest.fixture
def reader() -> SocketReader:
    return SocketReader(clock=Clock())


class Remote:
    """A server in this process that a child has connected to as `s`."""

    def __init__(self, child: Child, host: str = "127.0.0.1", listen: str = "") -> None:
        family = socket.AF_INET6 if ":" in (listen or host) else socket.AF_INET
        with socket.socket(family) as listener:
            if listen == "::":
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.bind((listen or host, 0))
            listener.listen()
            self.port = listener.getsockname()[1]
            child.do(f"s = socket.create_connection(({host!r}, {self.port}))")
            self.connection = listener.accept()[0]
        self.child = child

    def gives(self, number: int, where: str = "s") -> None:
        """The child downloads so many bytes."""
        sender = threading.Thread(target=self.connection.sendall, args=(bytes(number),))
        sender.start()
        self.child.do(f"assert len({where}.recv({number}, socket.MSG_WAITALL)) == {number}")
        sender.join()

    def takes(self, number: int) -> None:
        """The child uploads so many bytes."""
        child = threading.Thread(target=self.child.do, args=(f"s.sendall(bytes({number}))",))
        child.start()
        assert len(self.connection.recv(number, socket.MSG_WAITALL)) == number
        child.join()

    def close(self) -> None:
        self.connection.close()


@pytest.fixture
def remote(child: Child) -> Iterator[Remote]:
    server = Remote(child)
    yield server
    server.close()


def used(before: NetworkReading, after: NetworkReading, *pids: int) -> float:
    """Bytes that a tree moved, everything being readable."""
    use = rates(before, after, {"tree": pids})["tree"]
    assert use.unread is None, use
    return use.bytes_per_second * after.taken.since(before.taken).total_seconds()


def moved(number: int) -> object:
    """That many bytes, up to what the handshake adds."""
    return pytest.approx(number, abs=SLACK)


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def connected(reading: NetworkReading, pid: int) -> list[Connection]:
    held = reading.held[pid]
    assert not isinstance(held, Unknown), held
    assert not isinstance(reading.connections, Unknown), reading.connections
    return [reading.connections[cookie] for cookie in held]


# --- what counts ----------------------------------------------------------------------------------------------------


def test_a_download_counts(reader: SocketReader, child: Child, remote: Remote) -> None:
    before = reader.read([child.pid], [])
    remote.gives(MB)
    after = reader.read([child.pid], [])
    assert used(before, after, child.pid) == moved(MB)
    assert used(after, reader.read([child.pid], []), child.pid) == 0.0


def test_a_download_from_an_excluded_process_does_not_count(
    reader: SocketReader, child: Child, remote: Remote
) -> None:
    before = reader.read([child.pid], [ME])
    remote.gives(MB)
    assert used(before, reader.read([child.pid], [ME]), child.pid) == 0.0


def test_an_upload_counts(reader: SocketReader, child: Child, remote: Remote) -> None:
    before = reader.read([child.pid], [])

    def sent() -> float:
        return used(before, reader.read([child.pid], []), child.pid)

    remote.takes(MB)
    assert eventually(lambda: sent() >= MB)  # the last acknowledgement may come later than the bytes
    assert sent() == moved(MB)


@pytest.mark.parametrize(
    ("host", "listen"),
    [("::1", ""), ("127.0.0.1", "::"), ("::ffff:127.0.0.1", "127.0.0.1")],
    ids=["IPv6", "IPv4 to a server for both", "IPv4 through an IPv6 socket"],
)
def test_ipv6(reader: SocketReader, child: Child, host: str, listen: str) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    remote = Remote(child, host, listen)
    before, hidden = reader.read([child.pid], []), reader.read([child.pid], [ME])
    remote.gives(MB)
    assert used(before, reader.read([child.pid], []), child.pid) == moved(MB)
    assert [end.excluded for end in connected(hidden, child.pid)] == [True]
    remote.close()


def test_a_connection_made_between_two_readings_counts_from_nothing(
    reader: SocketReader, child: Child
) -> None:
    before = reader.read([child.pid], [])
    remote = Remote(child)
    remote.gives(MB)
    assert used(before, reader.read([child.pid], []), child.pid) == moved(MB)
    remote.close()


def test_a_process_that_joins_the_tree_brings_none_of_its_past(
    reader: SocketReader, child: Child, remote: Remote
) -> None:
    remote.gives(MB)
    before = reader.read([], [])
    remote.gives(1000)
    assert used(before, reader.read([child.pid], []), child.pid) == moved(1000)


def test_what_closed_between_two_readings_is_lost(reader: SocketReader, child: Child, remote: Remote) -> None:
    before = reader.read([child.pid], [])
    remote.gives(MB)
    child.do("s.close()")
    after = reader.read([child.pid], [])
    assert connected(before, child.pid) != connected(after, child.pid) == []
    assert used(before, after, child.pid) == 0.0


def test_a_connection_that_two_processes_share_counts_once_in_their_tree(
    reader: SocketReader, child: Child, remote: Remote
) -> None:
    forked = int(child.do("import time; p = os.fork() or time.sleep(60); print(p)"))
    pids = (child.pid, forked)
    before = reader.read(pids, [])
    remote.gives(MB)
    after = reader.read(pids, [])
    assert [used(before, after, pid) for pid in pids] == [moved(MB), moved(MB)]
    assert used(before, after, *pids) == moved(MB)
    child.do("os.kill(p, 9)")


# --- what doesn't ---------------------------------------------------------------------------------------------------


def test_what_goes_to_and_from_an_excluded_process_does_not_count(
    reader: SocketReader, child: Child, spawn: Callable[[], Child]
) -> None:
    """Here the child listens, and only what the excluded process sends is left out."""
    other = spawn()
    port = child.do("l = socket.create_server(('127.0.0.1', 0)); print(l.getsockname()[1])")
    pids = (child.pid, other.pid)
    before = reader.read(pids, [ME])
    with socket.create_connection(("127.0.0.1", int(port))) as server:
        child.do("a = l.accept()[0]")
        server.sendall(bytes(1000))
        child.do("a.recv(1000, socket.MSG_WAITALL)")
        assert used(before, reader.read(pids, [ME]), child.pid) == 0.0
        other.do(f"s = socket.create_connection(('127.0.0.1', {port})); s.sendall(bytes(3000))")
        child.do("b = l.accept()[0]; b.recv(3000, socket.MSG_WAITALL)")
        after = reader.read(pids, [ME])
    assert used(before, after, child.pid) == moved(3000)


def test_messages_between_a_kernel_and_the_server_do_not_count(reader: SocketReader, child: Child) -> None:
    """As Jupyter's own messages travel: by ZMQ, and the kernel listens."""
    child.do("import zmq; z = zmq.Context().socket(zmq.ROUTER)")
    port = child.do("print(z.bind_to_random_port('tcp://127.0.0.1'))")
    with zmq.Context() as context, context.socket(zmq.DEALER) as server:
        server.connect(f"tcp://127.0.0.1:{port}")
        server.send(b"first")
        child.do("peer, _ = z.recv_multipart()")
        before, bare = reader.read([child.pid], [ME]), reader.read([child.pid], [])
        server.send(bytes(MB))
        child.do(f"m = z.recv_multipart(); assert len(m[1]) == {MB}; z.send_multipart(m)")
        assert len(server.recv()) == MB
        assert used(before, reader.read([child.pid], [ME]), child.pid) == 0.0
        # The same seen without the exception, so that the test would notice a connection that isn't there.
        assert used(bare, reader.read([child.pid], []), child.pid) > MB
        server.close(linger=0)


def test_the_last_words_of_an_excluded_process_do_not_count(
    reader: SocketReader, child: Child, remote: Remote
) -> None:
    """It closes its end, and the other still has what it sent."""
    before = reader.read([child.pid], [ME])
    remote.connection.sendall(bytes(100_000))
    remote.close()
    assert child.do("print(len(s.recv(100_000, socket.MSG_WAITALL)))") == "100000"
    after = reader.read([child.pid], [ME])
    assert [end.excluded for end in connected(after, child.pid)] == [False]
    assert used(before, after, child.pid) == 0.0


def test_what_goes_on_within_a_tree_does_not_count(
    reader: SocketReader, child: Child, spawn: Callable[[], Child]
) -> None:
    other = spawn()
    pids = (child.pid, other.pid)
    port = child.do("l = socket.create_server(('127.0.0.1', 0)); print(l.getsockname()[1])")
    before = reader.read(pids, [])
    other.do(f"s = socket.create_connection(('127.0.0.1', {port})); s.sendall(bytes(1000))")
    child.do("a = l.accept()[0]; a.recv(1000, socket.MSG_WAITALL)")
    after = reader.read(pids, [])
    assert used(before, after, *pids) == 0.0
    assert used(before, after, child.pid) == moved(1000)  # two kernels that talk with each other


# --- what can't be read ---------------------------------------------------------------------------------------------


def test_a_process_that_ended_holds_nothing(reader: SocketReader, spawn: Callable[[], Child]) -> None:
    unreaped, gone = spawn(), spawn()
    gone.end()
    unreaped.process.kill()
    os.waitid(os.P_PID, unreaped.pid, os.WEXITED | os.WNOWAIT)
    pids = [unreaped.pid, gone.pid]
    assert reader.read(pids, []).held == {pid: frozenset() for pid in pids}


def test_a_process_that_may_not_be_looked_into_is_unknown(child: Child) -> None:
    if os.geteuid() != 0:
        pytest.skip("takes root, who can become somebody else")
    child.do("from jupyter_gpu_guard.sockets import SocketReader, rates")
    child.do(
        f"os.setuid({NOBODY}); r = SocketReader(); a = r.read([{ME}, os.getpid()], []); b = r.read([{ME}], [])"
    )
    hidden = because("proc_unreadable", pid=ME)
    assert child.do(f"print(a.held[{ME}].reason)") == str(hidden)
    assert child.do(f"print(rates(a, b, {{0: [{ME}]}})[0].unread)") == str(hidden)
    # A server that can't be looked into leaves open what is a message and what is work.
    assert child.do(f"print(r.read([], [{ME}]).connections.reason)") == str(hidden)


def test_a_process_in_another_network_namespace_is_unknown(reader: SocketReader) -> None:
    process = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo here; exec sleep 60"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        if process.stdout.readline() != b"here\n":
            pytest.skip("may not make a network namespace here")
        reading = reader.read([process.pid, ME], [])
        assert reading.held[process.pid] == Unknown(because("network_namespace", pid=process.pid))
        assert not isinstance(reading.held[ME], Unknown)
    finally:
        process.kill()
        process.communicate()


def test_a_pid_that_was_not_asked_for_is_unknown(reader: SocketReader) -> None:
    before, after = reader.read([], []), reader.read([], [])
    assert rates(before, after, {0: [ME]})[0].unread == because("proc_unreadable", pid=ME)


def test_where_a_part_is_unknown_the_rest_is_what_it_moved_at_least() -> None:
    hidden = Unknown(because("network_namespace", pid=2))
    before = reading(0.0, {7: Connection(10, None, False)}, {})
    after = reading(2.0, {7: Connection(30, None, False)}, {1: frozenset({7}), 2: hidden})
    assert rates(before, after, {"k": (2, 1)}) == {"k": NetworkUse(10.0, hidden.reason)}


REFUSALS = [
    OSError(errno.EPROTONOSUPPORT, "Protocol not supported"),
    OSError(errno.EPERM, "Operation not permitted"),
    OSError(errno.ENOENT, "No such file or directory"),
    TimeoutError("timed out"),
    ValueError("half a header"),
]


@pytest.mark.parametrize("error", REFUSALS, ids=str)
def test_where_the_system_refuses_all_is_unknown(child: Child, error: Exception) -> None:
    def refuses(seconds: float) -> list[bytes]:
        raise error

    refused = SocketReader(clock=Clock(), dump=refuses).read([child.pid], [ME])
    told = SocketReader(clock=Clock()).read([child.pid], [ME])
    reason = because("network_unreadable", error=str(error))
    assert refused.connections == Unknown(reason)
    for before, after in ((refused, told), (told, refused), (refused, refused)):
        assert rates(before, after, {0: [child.pid]}) == {0: NetworkUse(0.0, reason)}


def test_junk_instead_of_connections_is_unknown() -> None:
    found = SocketReader(dump=lambda seconds: [b"junk"]).read([ME], [])
    assert found.connections == Unknown(because("network_unreadable", error="half a message"))


#: By machine, the numbers of its architecture's socket call.
SOCKET_CALL = {"x86_64": 41, "aarch64": 198}
#: A filter of system calls that refuses sockets of AF_NETLINK, as container runtimes do.
FILTER = """
import ctypes, struct
call, refuse, allow = {call}, 0x00050000 | {error}, 0x7fff0000
steps = [(0x20, 0, 0, 0), (0x15, 0, 3, call), (0x20, 0, 0, 16), (0x15, 0, 1, 16), (6, 0, 0, refuse), (6, 0, 0, allow)]
code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
program = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()
"""


@pytest.mark.parametrize("error", [errno.EPERM, errno.EAFNOSUPPORT], ids=errno.errorcode.get)
def test_a_container_that_forbids_netlink(child: Child, error: int) -> None:
    call = SOCKET_CALL.get(platform.machine())
    if call is None:
        pytest.skip(f"no filter for {platform.machine()}")
    child.do("from jupyter_gpu_guard.sockets import SocketReader")
    child.do(f"exec({FILTER.format(call=call, error=error)!r})")
    expected = because("network_unreadable", error=str(OSError(error, os.strerror(error))))
    assert child.do("print(SocketReader().read([os.getpid()], []).connections.reason)") == str(expected)


def test_a_kernel_that_does_not_answer_is_left_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sock_diag, "_NLM_F_REQUEST", 0)  # it answers only what is marked as a request
    began = time.monotonic()
    found = SocketReader(seconds=0.2).read([ME], [])
    assert found.connections == Unknown(because("network_unreadable", error="timed out"))
    assert 0.2 <= time.monotonic() - began < 10


class Endless:
    """A link whose other end answers a question that nobody asked, again and again."""

    def __init__(self, *kind: object) -> None:
        pass

    def __enter__(self) -> Endless:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def settimeout(self, seconds: float) -> None:
        assert seconds > 0

    def sendto(self, data: bytes, address: tuple[int, int]) -> None:
        pass

    def recvmsg(self, size: int) -> tuple[bytes, list[object], int, tuple[int, int]]:
        return datagram((FOUND, b"abcd")), [], 0, (0, 0)


def test_an_answer_without_an_end_is_left_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", Endless)
    with pytest.raises(TimeoutError):
        dump_tcp(0.2)


def test_no_time_left_is_no_answer() -> None:
    with pytest.raises(TimeoutError):
        dump_tcp(0.0)


def test_an_answer_in_many_parts_is_read_whole(reader: SocketReader) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=200) as listener:
        ends = []
        for _ in range(200):
            ends.append(socket.create_connection(listener.getsockname()))
            ends.append(listener.accept()[0])
        assert len(connected(reader.read([ME], []), ME)) >= len(ends)
        for end in ends:
            end.close()


# --- what the kernel answers ----------------------------------------------------------------------------------------


def message(near: bytes, far: bytes, info: bytes | None, *, inode: int = 9, cookie: int = 5) -> bytes:
    """As inet_diag_msg; `near` and `far` are addresses with a port."""
    family = socket.AF_INET if len(near) == 6 else socket.AF_INET6
    ends = near[-2:] + far[-2:] + near[:-2].ljust(16, b"\0") + far[:-2].ljust(16, b"\0")
    fixed = bytes([family, 1, 0, 0]) + ends + struct.pack("=IQIIIII", 0, cookie, 0, 0, 0, 1000, inode)
    assert len(fixed) == 72
    tos = attribute(5, b"\0")
    return fixed + tos + (b"" if info is None else attribute(2, info)) + tos


def attribute(kind: int, body: bytes) -> bytes:
    return (struct.pack("=HH", 4 + len(body), kind) + body).ljust((4 + len(body) + 3) & ~3, b"\0")


def tcp_info(acknowledged: int, received: int, length: int) -> bytes:
    return (bytes(120) + struct.pack("=QQ", acknowledged, received) + bytes(96))[:length]


V4 = bytes([127, 0, 0, 1]) + b"\x1f\x90"
V4_IN_V6 = bytes(10) + b"\xff\xff" + V4
V6 = bytes(15) + b"\x01\x1f\x91"


@pytest.mark.parametrize("length", [136, 192, 232])
def test_the_bytes_of_a_connection(length: int) -> None:
    found = parse_message(message(V4, V4, tcp_info(2**40, 3, length)))
    assert found == (5, 9, V4, V4, 2**40 + 3)


@pytest.mark.parametrize("info", [None, b"", tcp_info(1, 1, 104), tcp_info(1, 1, 135)])
def test_an_old_kernel_that_counts_no_bytes_is_unknown(info: bytes | None) -> None:
    silent = because("network_unreadable", error="this Linux doesn't count the bytes of a connection")
    found = parse_message(message(V4, V4, info))
    assert found.moved == Unknown(silent)
    with socket.socket() as held:
        told = message(V4, V6[-6:], info, inode=os.fstat(held.fileno()).st_ino)
        reader = SocketReader(clock=Clock(), dump=lambda seconds: [told])
        use = rates(reader.read([ME], []), reader.read([ME], []), {0: [ME]})[0]
    assert use == NetworkUse(0.0, silent)


def test_an_ipv4_address_is_the_same_in_ipv6() -> None:
    found = parse_message(message(V4_IN_V6, V4_IN_V6, None))
    assert (found.near, found.far) == (V4, V4)
    assert parse_message(message(V6, V6, None)).near == V6


@pytest.mark.parametrize("length", [0, 3, 1000])
def test_an_attribute_of_impossible_length(length: int) -> None:
    with pytest.raises(ValueError, match="impossible"):
        parse_message(message(V4, V4, None) + struct.pack("=HH", length, 2))


def datagram(*parts: tuple[int, bytes], flags: int = 2, sequence: int = 4) -> bytes:
    written = b""
    for kind, body in parts:
        length = 16 + len(body)
        written += struct.pack("=IHHII", length, kind, flags, sequence, 77) + body.ljust(
            (len(body) + 3) & ~3, b"\0"
        )
    return written


DONE, ERROR, FOUND = 3, 2, 20
FINE = struct.pack("=i", 0)


def test_the_parts_of_an_answer() -> None:
    assert parse_part(datagram((FOUND, b"abcde"), (FOUND, b"fg")), 4) == Part([b"abcde", b"fg"], False, False)
    assert parse_part(datagram((FOUND, b"abcd"), (DONE, FINE)), 4) == Part([b"abcd"], True, False)
    assert parse_part(datagram((FOUND, b"abcd"), flags=0x12), 4) == Part([b"abcd"], False, True)
    assert parse_part(datagram((DONE, FINE), flags=0x12), 4) == Part([], True, True)
    assert parse_part(datagram((FOUND, b"another's"), (DONE, FINE), sequence=3), 4) == Part([], False, False)
    assert parse_part(datagram((9, b"of no kind that we know")), 4) == Part([], False, False)


@pytest.mark.parametrize("kind", [DONE, ERROR])
def test_an_error_in_an_answer(kind: int) -> None:
    with pytest.raises(OSError, match="No such file") as raised:
        parse_part(datagram((FOUND, b"abcd"), (kind, struct.pack("=i", -errno.ENOENT))), 4)
    assert raised.value.errno == errno.ENOENT


@pytest.mark.parametrize(
    "data", [b"half", datagram((FOUND, b"abcd"))[:-1], struct.pack("=IHHII", 15, 20, 2, 4, 0)]
)
def test_an_answer_that_makes_no_sense(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"half|impossible"):
        parse_part(data, 4)


def test_an_error_that_no_system_has() -> None:
    with pytest.raises(ValueError, match="impossible error"):
        parse_part(datagram((ERROR, struct.pack("=i", -(2**31)))), 4)


BODIES = st.binary(max_size=200)


@given(
    st.one_of(
        BODIES, st.builds(lambda kind, body: datagram((kind, body)), st.sampled_from([2, 3, 20]), BODIES)
    )
)
def test_no_answer_raises_anything_unexpected(data: bytes) -> None:
    try:
        part = parse_part(data, 4)
        found = [parse_message(body) for body in part.messages]
    except (OSError, ValueError):
        return
    assert all(isinstance(one.moved, Unknown) or one.moved >= 0 for one in found)


def test_a_list_that_changes_while_it_is_read_is_asked_for_again_but_not_for_ever() -> None:
    asked: list[int] = []

    def answers(steady: int) -> Callable[[int], list[Part]]:
        def ask(attempt: int) -> list[Part]:
            asked.append(attempt)
            return [Part([b"%d" % attempt], False, False), Part([], True, attempt < steady)]

        return ask

    assert whole_list(answers(0)) == [b"0"]
    assert whole_list(answers(2)) == [b"2"]
    assert asked == [0, 0, 1, 2]
    with pytest.raises(OSError, match="changed each time"):
        whole_list(answers(100))
    assert len(asked) < 10


# --- rates ----------------------------------------------------------------------------------------------------------


def reading(
    seconds: float,
    connections: dict[int, Connection] | Unknown,
    held: dict[int, frozenset[int] | Unknown],
) -> NetworkReading:
    return NetworkReading(Instant(seconds, BEGIN + timedelta(seconds=seconds)), connections, held)


COOKIES = st.integers(0, 5)
UNKNOWN = st.sampled_from([because("network_unreadable", error="x"), because("proc_unreadable", pid=3)]).map(
    Unknown
)
CONNECTIONS = st.dictionaries(
    COOKIES,
    st.builds(
        Connection, st.one_of(st.integers(0, 2**64), UNKNOWN), st.one_of(st.none(), COOKIES), st.booleans()
    ),
)


@st.composite
def readings(draw: st.DrawFn) -> NetworkReading:
    seconds = draw(st.floats(0, 1e6))
    connections = draw(CONNECTIONS)
    held = (
        st.sets(st.sampled_from(sorted(connections))).map(frozenset) if connections else st.just(frozenset())
    )
    return reading(seconds, connections, draw(st.dictionaries(st.integers(1, 4), st.one_of(held, UNKNOWN))))


PIDS = st.lists(st.integers(1, 4), unique=True)


@given(readings(), readings(), PIDS, st.randoms())
def test_a_rate_is_never_negative_and_knows_no_order(
    one: NetworkReading, other: NetworkReading, pids: list[int], random: object
) -> None:
    shuffled = pids.copy()
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for before, after in ((one, other), (other, one)):
        found = rates(before, after, {"as drawn": pids, "shuffled": shuffled, "nobody": []})
        assert found["as drawn"] == found["shuffled"]
        assert found["as drawn"].bytes_per_second >= 0
        assert found["nobody"].bytes_per_second == 0


@given(readings(), readings(), PIDS)
def test_a_tree_moves_no_more_than_its_processes(
    one: NetworkReading, other: NetworkReading, pids: list[int]
) -> None:
    tree = rates(one, other, {0: pids})[0]
    each = rates(one, other, {pid: [pid] for pid in pids})
    total = sum(use.bytes_per_second for use in each.values())
    assert tree.bytes_per_second <= total * (1 + 1e-9)


def test_between_two_readings_of_the_same_moment_nothing_is_measured() -> None:
    one = reading(5.0, {7: Connection(10, None, False)}, {1: frozenset({7})})
    assert rates(one, one, {0: [1]}) == {0: NetworkUse(0.0, because("not_measured_yet"))}


def test_a_counter_that_fell_counts_as_nothing() -> None:
    before = reading(0.0, {7: Connection(10, None, False)}, {1: frozenset({7})})
    after = reading(1.0, {7: Connection(9, None, False)}, {1: frozenset({7})})
    assert rates(before, after, {0: [1]}) == {0: NetworkUse(0.0)}
