"""One kernel under the guard: what was last seen and concluded of it, and what is being done to it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from .core.deadline import Deadline, next_deadline
from .core.judgement import Track
from .core.life import Life
from .core.model import Instant, Kernel, Presence, Usage, Verdict
from .core.policy import Policy
from .reach import Reaches


@dataclass(slots=True)
class Watched:
    """What the guard holds of one kernel between rounds."""

    kernel: Kernel
    life: Life
    track: Track
    policy: Policy
    usage: Usage
    verdict: Verdict | None = None
    judged: Instant | None = None  # when what the verdict rests on was observed
    presence: Presence = field(default_factory=Presence)
    reaches: Reaches = field(default_factory=Reaches)  # of its warnings
    models: tuple[str, ...] = ()  # of the GPUs that it holds, or held when that could last be told
    saving: asyncio.Task[None] | None = None
    ending: asyncio.Task[None] | None = None
    released: bool = False  # its GPU memory is known to have come back

    @property
    def due(self) -> Deadline | None:
        """The deadline by what is known, reckoned when somebody asks: in most rounds nobody does. It is counted from
        the moment up to which the verdict counted, so that none is told that is later than what is then done."""
        life = self.life
        if self.verdict is None or self.judged is None:
            return None
        return next_deadline(
            self.verdict,
            self.policy,
            life.started,
            life.warnings,
            life.keep_until,
            life.not_before,
            self.judged,
            life.keep_owner,
        )
