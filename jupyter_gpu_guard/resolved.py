"""The policies of the kernels as they were last resolved, so that not every round resolves each of them again.

Not here: how a policy is resolved (core.policy), and which layers are in force (policies).
"""

from __future__ import annotations

from datetime import datetime, timedelta

from .core.model import Instant
from .core.policy import KernelFacts, Policy, PolicyLayers, resolve

#: What was resolved for kernels that are gone is let go this often.
_RENEW = timedelta(minutes=1)


class Resolved:
    """Policies by what they depend on: the layers, the facts of the kernel, and which entries have expired."""

    def __init__(self) -> None:
        self._layers: PolicyLayers | None = None
        self._since: Instant | None = None
        self._expiry: datetime | None = None
        self._policies: dict[KernelFacts, Policy] = {}

    def policy(self, layers: PolicyLayers, facts: KernelFacts, now: Instant) -> Policy:
        """As `resolve`."""
        if layers is not self._layers or self._is_old(now):
            self._start(layers, now)
        found = self._policies.get(facts)
        if found is None:
            found = self._policies[facts] = resolve(layers, facts, now.at)
        return found

    def _is_old(self, now: Instant) -> bool:
        since, expiry = self._since, self._expiry
        if since is None or now.at < since.at or now.since(since) >= _RENEW:  # or the clock was set back
            return True
        return expiry is not None and now.at >= expiry

    def _start(self, layers: PolicyLayers, now: Instant) -> None:
        rules = (*layers.file_rules, *layers.rules)
        coming = [rule.expires for rule in rules if rule.expires is not None and rule.expires > now.at]
        self._layers, self._since, self._expiry = layers, now, min(coming, default=None)
        self._policies.clear()
