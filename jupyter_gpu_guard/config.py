"""Every option of the server, as traits, and what they come to: `Settings`, read and checked once at the start.

The traits keep what was set as it was set; the core reads it, so that command line, config, and policy file share one
grammar and one kind of error. traitlets alone would warn of an unknown option and go on: `settings()` refuses it.
What a policy file holds is read in `policies`.
"""

from __future__ import annotations

import ast
import contextlib
import os
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any

from jupyter_core.paths import jupyter_data_dir
from traitlets import TraitType, Undefined, default
from traitlets.config import LoggingConfigurable

from .core.policy import Mode, PolicyError, PolicyLayers, parse_layers
from .core.policy_fields import BY_NAME, unknown_key
from .core.quantities import parse_choice, parse_flag, parse_text

_WORDS = {"true": True, "false": False, "none": None, "null": None}


class GpuSource(str, Enum):
    """Where GPU readings come from."""

    AUTO = "auto"
    NVML = "nvml"
    SIMULATED = "simulated"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of a whole server. `layers` holds the per-kernel ones, without those of `policy_file`."""

    layers: PolicyLayers
    policy_file: str  # its path; empty when there is none
    gpu_source: str
    history_path: str | None  # None: the place that the app chooses in Jupyter's data directory
    recovery_dir: tuple[str, ...]
    shield_working: bool | None  # None: in enforce only

    @property
    def sample_interval(self) -> timedelta:
        """Time between rounds, as far as it is known without the policy file."""
        return self.layers.sample_interval

    @property
    def mode(self) -> Mode:
        """The mode that holds where no policy says otherwise, as far as it is known without the policy file."""
        return self.layers.mode

    def shields(self, mode: Mode) -> bool:
        """Whether, in that mode, Jupyter's own culler and JupyterHub are told of the work that is seen."""
        return mode is Mode.ENFORCE if self.shield_working is None else self.shield_working


class Value(TraitType[Any, Any]):
    """An option kept as it was set. On a command line, `90`, `0.5`, `true` and `["a", "b"]` become what they look
    like and all else is text."""

    info_text = "a value"

    def from_string(self, s: str) -> Any:
        """What a command line's text stands for."""
        if s.lower() in _WORDS:
            return _WORDS[s.lower()]
        with contextlib.suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return ast.literal_eval(s)
        return s


class ValueList(Value):
    """A list kept as it was set. On a command line: one literal, several texts, or one with commas."""

    def from_string(self, s: str) -> Any:
        value = super().from_string(s)
        return [part.strip() for part in s.split(",")] if isinstance(value, str) else value

    def from_string_list(self, s_list: list[str]) -> Any:
        """traitlets calls this when the option was given more than once."""
        if len(s_list) == 1:
            return self.from_string(s_list[0])
        return [Value.from_string(self, s) for s in s_list]

    def default_value_repr(self) -> str:
        """For the help, which can't show a default that depends on the machine."""
        return "as said above" if self.default_value is Undefined else super().default_value_repr()


class Text(Value):
    """A text or path, which stays one when a command line has `none` or `2027` for it."""

    def from_string(self, s: str) -> str:
        return s


def _per_kernel(name: str, text: str) -> Value:
    """A per-kernel option with the core's default; a policy may set it."""
    preset = BY_NAME[name].default
    help_text = f"{text} A policy may set it."
    trait = (
        ValueList(list(preset), help=help_text)
        if isinstance(preset, tuple)
        else Value(preset, help=help_text)
    )
    return trait.tag(config=True)


