"""NVIDIA GPUs: one reading of all cards, whatever state the driver is in.

Covers starting NVML, finding the cards and keeping them apart, and living on when the driver goes away, is upgraded
under a running server or loses a card. Doesn't cover a call that never returns: that is seen from outside, by the
deadline of the thread that makes the calls. How one card is read stands in nvml_card, how one call is made in
nvml_calls.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

from .core.model import Gpu, Instant, Sample, TelemetryState
from .core.reasons import Reason, because
from .nvml_calls import Code, Failed, Nvml, connect
from .nvml_card import SELDOM, Card, CardReading, read_card, unreadable

#: Seconds until NVML is initialised again after a failure: doubled each time.
FIRST_RETRY, LONGEST_RETRY = 1.0, 60.0

#: A driver that answers nothing else has been unloaded, replaced or taken away (nvidia-docker#1730).
_DRIVER_GONE = frozenset(
    {Code.UNINITIALIZED, Code.DRIVER_NOT_LOADED, Code.LIB_RM_VERSION_MISMATCH, Code.UNKNOWN}
)
#: After one of these the handle of a card is not used again.
_HANDLE_DEAD = frozenset({Code.UNINITIALIZED, Code.INVALID_ARGUMENT, Code.GPU_IS_LOST})


def gpu_present(root: Path = Path("/")) -> bool:
    """Whether this machine or container has an NVIDIA driver or device; under WSL, which has neither, its library."""
    places = ("proc/driver/nvidia", "usr/lib/wsl/lib/libnvidia-ml.so.1")
    return any((root / "dev").glob("nvidia*")) or any((root / place).exists() for place in places)


def all_suspended(sysfs: Path = Path("/sys")) -> bool:
    """Whether there are NVIDIA cards and each is powered down, as in laptops; NVML would wake them (beszel#1522)."""
    states = []
    for file in (sysfs / "bus/pci/drivers/nvidia").glob("*:*/power/runtime_status"):
        try:
            states.append(file.read_text().strip())
        except OSError:
            return False
    return bool(states) and set(states) == {"suspended"}


def _now() -> Instant:
    return Instant(time.monotonic(), datetime.now(timezone.utc))


class _BackOff:
    """When to try again: 1 s after the first failure, then twice as long each time, up to a minute."""

    def __init__(self) -> None:
        self._delay = FIRST_RETRY
        self._until = 0.0
        self._reason: Reason | None = None

    def failed(self, now: Instant, reason: Reason) -> None:
        self._until = now.monotonic + self._delay
        self._delay = min(2 * self._delay, LONGEST_RETRY)
        self._reason = reason

    def waiting(self, now: Instant) -> Reason | None:
        """Why it failed last, while it is too early to try again."""
        return self._reason if now.monotonic < self._until else None


class NvmlReader:
    """Reads all cards. Every call blocks; make them all from one thread, and none while another one is inside.

    NVML is initialised by the first reading and stays so, with a handle held on each card, until `release`. A forked
    child starts afresh: what it inherits belongs to its parent (scalene#169).
    """

    def __init__(self, clock: Callable[[], Instant] = _now, sysfs: Path = Path("/sys")) -> None:
        self._clock = clock
        self._sysfs = sysfs
        self._pid = os.getpid()
        self._nvml: Nvml | None = None
        self._back_off = _BackOff()
        self._counted: tuple[float, int] | None = None  # when (monotonic seconds), and how many cards
        self._cards: dict[int, Card] = {}  # by index, as last found there
        self._seen: dict[str, Card] = {}  # by uuid, all since the last release
        self._newest_us: dict[str, int] = {}  # by uuid, the newest utilisation sample
        self._last_good: Sample | None = None

    def read(self) -> Sample:
        """One reading. Never raises: what can't be read is Unknown, and a driver that can't be read gives a sample
        with the state `unavailable`, its reason, and the last good values for display."""
        now = self._clock()
        self._start_afresh_after_fork()
        nvml = self._connect(now)
        if isinstance(nvml, Reason):
            return self._unavailable(now, nvml)
        count = self._count(nvml, now)
        if isinstance(count, Failed):
            if count.code in _DRIVER_GONE:
                self._disconnect(now, nvml, count.reason)
            return self._unavailable(now, count.reason)
        if not count:
            return self._unavailable(now, because("no_gpu"))
        readings = self._read_cards(nvml, count, now)
        if not all(reading.well for reading in readings):
            self._counted = None
        if all(reading.codes <= _DRIVER_GONE for reading in readings):
            again = self._count(nvml, now)  # it may know why
            gone = because("uninitialized", call="nvmlDeviceGetHandleByIndex")
            reason = again.reason if isinstance(again, Failed) else gone
            self._disconnect(now, nvml, reason)
            return self._unavailable(now, reason)
        return self._good(now, nvml, readings)

    def release(self) -> None:
        """Shut NVML down, so that the cards can sleep, be reset or get another driver; the next reading starts it."""
        self._start_afresh_after_fork()
        if self._nvml is not None:
            self._nvml.ask("nvmlShutdown")
        self._nvml = None
        self._counted = None
        self._cards.clear()
        self._seen.clear()

    def close(self) -> None:
        """Let go of the driver for good."""
        self.release()

    def _start_afresh_after_fork(self) -> None:
        if os.getpid() != self._pid:
            self._pid = os.getpid()
            self._back_off = _BackOff()
            self._let_go()

    def _let_go(self) -> None:
        """Forget NVML and the handles, but not which cards there were."""
        self._nvml = None
        self._counted = None
        for card in self._cards.values():
            card.handle = None

    def _connect(self, now: Instant) -> Nvml | Reason:
        if self._nvml is not None:
            return self._nvml
        waiting = self._back_off.waiting(now)
        if waiting is not None:
            return waiting
        if all_suspended(self._sysfs):
            return because("suspended")
        nvml = connect()
        if isinstance(nvml, Reason):
            self._back_off.failed(now, nvml)
        else:
            self._nvml = nvml
        return nvml

    def _disconnect(self, now: Instant, nvml: Nvml, reason: Reason) -> None:
        nvml.ask("nvmlShutdown")
        self._let_go()
        self._back_off.failed(now, reason)

    def _count(self, nvml: Nvml, now: Instant) -> int | Failed:
        """How many cards there are: counted once a minute, and again after a reading in which one was not well."""
        if self._counted is not None and now.monotonic - self._counted[0] < SELDOM:
            return self._counted[1]
        count: int | Failed = nvml.ask("nvmlDeviceGetCount")
        self._counted = None if isinstance(count, Failed) else (now.monotonic, count)
        return count

    def _read_cards(self, nvml: Nvml, count: int, now: Instant) -> list[CardReading]:
        if count != len(self._cards):
            self._cards.clear()  # a card came or went, and the others may have moved up
        return [self._read_card(nvml, index, now) for index in range(count)]

    def _read_card(self, nvml: Nvml, index: int, now: Instant) -> CardReading:
        card = self._find(nvml, index)
        if isinstance(card, Failed):
            known = self._cards.setdefault(index, Card(index, f"index-{index}", f"GPU {index}", None))
            return CardReading(unreadable(known, card.reason), frozenset({card.code}))
        newest_us = self._newest_us.get(card.uuid, 0)
        if newest_us > now.at.timestamp() * 1e6:
            newest_us = 0  # the clock was set back: waiting for it to catch up would look like no use
        reading = read_card(nvml, card, newest_us, now.monotonic)
        self._newest_us[card.uuid] = reading.newest_us
        if reading.codes & _HANDLE_DEAD:
            card.handle = None
        return reading

    def _find(self, nvml: Nvml, index: int) -> Card | Failed:
        """The card at an index, by its handle if that is alive. Indexes change with reboots; a card is its uuid."""
        card = self._cards.get(index)
        if card is not None and card.handle is not None:
            return card
        handle = nvml.ask("nvmlDeviceGetHandleByIndex", index)
        uuid = handle if isinstance(handle, Failed) else nvml.ask("nvmlDeviceGetUUID", handle)
        if isinstance(uuid, Failed):
            return uuid
        name = nvml.ask("nvmlDeviceGetName", handle)
        card = Card(index, uuid, f"GPU {index}" if isinstance(name, Failed) else name, handle)
        self._cards[index] = self._seen[uuid] = card
        return card

    def _good(self, now: Instant, nvml: Nvml, readings: list[CardReading]) -> Sample:
        self._back_off = _BackOff()
        gpus: dict[str, Gpu] = {reading.gpu.uuid: reading.gpu for reading in readings}
        for uuid, card in self._seen.items():
            # A card that is no longer counted may still hold somebody's work.
            if uuid not in gpus:
                gpus[uuid] = unreadable(card, because("gpu_lost", call="nvmlDeviceGetCount"))
        self._last_good = Sample(
            taken=now,
            source="nvml",
            state=TelemetryState.OK,
            gpus=tuple(gpus.values()),
            last_success=now,
            driver_version=nvml.driver_version,
        )
        return self._last_good

    def _unavailable(self, now: Instant, reason: Reason) -> Sample:
        last = self._last_good
        return Sample(
            taken=now,
            source="nvml",
            state=TelemetryState.UNAVAILABLE,
            gpus=last.gpus if last else (),
            reason=reason,
            last_success=last.taken if last else None,
            driver_version=last.driver_version if last else None,
        )
