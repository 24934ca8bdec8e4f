"""The record as jupyter_events: one event for each thing that happened to a kernel, and for lost or regained readings.

Schemas lie in schemas/events. They are registered when the extension loads: a browser that subscribed before a schema
was known never gets its events.
"""

from __future__ import annotations

from pathlib import Path

from jupyter_events import EventLogger

from .core.model import Sample, TelemetryState
from .record import Happening

KERNEL = "https://events.jupyter.org/jupyter_gpu_guard/kernel/v1"
TELEMETRY = "https://events.jupyter.org/jupyter_gpu_guard/telemetry/v1"
SCHEMAS = Path(__file__).parent / "schemas" / "events"


class Events:
    """Emits through the server's event logger."""

    def __init__(self, logger: EventLogger) -> None:
        self._logger = logger
        self._lost = False
        for schema in sorted(SCHEMAS.glob("*.yaml")):
            if (
                _id(schema) not in logger.schemas.schema_ids
            ):  # a second load in one process registers nothing twice
                logger.register_event_schema(schema)

    def happened(self, happening: Happening) -> None:
        """Emit what happened to a kernel."""
        self._logger.emit(
            schema_id=KERNEL,
            data={
                "action": happening.action,
                "kernel_id": happening.kernel_id,
                "kernel_name": happening.kernel_name,
                "notebooks": list(happening.notebooks),
                "state": happening.after,
                "policy": happening.policy,
                "reason": happening.reason.to_wire(),
            },
        )

    def sampled(self, sample: Sample) -> None:
        """Emit `lost` when readings fail and `back` when they come again, once each. While the driver is left alone
        nothing is known of either."""
        if sample.state is TelemetryState.NONE:
            return
        lost = sample.state in (TelemetryState.STALE, TelemetryState.UNAVAILABLE)
        if lost == self._lost:
            return
        self._lost = lost
        reason = None if sample.reason is None else sample.reason.to_wire()
        data = {"action": "lost" if lost else "back", "state": sample.state.value, "reason": reason}
        self._logger.emit(schema_id=TELEMETRY, data=data)


def _id(schema: Path) -> str:
    return {"kernel.yaml": KERNEL, "telemetry.yaml": TELEMETRY}[schema.name]