class GpuGuard(LoggingConfigurable):
    """What to do about GPU kernels that nobody uses.

    Durations are seconds or a text such as "90s", "30m", "1h30m" or "2d".
    """

    mode = _per_kernel(
        "mode",
        '"observe" records what it would do and shuts nothing down; "warn" only warns people, who may extend; '
        '"enforce" acts.',
    )
    action = _per_kernel("action", 'What is shut down in the end: "kernel", the only choice.')
    scope = _per_kernel(
        "scope", '"gpu": only kernels that hold GPU memory or a GPU context; "all": every kernel.'
    )
    idle_timeout = _per_kernel(
        "idle_timeout", "A duration. A kernel unused for this long is shut down. 0: never."
    )
    after_run_factor = _per_kernel(
        "after_run_factor",
        "A number from 0 to 100. After a run of length L a kernel may rest for at least this times L, up to "
        "after_run_max. 0: no longer than idle_timeout.",
    )
    after_run_max = _per_kernel(
        "after_run_max", "A duration: the most that after_run_factor gives. 0: it gives nothing."
    )
    max_runtime = _per_kernel(
        "max_runtime",
        "A duration. A kernel whose process has held a GPU for this long is shut down, in use or not. 0: no limit.",
    )
    stalled_timeout = _per_kernel(
        "stalled_timeout",
        "A duration. People are warned of a kernel that is busy while nothing has moved for this long. 0: never.",
    )
    cull_stalled = _per_kernel(
        "cull_stalled", "True or False: whether such a stuck kernel is shut down after cull_stalled_after."
    )
    cull_stalled_after = _per_kernel(
        "cull_stalled_after",
        "A duration longer than 0, for cull_stalled; at least stalled_timeout.",
    )
    warn_before = _per_kernel(
        "warn_before",
        "A list of durations longer than 0: how long before the shutdown people are warned. The first warning is "
        "quiet. An empty list is allowed in observe only.",
    )
    save_timeout = _per_kernel(
        "save_timeout", "A duration longer than 0: how long open notebooks have to save before a shutdown."
    )
    on_save_failure = _per_kernel(
        "on_save_failure",
        'When saving was tried and failed: "postpone" the shutdown and try again, for postpone_max at most; '
        '"recovery-copy": shut down once a copy is verified; "never" shut down.',
    )
    postpone_max = _per_kernel(
        "postpone_max",
        "A duration: how long failed saving may postpone a shutdown; then a verified copy is enough. "
        "0: it is enough at once.",
    )
    keep_alive_max = _per_kernel(
        "keep_alive_max", "A duration: the longest single extension by a user. 0: users cannot extend."
    )
    keep_alive_total = _per_kernel(
        "keep_alive_total",
        "A duration: all extensions of one owner and notebook within 7 days. 0: users cannot extend.",
    )
    window = _per_kernel(
        "window",
        "A duration longer than 0: how long nothing may have been in use before a kernel counts as unused.",
    )
    max_gap = _per_kernel(
        "max_gap",
        "A duration longer than 0. Missing readings for up to this long pause the idle clock; for longer, it starts "
        "afresh.",
    )
    warm_up = _per_kernel(
        "warm_up", "A duration. A younger kernel is neither warned of nor shut down. 0: no such time."
    )
    unknown_policy = _per_kernel(
        "unknown_policy",
        'Where GPU use cannot be read by nature: "never" shut down, or judge by the "other-signals" with all '
        "timeouts three times as long.",
    )
    gpu_idle_below = _per_kernel(
        "gpu_idle_below",
        "A ratio from 0 to 1: a GPU used for less than this share of the time counts as unused. 0: any use counts.",
    )
    cpu_idle_below = _per_kernel(
        "cpu_idle_below",
        "CPU cores, from 0: less than this, as the mean of a minute, counts as unused. 0: any use counts.",
    )
    io_idle_below = _per_kernel(
        "io_idle_below",
        'Bytes a second, as a number or a text such as "256KiB": less than this, as the mean of a minute, counts as '
        "unused. 0: any use counts.",
    )
    end_detached = _per_kernel(
        "end_detached",
        "True or False: whether a shutdown may also end processes that a kernel started and that detached "
        "themselves from it.",
    )
    sample_interval = Value(
        "5s",
        help="A duration longer than 0: time between rounds. If unset, at most a third of the shortest window.",
    ).tag(config=True)
    shield_working = Value(
        None,
        help="True, False or None: whether kernels that are in use, kept or warned are shown as active to Jupyter's "
        "own culler and to JupyterHub. None: in enforce only.",
    ).tag(config=True)
    policies = ValueList(
        [],
        help="A list of dicts, the first that matches wins: name, match (kernel_name, path, gpu, user, group, label), "
        "expires, reason, trusted, and any option that a policy may set.",
    ).tag(config=True)
    policy_file = Text(
        "",
        help="Path of a TOML file with such options and [[policies]], read again when it changes. Empty: none.",
    ).tag(config=True)
    gpu_source = Text(
        "auto",
        help='"auto": NVML if there is an NVIDIA GPU; "nvml"; "simulated" for trying things out; "none".',
    ).tag(config=True)
    history_path = Text(
        "",
        help='Path of the SQLite file of what happened; ":memory:" keeps nothing. '
        "Empty: gpu_guard/history-<server>.sqlite in Jupyter's data directory.",
    ).tag(config=True)
    recovery_dir = ValueList(
        help="A list of folders for recovery copies, tried in order; a relative one lies beside the notebook and may "
        "not be hidden. Unset: gpu_guard_recovery, then gpu_guard/recovery in Jupyter's data directory.",
    ).tag(config=True)

    @default("recovery_dir")
    def _recovery_dirs(self) -> list[str]:
        return ["gpu_guard_recovery", os.path.join(jupyter_data_dir(), "gpu_guard", "recovery")]

    def settings(self) -> Settings:
        """Read and check every option. Raises PolicyError naming the option, its value and what would be right."""
        configured = self._configured()
        pinned = {name: getattr(self, name) for name in BY_NAME if name in configured}
        coded = {
            name: getattr(self, name) for name in BY_NAME if name not in configured and self._in_code(name)
        }
        paced = "sample_interval" in configured or self._in_code("sample_interval")
        return Settings(
            layers=parse_layers(
                pinned=pinned,
                policies=self.policies,
                traits=coded,
                sample_interval=self.sample_interval if paced else None,
            ),
            policy_file=os.path.expanduser(parse_text(self.policy_file, key="policy_file")),
            gpu_source=parse_choice(self.gpu_source, GpuSource, key="gpu_source").value,
            history_path=_history_path(self.history_path),
            recovery_dir=_recovery_dir(self.recovery_dir),
            shield_working=_shield(self.shield_working),
        )

    def _configured(self) -> set[str]:
        """The options that command line or config set; raises PolicyError for one that does not exist."""
        known = set(self.class_trait_names(config=True))
        mine = {
            key: value for key, value in self._find_my_config(self.config).items() if not key[:1].isupper()
        }
        for key, value in mine.items():
            if key not in known:
                # What came from a command line is of a kind of its own that should not show.
                plain = str(value) if isinstance(value, str) else value
                raise unknown_key(key, plain, known)
        return set(mine)

    def _in_code(self, name: str) -> bool:
        """Whether code has set the trait to something else than its default."""
        return bool(getattr(self, name) != self.traits()[name].default_value)


def _history_path(value: object) -> str | None:
    path = parse_text(value, key="history_path")
    return os.path.expanduser(path) if path else None


def _shield(value: object) -> bool | None:
    try:
        return None if value is None else parse_flag(value, key="shield_working")
    except PolicyError:
        raise PolicyError("shield_working", value, "True, False or None") from None


def _recovery_dir(value: object) -> tuple[str, ...]:
    """Folders to try in order. Jupyter serves nothing that is hidden, so a relative one must not be."""
    if not isinstance(value, list | tuple) or not value:
        raise PolicyError("recovery_dir", value, "a list of at least one folder")
    folders = [os.path.expanduser(parse_text(item, key=f"recovery_dir[{i}]")) for i, item in enumerate(value)]
    for index, folder in enumerate(folders):
        hidden = any(part.startswith(".") for part in folder.split("/"))
        if not folder or (hidden and not os.path.isabs(folder)):
            expected = "a folder that is absolute, or relative and neither hidden nor outside the notebook's"
            raise PolicyError(f"recovery_dir[{index}]", value[index], expected)
    return tuple(folders)
