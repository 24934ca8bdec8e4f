"""All TCP connections of our network namespace, as Linux tells them through sock_diag (a netlink socket).

Doesn't cover who holds which connection (sockets). A dump runs in the kernel while it is asked for and has a deadline.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from .core.model import ByteReading, Unknown
from .core.reasons import because

#: linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST, _NLM_F_DUMP, _NLM_F_DUMP_INTR = 0x1, 0x300, 0x10
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_INET_DIAG_INFO = 2

#: length, type, flags, sequence, port
_HEADER = struct.Struct("=IHHII")
#: family, protocol, what to tell beside the message itself, states; then the id of a socket, which a dump leaves open
_REQUEST = struct.Struct("=BBBxI48x")
#: family, ports, addresses, cookie, inode of inet_diag_msg
_MESSAGE = struct.Struct("=B3x2s2s16s16s4xQ16xI")
_ATTRIBUTE = struct.Struct("=HH")
_ERROR = struct.Struct("=i")
#: tcpi_bytes_acked and tcpi_bytes_received of tcp_info; kernels before 4.2 end before them
_BYTES = struct.Struct("=120xQQ")

#: Established, or closing with a process that still holds it. Others have moved nothing, or belong to nobody.
_STATES = sum(1 << state for state in (1, 4, 5, 8, 9, 11))

_MAPPED = bytes(10) + b"\xff\xff"  # how IPv6 writes an IPv4 address

#: The kernel fills at most 32 KiB at a time.
_BUFFER = 65536
_LAST_ERRNO = 4095
_TRIES = 3


# --- what the kernel answers ----------------------------------------------------------------------------------------


class Part(NamedTuple):
    """One datagram of an answer."""

    messages: list[bytes]
    done: bool
    interrupted: bool  # the list changed while it was written


def parse_part(data: bytes, sequence: int) -> Part:
    """The messages in one datagram. Raises OSError where it says an error, ValueError where it makes no sense."""
    messages: list[bytes] = []
    interrupted, at = False, 0
    while at < len(data):
        if len(data) - at < _HEADER.size:
            raise ValueError("half a header")
        length, kind, flags, answers, _ = _HEADER.unpack_from(data, at)
        if not _HEADER.size <= length <= len(data) - at:
            raise ValueError("a message of impossible length")
        body = data[at + _HEADER.size : at + length]
        at += _aligned(length)
        if answers != sequence:
            continue
        interrupted |= bool(flags & _NLM_F_DUMP_INTR)
        if kind in (_NLMSG_ERROR, _NLMSG_DONE):
            code = _ERROR.unpack_from(body)[0] if len(body) >= _ERROR.size else 0
            if code < -_LAST_ERRNO:
                raise ValueError("an impossible error")
            if code < 0:
                raise OSError(-code, os.strerror(-code))
            return Part(messages, True, interrupted)
        if kind == _SOCK_DIAG_BY_FAMILY:
            messages.append(body)
    return Part(messages, False, interrupted)


class Diagnosed(NamedTuple):
    """One connection as the kernel tells of it. Each end is address and port."""

    cookie: int
    inode: int  # 0: no process holds it any more
    near: bytes
    far: bytes
    moved: ByteReading


def parse_message(message: bytes) -> Diagnosed:
    """One inet_diag_msg with its attributes. Raises ValueError where it is too short to be one."""
    if len(message) < _MESSAGE.size:
        raise ValueError("half a message")
    family, near_port, far_port, near, far, cookie, inode = _MESSAGE.unpack_from(message)
    near, far = _address(family, near) + near_port, _address(family, far) + far_port
    return Diagnosed(cookie, inode, near, far, _bytes_moved(_attribute(message, _INET_DIAG_INFO)))


def _address(family: int, address: bytes) -> bytes:
    """The same for both ends of a connection, also where one of them is an IPv6 socket that speaks IPv4."""
    if family == socket.AF_INET:
        return address[:4]
    return address[12:] if address.startswith(_MAPPED) else address


def _attribute(message: bytes, wanted: int) -> bytes:
    at = _MESSAGE.size
    while at + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, at)
        if not _ATTRIBUTE.size <= length <= len(message) - at:
            raise ValueError("an attribute of impossible length")
        if kind == wanted:
            return message[at + _ATTRIBUTE.size : at + length]
        at += _aligned(length)
    return b""


def _bytes_moved(tcp_info: bytes) -> ByteReading:
    """Acknowledged rather than sent: what is sent again and again to a dead peer is no work."""
    if len(tcp_info) < _BYTES.size:
        return unreadable("this Linux doesn't count the bytes of a connection")
    acknowledged, received = _BYTES.unpack_from(tcp_info)
    return int(acknowledged) + int(received)


def _aligned(length: int) -> int:
    return (length + 3) & ~3


def unreadable(error: object) -> Unknown:
    """That the system doesn't tell, and what it said."""
    return Unknown(because("network_unreadable", error=str(error)))


# --- asking it ------------------------------------------------------------------------------------------------------


def dump_tcp(seconds: float) -> list[bytes]:
    """All TCP connections of our network namespace, over IPv4 and IPv6. Takes `seconds` at most.

    Raises OSError where the system refuses or is late, ValueError where it answers nonsense.
    """
    if not hasattr(socket, "AF_NETLINK"):
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
    due = time.monotonic() + seconds
    kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
    with socket.socket(socket.AF_NETLINK, kind, _NETLINK_SOCK_DIAG) as link:
        return [
            message
            for family in (socket.AF_INET, socket.AF_INET6)
            for message in whole_list(partial(_parts, link, family, due))
        ]


def whole_list(ask: Callable[[int], Iterable[Part]]) -> list[bytes]:
    """All messages of an answer during which the list stood still. `ask`: the parts of the answer to its n-th asking.

    Raises OSError if it changed each time.
    """
    for attempt in range(_TRIES):
        parts = list(ask(attempt))
        if not any(part.interrupted for part in parts):
            return [message for part in parts for message in part.messages]
    raise OSError("the list of connections changed each time while it was read")


def _parts(link: socket.socket, family: int, due: float, attempt: int) -> Iterator[Part]:
    sequence = (family << 8) + attempt  # no answer to an earlier question may pass for one to this
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), _STATES)
    flags = _NLM_F_REQUEST | _NLM_F_DUMP
    link.settimeout(_left(due))
    link.sendto(
        _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, flags, sequence, 0) + body, (0, 0)
    )
    done = False
    while not done:
        link.settimeout(_left(due))
        data, _, shape, sender = link.recvmsg(_BUFFER)
        if shape & socket.MSG_TRUNC:
            raise ValueError("a datagram larger than any buffer")
        if sender[0] == 0:  # the kernel, and not another process
            part = parse_part(data, sequence)
            done = part.done
            yield part


def _left(due: float) -> float:
    left = due - time.monotonic()
    if left <= 0:
        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
    return left
