"""One reading of one card: its values, who is on it, and how much each of them used it.

Covers cards with and without MIG, cards that belong to Windows, the merging of process lists with utilisation samples,
what counts as damaged, and which values need not be asked for each time.
Doesn't cover finding the cards, nor what happens to the driver between readings (nvml).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .core.model import ByteReading, Gpu, GpuProcess, Reading, Unknown
from .core.reasons import Reason, because
from .nvml_calls import LISTS, Code, Failed, Nvml, UseSample

#: Where clients of the Multi-Process Service meet its server unless CUDA_MPS_PIPE_DIRECTORY names another place.
MPS_PIPES = Path("/tmp/nvidia-mps")
#: The only way to a card that belongs to Windows (WSL 2, and containers in it); there is no /dev/nvidia* then.
WINDOWS_GPU = Path("/dev/dxg")

#: So old, in seconds, may be what changes seldom or is only shown: MIG mode, power limit, temperature.
SELDOM = 60.0
#: The same for the memory of a whole card, which is only shown: it is read in every second round of 5 s.
MEMORY = 7.5

#: What a card answers that is as it should be: it may lack a call, or not let us make it.
_STEADY = frozenset(
    {Code.SUCCESS, Code.NOT_SUPPORTED, Code.NO_PERMISSION, Code.NOT_FOUND, Code.FUNCTION_NOT_FOUND}
)
#: What it will answer again.
_BY_NATURE = frozenset({Code.NOT_SUPPORTED, Code.FUNCTION_NOT_FOUND})

_NO_USE: tuple[Reading, Reading] = (0.0, 0.0)


@dataclass(slots=True)
class Card:
    """What is remembered of a card. A handle that turned out dead is None until the card is looked up again."""

    index: int
    uuid: str
    name: str
    handle: Any
    #: Pids in the lists of the last reading that are no MPS server.
    plain: frozenset[int] = frozenset()
    #: By call, when it was last made (monotonic seconds) and what it gave.
    kept: dict[str, tuple[float, Any]] = field(default_factory=dict)
    #: The last reading found no MIG, and told all of the processes and their use.
    whole: bool = False


@dataclass(frozen=True, slots=True)
class CardReading:
    """A card as it was read. `codes`: the return codes of all calls to it, None for what was no return code;
    `newest_us`: the time stamp of the newest sample taken into account; `well`: it answers as a sound card does."""

    gpu: Gpu
    codes: frozenset[int | None]
    newest_us: int = 0
    well: bool = False


def unreadable(card: Card, reason: Reason) -> Gpu:
    """A card of which nothing can be told but what was known of it before."""
    unknown = Unknown(reason)
    values = (unknown,) * 6
    return Gpu(card.uuid, card.index, card.name, *values, mig=False, processes=unknown)


def read_card(nvml: Nvml, card: Card, since_us: int, now: float) -> CardReading:
    """Read one card; `since_us`: the newest sample seen before, in the driver's microseconds; `now`: monotonic seconds.

    Processes, use and power are read each time. What else was read lately is told again, unless the card is not well.
    """
    return _Reading(nvml, card, since_us, now).take()


def mps_seems_to_run(pids: Iterable[int]) -> bool:
    """Whether to ask for the list of MPS clients, which costs as much as the other two on machines that have none.

    Taken from what every client needs: the variable that names the pipes, the default place of the pipes, or a
    server among the processes on the card (pids of another namespace may mislead: that only costs the call).
    """
    if os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or MPS_PIPES.exists():
        return True
    return any(_command(pid).startswith("nvidia-cuda-mps") for pid in pids)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace")
    except OSError:
        return ""


@dataclass(slots=True)
class _Row:
    """A process as all lists of a device have it together."""

    kinds: set[str] = field(default_factory=set)
    memory: int | None = None

    def add(self, kind: str, memory: int | None) -> None:
        # Drivers list a process twice (compute and graphics, or two clients of it): the memory is that of both.
        self.kinds.add(kind)
        if memory is not None:
            self.memory = max(memory, self.memory or 0)

    def process(self, pid: int, use: tuple[Reading, Reading], mig_uuid: str | None = None) -> GpuProcess:
        memory: ByteReading | None = self.memory
        if memory is None:
            memory = Unknown(because("not_available", call=LISTS[min(self.kinds)]))
        return GpuProcess(pid, frozenset(self.kinds), memory, *use, mig_uuid=mig_uuid)


@dataclass(slots=True)
class _Peak:
    """The largest of the percentages seen. Values over 100 occur (nvtop#110) and are no values."""

    percent: int = 0
    damaged: bool = False

    def add(self, *percents: int) -> None:
        for percent in percents:
            if percent > 100:
                self.damaged = True
            else:
                self.percent = max(self.percent, percent)

    @property
    def ratio(self) -> Reading:
        """Unknown where a damaged value may have stood for use and no sound one shows any."""
        if self.damaged and not self.percent:
            return Unknown(because("damaged_value", call="nvmlDeviceGetProcessUtilization"))
        return self.percent / 100


class _Reading:
    """The calls to one card, with what they returned."""

    def __init__(self, nvml: Nvml, card: Card, since_us: int, now: float) -> None:
        self._nvml = nvml
        self._card = card
        self._now = now
        self._since_us = self._newest_us = since_us
        self._codes: set[int | None] = set()
        self._plain: set[int] = set()
        self._use_told = False

    def take(self) -> CardReading:
        mig = self._is_split()
        processes, strays = self._whose(mig)
        use = Unknown(because("mig_no_utilization")) if mig else self._utilization()
        power = self._watts(self._ask("nvmlDeviceGetPowerUsage"))
        self._card.plain = frozenset(self._plain)
        self._card.whole = self._use_told and not isinstance(use, Unknown)
        well = Code.SUCCESS in self._codes and self._codes <= _STEADY
        if not well:
            self._card.kept.clear()
        total, used = self._memory()
        gpu = Gpu(
            uuid=self._card.uuid,
            index=self._card.index,
            name=self._card.name,
            memory_total_bytes=total,
            memory_used_bytes=used,
            utilization_ratio=use,
            power_watts=power,
            power_limit_watts=self._watts(self._seldom("nvmlDeviceGetEnforcedPowerLimit")),
            temperature_celsius=self._temperature(),
            mig=mig,
            processes=processes,
            stray_samples=strays,
        )
        if not well:
            self._card.kept.clear()
        return CardReading(gpu, frozenset(self._codes), self._newest_us, well)

    def _whose(self, mig: bool) -> tuple[tuple[GpuProcess, ...] | Unknown, tuple[tuple[int, float], ...]]:
        """The processes on the card, and the samples of others.

        A card of Windows tells of none: its lists fail (WSL#7162, dask/distributed#5567) or hold processes of other
        pid namespaces without their memory (nvitop#49), and no samples are taken. That is no error, but its nature;
        an empty list or no sample is no proof there, so they are not even asked for.
        """
        if mig:
            return self._mig_processes()
        if WINDOWS_GPU.exists():
            return Unknown(because("not_supported", call=LISTS["compute"])), ()
        return self._processes()

    def _is_split(self) -> bool:
        """Whether the card is in MIG mode: read in the wrong mode, a card seems to have no processes. So it is asked
        each time of a card that is split, or that did not tell everything of its processes last time."""
        if not self._card.whole:
            self._card.kept.pop("nvmlDeviceGetMigMode", None)
        mode = self._seldom("nvmlDeviceGetMigMode")
        return not isinstance(mode, Failed) and mode[0] == 1

    def _ask(self, call: str, *arguments: object) -> Any:
        return self._noted(self._nvml.ask(call, self._card.handle, *arguments))

    def _noted(self, answer: Any) -> Any:
        self._codes.add(answer.code if isinstance(answer, Failed) else Code.SUCCESS)
        return answer

    def _seldom(self, call: str) -> Any:
        return self._kept(call, SELDOM, lambda handle: self._nvml.ask(call, handle))

    def _kept(self, call: str, age: float, ask: Callable[[object], Any]) -> Any:
        """What a call gave less than `age` seconds ago, else what it gives now."""
        kept = self._card.kept.get(call)
        if kept is not None and self._now - kept[0] < age:
            return kept[1]
        answer = self._noted(ask(self._card.handle))
        if isinstance(answer, Failed) and answer.code not in _BY_NATURE:
            self._card.kept.pop(call, None)
        else:
            self._card.kept[call] = (self._now, answer)
        return answer

    @staticmethod
    def _watts(milliwatts: Any) -> Reading:
        return Unknown(milliwatts.reason) if isinstance(milliwatts, Failed) else milliwatts / 1000

    def _temperature(self) -> Reading:
        celsius = self._kept("nvmlDeviceGetTemperature", SELDOM, self._nvml.temperature)
        return Unknown(celsius.reason) if isinstance(celsius, Failed) else float(celsius)

    def _utilization(self) -> Reading:
        rates = self._ask("nvmlDeviceGetUtilizationRates")
        if isinstance(rates, Failed):
            return Unknown(rates.reason)
        if rates.gpu > 100:
            return Unknown(because("damaged_value", call="nvmlDeviceGetUtilizationRates"))
        return float(rates.gpu / 100)

    def _memory(self) -> tuple[ByteReading, ByteReading]:
        memory = self._kept("nvmlDeviceGetMemoryInfo", MEMORY, self._nvml.memory)
        if isinstance(memory, Failed):
            return Unknown(memory.reason), Unknown(memory.reason)
        if not memory.total:  # cards that share the machine's memory have none of their own to tell of
            missing = Unknown(because("not_available", call="nvmlDeviceGetMemoryInfo"))
            return missing, missing
        return memory.total, memory.used

    def _listed(self, handle: object) -> dict[int, _Row] | Unknown:
        """All lists of a card or MIG device together; Unknown when one that it has can't be read."""
        rows: dict[int, _Row] = {}
        for kind in LISTS:
            if kind == "mps" and not self._mps_seems_to_run(rows.keys()):
                continue
            listed = self._noted(self._nvml.listed(kind, handle))
            if isinstance(listed, Failed):
                if kind != "compute" and listed.code == Code.NOT_SUPPORTED:
                    continue  # a card for computing only has no such list
                return Unknown(listed.reason)
            for pid, memory in listed:
                rows.setdefault(pid, _Row()).add(kind, memory)
        return rows

    def _mps_seems_to_run(self, pids: Set[int]) -> bool:
        """A process is looked at when it is first listed: a server has its name before it opens a card."""
        if mps_seems_to_run(pids - self._card.plain):
            return True
        self._plain |= pids
        return False

    def _processes(self) -> tuple[tuple[GpuProcess, ...] | Unknown, tuple[tuple[int, float], ...]]:
        rows = self._listed(self._card.handle)
        if isinstance(rows, Unknown):
            return rows, ()
        samples = self._noted(self._nvml.samples(self._card.handle, self._since_us))
        if isinstance(samples, Failed):
            unknown = Unknown(samples.reason)
            return tuple(row.process(pid, (unknown, unknown)) for pid, row in rows.items()), ()
        self._use_told = True
        uses = self._uses(samples)
        strays = [
            (pid, sm)
            for pid, (sm, _) in uses.items()
            if pid and pid not in rows and not isinstance(sm, Unknown)
        ]
        processes = tuple(row.process(pid, uses.get(pid, _NO_USE)) for pid, row in rows.items())
        return processes, tuple((pid, sm) for pid, sm in strays if sm > 0)

    def _uses(self, samples: Sequence[UseSample]) -> Mapping[int, tuple[Reading, Reading]]:
        """Of each pid the peaks of computing and of video coding in the samples that are new."""
        peaks: dict[int, tuple[_Peak, _Peak]] = {}
        for sample in samples:
            if sample.time_us <= self._since_us:
                continue  # left over in the driver's buffer
            sm, codec = peaks.setdefault(sample.pid, (_Peak(), _Peak()))
            sm.add(sample.sm)
            codec.add(sample.encoder, sample.decoder)
            if max(sample.sm, sample.encoder, sample.decoder) <= 100:
                self._newest_us = max(self._newest_us, sample.time_us)
        return {pid: (sm.ratio, codec.ratio) for pid, (sm, codec) in peaks.items()}

    def _mig_processes(self) -> tuple[tuple[GpuProcess, ...] | Unknown, tuple[tuple[int, float], ...]]:
        """The processes of each MIG device. The list of the whole card needs privileges, and use is told of neither.

        MIG devices are looked up anew each time: one that is destroyed leaves a handle that may serve another.
        """
        no_use: Reading = Unknown(because("mig_no_utilization"))
        found: list[GpuProcess] = []
        slots = self._ask("nvmlDeviceGetMaxMigDeviceCount")
        if isinstance(slots, Failed):
            return Unknown(slots.reason), ()
        for slot in range(slots):
            device = self._ask("nvmlDeviceGetMigDeviceHandleByIndex", slot)
            if isinstance(device, Failed) and device.code == Code.NOT_FOUND:
                continue  # the numbers of the devices have holes
            uuid = (
                device
                if isinstance(device, Failed)
                else self._noted(self._nvml.ask("nvmlDeviceGetUUID", device))
            )
            if isinstance(uuid, Failed):
                return Unknown(uuid.reason), ()
            rows = self._listed(device)
            if isinstance(rows, Unknown):
                return rows, ()
            found += [row.process(pid, (no_use, no_use), uuid) for pid, row in rows.items()]
        return tuple(found), ()
