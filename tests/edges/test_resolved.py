"""Policies that are resolved once: they must never differ from what resolving them anew would give."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpu_guard.core.model import Instant
from jupyter_gpu_guard.core.policy import KernelFacts, parse_layers, resolve
from jupyter_gpu_guard.resolved import Resolved

NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
START = Instant(1000.0, NOON)


def layers(timeout: str):
    return parse_layers(
        traits={"idle_timeout": timeout},
        policies=[
            {
                "name": "paper",
                "match": {"gpu": ["*H100*"]},
                "idle_timeout": "3h",
                "expires": "2026-03-02T12:00:30Z",
            },
            {
                "name": "night",
                "match": {"gpu": ["*"]},
                "idle_timeout": "2h",
                "expires": "2026-03-02T12:05:00Z",
            },
        ],
    )


ONE, TWO = layers("30m"), layers("40m")
FACTS = [
    KernelFacts("python3"),
    KernelFacts("python3", gpu_models=("NVIDIA H100",)),
    KernelFacts("ir", ("a.ipynb",), ("NVIDIA A10",), label="x"),
]


def after(seconds: float) -> Instant:
    return START.plus(timedelta(seconds=seconds))


def test_a_policy_is_resolved_once_while_nothing_changes():
    resolved = Resolved()
    first = resolved.policy(ONE, FACTS[1], START)
    assert (first.name, first.idle_timeout) == ("paper", timedelta(hours=3))
    assert resolved.policy(ONE, KernelFacts("python3", gpu_models=("NVIDIA H100",)), after(25)) is first


def test_an_entry_ends_at_its_moment():
    resolved = Resolved()
    names = [resolved.policy(ONE, FACTS[1], after(s)).name for s in (0, 29.9, 30, 299, 300)]
    assert names == ["paper", "paper", "night", "night", "default"]


def test_other_layers_are_in_force_at_once():
    resolved = Resolved()
    timeouts = [resolved.policy(which, FACTS[0], START).idle_timeout for which in (ONE, TWO, ONE)]
    assert timeouts == [timedelta(minutes=30), timedelta(minutes=40), timedelta(minutes=30)]


def test_an_entry_holds_again_when_the_clock_is_set_back():
    resolved = Resolved()
    assert resolved.policy(ONE, FACTS[1], after(40)).name == "night"
    earlier = Instant(after(45).monotonic, NOON)
    assert resolved.policy(ONE, FACTS[1], earlier).name == "paper"


@given(
    st.lists(
        st.tuples(
            st.sampled_from([ONE, TWO]),
            st.sampled_from(FACTS),
            st.floats(0, 200),
            st.floats(-1000, 1000),
        ),
        max_size=20,
    )
)
def test_it_never_differs_from_resolving_anew(asked):
    resolved = Resolved()
    monotonic = 0.0
    for which, facts, step, wall in asked:
        monotonic += step
        now = Instant(monotonic, NOON + timedelta(seconds=wall))
        assert resolved.policy(which, facts, now) == resolve(which, facts, now.at)
