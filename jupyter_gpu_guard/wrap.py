"""Put a function in the place of a method of one object, and take it off again.

Other extensions wrap the same methods: what was wrapped before is left as it was, and what was wrapped around ours
later keeps calling it, so that a wrapper must be able to do nothing but pass the call on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Wrap:
    """`function` stands for the method `name` of `target` until `take_off`."""

    def __init__(self, target: Any, name: str, function: Callable[..., Any]) -> None:
        self._target = target
        self._name = name
        self._function = function
        self._before = vars(target).get(name)
        setattr(target, name, function)

    def take_off(self) -> None:
        """Restore what was there, unless somebody has wrapped ours since."""
        if vars(self._target).get(self._name) is not self._function:
            return
        if self._before is None:
            delattr(self._target, self._name)
        else:
            setattr(self._target, self._name, self._before)
