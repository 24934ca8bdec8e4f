"""The life cycle against its table: what must follow what, one safety property for each test."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpu_guard.core import lifecycle as lc
from jupyter_gpu_guard.core.deadline import Cause, next_deadline
from jupyter_gpu_guard.core.lifecycle import Phase
from jupyter_gpu_guard.core.model import Instant, Unknown, Verdict, VerdictKind
from jupyter_gpu_guard.core.policy import KernelFacts, Policy, parse_layers, resolve
from jupyter_gpu_guard.core.reasons import because

T0 = Instant(1000.0, datetime(2026, 3, 1, 12, 0, tzinfo=UTC))
FACTS = KernelFacts(
    kernel_name="python3", paths=("nb.ipynb",), gpu_models=("A100",), user="ada", groups=(), label=None
)
SECOND = timedelta(seconds=1)
IDLE, ACTIVE, UNKNOWN, STALLED = (
    VerdictKind.IDLE,
    VerdictKind.ACTIVE,
    VerdictKind.UNKNOWN,
    VerdictKind.STALLED,
)


def policy(**values: object) -> Policy:
    """An enforcing policy: idle after 100 s, warned 40 s and 10 s ahead, unless told otherwise."""
    preset = {
        "mode": "enforce",
        "idle_timeout": 100,
        "warn_before": [40, 10],
        "warm_up": 0,
        "window": 20,
        "max_gap": 30,
    }
    return resolve(parse_layers(pinned={**preset, **values}), FACTS, T0.at)


def at(seconds: float) -> Instant:
    return T0.plus(timedelta(seconds=seconds))


def verdict(kind: VerdictKind = IDLE, idle: float = 0.0, **more: object) -> Verdict:
    """A verdict whose idle clock stands at `idle` seconds; samples are plenty and a GPU is held."""
    reason = {
        IDLE: because("idle", seconds=idle, ratio=0.0),
        ACTIVE: because("gpu_in_use", ratio=0.9, at="now"),
        UNKNOWN: because("gpu_lost", call="x"),
        STALLED: because("busy_nothing_moves", since="then", seconds=idle),
    }[kind]
    preset = {
        "idle_since": None if kind in (ACTIVE, STALLED) else T0.at,
        "idle_for": timedelta(seconds=idle),
        "good_samples": 50,
        "holds_gpu": True,
    }
    return Verdict(kind, reason, **{**preset, **more})  # type: ignore[arg-type]


class Run:
    """A life under one policy, fed with events; keeps all that was asked for."""

    def __init__(self, p: Policy | None = None) -> None:
        self.policy = p or policy()
        self.life = lc.born("k", T0)
        self.actions: list[lc.Action] = []
        self.now = 0.0

    def feed(self, event: lc.Event, seconds: float | None = None) -> list[lc.Action]:
        self.now = self.now if seconds is None else seconds
        if isinstance(event, lc.Saved) and not event.attempt:
            event = replace(event, attempt=self.life.attempt)
        self.life, actions = lc.advance(self.life, event, self.policy, at(self.now))
        self.actions += actions
        return list(actions)

    def idle_until(self, seconds: float, step: float = 5.0) -> None:
        """Idle looks every `step` seconds, from now until `seconds`."""
        t = self.now
        while t < seconds:
            t += step
            self.feed(lc.Judged(verdict(idle=t)), t)

    def did(self, kind: type) -> list[lc.Action]:
        return [a for a in self.actions if isinstance(a, kind)]

    def recorded(self) -> list[str]:
        return [a.action for a in self.actions if isinstance(a, lc.Record)]

    def end(self, seconds: float) -> Run:
        """The look that ends the save, and the last look."""
        self.feed(lc.Judged(verdict(idle=seconds)), seconds)
        assert self.life.phase is Phase.CULLING
        assert not self.life.ending
        self.feed(lc.Looked(verdict(idle=seconds)))
        return self

    def saving(self) -> Run:
        self.idle_until(100)
        assert self.life.phase is Phase.SAVING
        return self


def test_an_idle_kernel_is_warned_at_each_lead_then_saved_then_ended() -> None:
    run = Run()
    run.idle_until(100)
    leads = [a.warning.lead for a in run.did(lc.Warn)]
    assert leads == [40 * SECOND, 10 * SECOND]
    assert run.life.phase is Phase.SAVING
    run.feed(lc.Saved("saved"))
    assert run.life.phase is Phase.SAVING, "it looks again before it acts"
    run.end(105)
    assert len(run.did(lc.EndKernel)) == 1
    run.feed(lc.Culled(None))
    assert run.life.phase is Phase.CULLED
    assert run.recorded() == ["warned", "warned", "save_requested", "saved", "culled"]


def test_nothing_happens_before_the_deadline() -> None:
    run = Run()
    run.idle_until(95)
    assert run.life.phase is Phase.WARNED
    assert not run.did(lc.AskToSave)


@pytest.mark.parametrize("seconds", [65.0, 95.0])
def test_activity_ends_a_warning(seconds: float) -> None:
    run = Run()
    run.idle_until(seconds)
    assert run.life.phase is Phase.WARNED
    run.feed(lc.Judged(verdict(ACTIVE)), seconds + 1)
    assert run.life.phase is Phase.ACTIVE
    assert run.life.warnings == ()
    assert run.recorded()[-1] == "cull_cancelled"


def test_activity_between_two_looks_ends_a_warning_at_once() -> None:
    run = Run()
    run.idle_until(95)
    run.feed(lc.Touched(because("executing", since="now")))
    assert run.life.phase is Phase.ACTIVE


@pytest.mark.parametrize("event", [lc.Touched(because("present", at="now")), lc.Judged(verdict(ACTIVE))])
def test_activity_during_a_save_ends_it(event: lc.Event) -> None:
    run = Run().saving()
    run.feed(event)
    assert run.life.phase is Phase.ACTIVE
    assert not run.did(lc.EndKernel)


def test_activity_after_the_save_and_before_the_shutdown_ends_it() -> None:
    run = Run().saving()
    run.feed(lc.Saved("saved"))
    run.feed(lc.Judged(verdict(ACTIVE)), 106)
    assert run.life.phase is Phase.ACTIVE
    assert not run.did(lc.EndKernel)


@pytest.mark.parametrize("phase", ["warned", "saving", "saved"])
def test_unknown_never_goes_on(phase: str) -> None:
    run = Run()
    run.idle_until(95 if phase == "warned" else 100)
    if phase == "saved":
        run.feed(lc.Saved("saved"))
    for t in range(105, 1000, 5):
        run.feed(lc.Judged(verdict(UNKNOWN, idle=95)), t)
    assert not run.did(lc.EndKernel)
    assert run.life.phase in (Phase.WARNED, Phase.SAVING)


def test_after_an_unknown_while_it_is_saved_again() -> None:
    run = Run().saving()
    run.feed(lc.Saved("saved"))
    run.feed(lc.Judged(verdict(UNKNOWN, idle=100)), 105)
    assert run.life.phase is Phase.WARNED
    run.feed(lc.Judged(verdict(idle=101)), 110)
    assert run.life.phase is Phase.SAVING
    assert len(run.did(lc.AskToSave)) == 2
    assert not run.did(lc.EndKernel)


def test_an_idle_clock_that_started_afresh_voids_the_warnings() -> None:
    run = Run()
    run.idle_until(95)
    fresh = verdict(idle=1, idle_since=at(99).at)
    run.feed(lc.Judged(fresh), 100)
    assert run.life.phase is Phase.IDLE
    assert run.life.warnings == ()


def test_an_old_input_that_is_told_of_late_ends_nothing_if_it_is_long_ago_even_so() -> None:
    run = Run().saving()
    run.feed(lc.Saved("saved"))
    run.feed(lc.Judged(verdict(idle=101, idle_since=at(4).at)), 105)
    assert run.life.phase is Phase.CULLING


def test_one_from_before_the_warning_moves_the_deadline_and_no_more() -> None:
    run = Run().saving()
    warnings = run.life.warnings
    run.feed(lc.Saved("saved"))
    run.feed(lc.Judged(verdict(idle=60, idle_since=at(45).at)), 105)
    assert run.life.phase is Phase.WARNED
    assert run.life.warnings == warnings
    run.feed(lc.Judged(verdict(idle=95, idle_since=at(45).at)), 140)
    assert run.life.phase is Phase.WARNED, "not before its timeout is over by what is known now"
    run.feed(lc.Judged(verdict(idle=101, idle_since=at(45).at)), 146)
    assert run.life.phase is Phase.SAVING
    assert not run.did(lc.EndKernel)


def test_one_from_after_the_warning_counts_anew() -> None:
    run = Run().saving()
    run.feed(lc.Judged(verdict(idle=35, idle_since=at(70).at)), 105)
    assert run.life.phase is Phase.IDLE
    assert [a.reason.code for a in run.did(lc.Record) if a.action == "cull_cancelled"] == ["counted_anew"]


def test_a_deadline_that_is_past_at_first_sight_still_gives_the_full_first_lead() -> None:
    run = Run()
    run.feed(lc.Judged(verdict(idle=5000)), 5000)
    assert [a.warning.lead for a in run.did(lc.Warn)] == [40 * SECOND]
    for t in (5030, 5039):
        run.feed(lc.Judged(verdict(idle=t)), t)
    assert not run.did(lc.AskToSave)
    run.feed(lc.Judged(verdict(idle=5041)), 5041)
    assert run.life.phase is Phase.SAVING


def test_leads_that_are_due_together_are_one_warning_with_its_full_time() -> None:
    run = Run()
    run.idle_until(60)
    run.feed(lc.Judged(verdict(idle=150)), 150)
    assert [a.warning.lead for a in run.did(lc.Warn)] == [40 * SECOND, 10 * SECOND]
    run.feed(lc.Judged(verdict(idle=159)), 159)
    assert not run.did(lc.AskToSave)
    run.feed(lc.Judged(verdict(idle=160)), 160)
    assert run.life.phase is Phase.SAVING


def test_a_tighter_policy_never_brings_the_deadline_nearer_than_the_first_lead() -> None:
    p = policy(idle_timeout=1000)
    before = next_deadline(verdict(idle=300), p, T0, (), None, None, at(300))
    assert before is not None and before.at == at(1000)
    tight = policy(idle_timeout=100)
    after = next_deadline(verdict(idle=300), tight, T0, (), None, None, at(300))
    assert after is not None and after.at == at(340)


def test_the_deadline_of_a_kept_kernel_says_who_keeps_it() -> None:
    due = next_deadline(verdict(idle=90), policy(), T0, (), at(500).at, None, at(90), "ada")
    assert due is not None and due.at == at(500)
    assert due.reason.code == "kept"
    assert dict(due.reason.params)["owner"] == "ada"
    assert due.reason.text.endswith(" by ada")


def test_keeping_moves_the_deadline_and_the_warnings_come_again() -> None:
    run = Run()
    run.idle_until(95)
    run.feed(lc.Kept(at(400).at, "ada"))
    assert run.life.phase is Phase.IDLE
    run.idle_until(355)
    assert len(run.did(lc.Warn)) == 2, "the two from before"
    run.idle_until(395)
    assert len(run.did(lc.Warn)) == 4
    assert not run.did(lc.AskToSave)
    run.idle_until(405)
    assert run.life.phase is Phase.SAVING


def test_keeping_never_shortens_what_was_kept_longer() -> None:
    run = Run()
    run.feed(lc.Kept(at(5000).at, "ada"))
    run.feed(lc.Kept(at(100).at, "bob"))
    assert run.life.keep_until == at(5000).at
    assert run.life.keep_owner == "ada"


def test_keeping_ends_a_save_under_way() -> None:
    run = Run().saving()
    run.feed(lc.Kept(at(400).at, "ada"))
    assert run.life.phase is Phase.IDLE


def test_taking_an_extension_back_gives_the_full_first_lead() -> None:
    run = Run()
    run.idle_until(50)
    run.feed(lc.Kept(at(4000).at, "ada"))
    run.idle_until(1000)
    run.feed(lc.KeepEnded())
    run.idle_until(1039)
    assert not run.did(lc.AskToSave)
    run.idle_until(1050)
    assert run.life.phase is Phase.SAVING


@pytest.mark.parametrize("mode", ["observe", "warn"])
def test_only_enforce_acts(mode: str) -> None:
    run = Run(policy(mode=mode))
    run.idle_until(2000)
    assert not run.did(lc.AskToSave)
    assert not run.did(lc.EndKernel)
    wanted = ["would_warn", "would_cull"] if mode == "observe" else ["warned", "warned", "would_cull"]
    assert run.recorded() == wanted


def test_observe_tells_nobody() -> None:
    run = Run(policy(mode="observe"))
    run.idle_until(2000)
    assert not run.did(lc.Warn)
    assert run.life.phase is Phase.IDLE


def test_out_of_scope_is_left_alone() -> None:
    run = Run()
    for t in range(0, 1000, 5):
        run.feed(lc.Judged(verdict(idle=t, holds_gpu=False)), t)
    assert run.actions == []


def test_scope_all_takes_a_kernel_without_a_gpu() -> None:
    run = Run(policy(scope="all"))
    for t in range(0, 105, 5):
        run.feed(lc.Judged(verdict(idle=t, holds_gpu=False)), t)
    assert run.life.phase is Phase.SAVING


def test_zero_timeout_is_never() -> None:
    run = Run(policy(idle_timeout=0))
    run.idle_until(100_000, step=1000)
    assert run.actions == []


def test_warm_up_and_first_lead_come_first() -> None:
    due = next_deadline(verdict(idle=100), policy(warm_up=90), at(50), (), None, None, at(100))
    assert due is not None
    assert due.at == at(50 + 90 + 40)
    assert due.reason.code == "warm_up"


def test_after_a_long_run_it_may_rest_longer() -> None:
    p = policy(after_run_factor=0.5, after_run_max=3600)
    v = verdict(idle=10, last_run=timedelta(seconds=1000))
    due = next_deadline(v, p, T0, (), None, None, at(10))
    assert due is not None and due.at == at(500) and due.reason.code == "after_run"
    v = verdict(idle=10, last_run=timedelta(days=3))
    due = next_deadline(v, p, T0, (), None, None, at(10))
    assert due is not None and due.at == at(3600)


@pytest.mark.parametrize("kind", [ACTIVE, UNKNOWN, IDLE, STALLED])
def test_maximum_runtime_ends_whatever_the_verdict_but_warns_alike(kind: VerdictKind) -> None:
    run = Run(policy(max_runtime=200, idle_timeout=0, warn_before=[40, 10]))
    for t in range(5, 300, 5):
        held = timedelta(seconds=t)
        run.feed(lc.Judged(verdict(kind, held_for=held)), t)
        if run.life.phase is Phase.SAVING and not run.life.saved:
            run.feed(lc.Saved("saved"))
        if run.life.phase is Phase.CULLING:
            break
    run.feed(lc.Looked(verdict(kind, held_for=timedelta(seconds=run.now))))
    assert run.did(lc.EndKernel)
    assert run.now == 205
    assert [a.warning.lead for a in run.did(lc.Warn) if a.warning.cause is Cause.MAX_RUNTIME] == [
        40 * SECOND,
        10 * SECOND,
    ]
    assert [a.reason.code for a in run.did(lc.Record) if a.action == "save_requested"] == ["max_runtime"]


def test_an_extension_does_not_move_maximum_runtime() -> None:
    run = Run(policy(max_runtime=200, idle_timeout=0))
    run.feed(lc.Judged(verdict(ACTIVE, held_for=timedelta(seconds=165))), 165)
    assert run.life.phase is Phase.WARNED
    run.feed(lc.Kept(at(9000).at, "ada"))
    run.feed(lc.Judged(verdict(ACTIVE, held_for=timedelta(seconds=205))), 205)
    run.feed(lc.Judged(verdict(ACTIVE, held_for=timedelta(seconds=215))), 215)
    assert run.life.phase is Phase.SAVING


# --- stuck kernels ---


def test_a_stuck_kernel_is_told_once_and_not_ended_unless_the_policy_says_so() -> None:
    run = Run(policy(stalled_timeout=50))
    for t in range(5, 50_000, 500):
        run.feed(lc.Judged(verdict(STALLED, stalled_for=timedelta(seconds=t))), t)
    assert run.recorded() == ["warned"]
    assert run.life.phase is Phase.IDLE


def test_a_stuck_kernel_is_ended_where_the_policy_says_so() -> None:
    run = Run(policy(stalled_timeout=50, cull_stalled=True, cull_stalled_after=300))
    for t in range(5, 310, 5):
        run.feed(lc.Judged(verdict(STALLED, stalled_for=timedelta(seconds=t))), t)
    assert run.life.phase is Phase.SAVING
    assert run.life.cause is Cause.STALLED


# --- saving ---


def test_a_failed_save_postpones_with_back_off() -> None:
    run = Run(policy(idle_timeout=7200, warn_before=[3600], after_run_factor=0))
    waits = []
    t = 7200.0
    run.feed(lc.Judged(verdict(idle=3700)), 3700)
    for _ in range(6):
        while run.life.phase is not Phase.SAVING:
            run.feed(lc.Judged(verdict(idle=t)), t)
            t += 30
        asked = run.now
        run.feed(lc.Saved("failed", because("save_failed", path="a", error="no")))
        assert run.life.not_before is not None
        waits.append(run.life.not_before.since(at(asked)).total_seconds() / 60)
        assert not run.did(lc.EndKernel)
    assert waits == [5, 10, 20, 40, 60, 60]


def test_after_postpone_max_a_verified_copy_is_enough_and_not_before() -> None:
    run = Run(policy(postpone_max=1000))
    run.saving().feed(lc.Saved("recovered", because("save_failed", path="a", error="no")))
    assert run.life.phase is Phase.WARNED, "the copy alone doesn't end the postponing"
    run.life = replace(run.life, first_failure=at(-2000))
    run.idle_until(run.now + 400)
    assert run.life.phase is Phase.SAVING
    run.feed(lc.Saved("recovered", because("save_failed", path="a", error="no")))
    assert run.life.saved


def test_recovery_copy_takes_a_verified_copy_at_once_but_no_failure() -> None:
    run = Run(policy(on_save_failure="recovery-copy")).saving()
    run.feed(lc.Saved("failed", because("save_failed", path="a", error="no")))
    assert run.life.phase is Phase.WARNED
    run.idle_until(run.now + 200)
    run.feed(lc.Saved("recovered", because("save_failed", path="a", error="no")))
    assert run.life.saved


def test_never_is_never() -> None:
    run = Run(policy(on_save_failure="never", postpone_max=0)).saving()
    run.feed(lc.Saved("recovered", because("save_failed", path="a", error="no")))
    assert run.life.phase is Phase.WARNED


def test_a_silent_tab_is_asked_three_times_apart_and_then_keeps_what_it_holds() -> None:
    run = Run(policy(idle_timeout=1000, warn_before=[400], window=100))
    asked = []
    t = 600.0
    while not run.life.saved:
        run.feed(lc.Judged(verdict(idle=t)), t)
        if run.life.phase is Phase.SAVING and not run.life.saved:
            asked.append(t)
            run.feed(lc.Saved("silent", because("save_unanswered", count=1)))
        t += 10
    assert len(asked) == 3
    assert all(b - a >= 300 for a, b in itertools.pairwise(asked))


def test_a_persons_request_acts_in_every_mode_and_ignores_the_verdict() -> None:
    run = Run(policy(mode="observe"))
    run.feed(lc.Judged(verdict(ACTIVE)), 5)
    run.feed(lc.Asked("ada", save=True))
    assert run.did(lc.AskToSave)
    run.feed(lc.Saved("saved"))
    run.feed(lc.Judged(verdict(ACTIVE)), 10)
    assert run.life.phase is Phase.CULLING


def test_a_persons_request_whose_save_fails_ends_nothing() -> None:
    run = Run()
    run.feed(lc.Asked("ada", save=True))
    run.feed(lc.Saved("failed", because("save_failed", path="a", error="no")))
    assert run.life.phase is Phase.IDLE
    assert run.recorded()[-1] == "save_failed"


def test_without_saving_it_goes_straight_to_the_end() -> None:
    run = Run()
    run.feed(lc.Asked("ada", save=False))
    assert run.life.phase is Phase.CULLING


def test_a_hold_stops_the_policy_but_not_the_look() -> None:
    hold = because("cannot_record", error="disk full")
    run = Run()
    for t in range(5, 500, 5):
        run.feed(lc.Judged(verdict(idle=t), hold), t)
    assert run.life.phase is Phase.WARNED
    run.feed(lc.Judged(verdict(idle=505)), 505)
    assert run.life.phase is Phase.SAVING


def test_a_failed_shutdown_is_tried_again_with_back_off() -> None:
    run = Run().saving()
    run.feed(lc.Saved("saved"))
    run.end(105)
    run.feed(lc.Culled(because("survivors", count=1)))
    assert run.life.phase is Phase.FAILED
    run.feed(lc.Judged(verdict(idle=150)), 150)
    assert run.life.phase is Phase.FAILED
    run.feed(lc.Judged(verdict(idle=170)), 170)
    assert run.life.phase is Phase.SAVING, "what was saved for the first try is old"
    run.feed(lc.Saved("saved"))
    run.end(175)
    assert len(run.did(lc.EndKernel)) == 2


def test_a_restart_begins_anew() -> None:
    run = Run()
    run.idle_until(95)
    run.feed(lc.Restarted())
    assert run.life.phase is Phase.ACTIVE
    assert run.life.started == at(95)


def test_a_loosened_mode_ends_a_warning() -> None:
    run = Run()
    run.idle_until(95)
    run.policy = policy(mode="observe")
    run.feed(lc.Judged(verdict(idle=100)), 100)
    assert run.life.phase is Phase.IDLE
    assert run.life.warnings == ()


def test_too_few_samples_are_no_evidence() -> None:
    run = Run()
    for t in range(5, 300, 5):
        run.feed(lc.Judged(verdict(idle=t, good_samples=2)), t)
    assert not run.did(lc.AskToSave)


def test_what_the_table_does_not_list_is_refused() -> None:
    run = Run()
    with pytest.raises(ValueError, match="Culled cannot happen"):
        run.feed(lc.Culled(None))
    run.life = replace(run.life, phase=Phase.CULLED)
    with pytest.raises(ValueError, match="culled"):
        run.feed(lc.Touched(because("executing", since="now")))


# --- the last look, and what comes between ---


def culling(p: Policy | None = None) -> Run:
    """A kernel that was saved and is to be looked at for the last time."""
    run = Run(p).saving()
    run.feed(lc.Saved("saved"))
    run.feed(lc.Judged(verdict(idle=105)), 105)
    assert run.life.phase is Phase.CULLING
    return run


@pytest.mark.parametrize(
    "event",
    [
        lc.Touched(because("executing", since="now")),
        lc.Touched(because("present", at="now")),
        lc.Kept(at(900).at, "ada"),
        lc.Restarted(),
        lc.Looked(verdict(ACTIVE)),
        lc.Looked(verdict(UNKNOWN, idle=105)),
        lc.Looked(verdict(idle=1, idle_since=at(104).at)),
        lc.Looked(verdict(idle=105), because("cannot_record", error="full")),
    ],
)
def test_until_the_shutdown_begins_anything_stops_it(event: lc.Event) -> None:
    run = culling()
    run.feed(event)
    assert run.life.phase in (Phase.ACTIVE, Phase.IDLE, Phase.WARNED)
    assert not run.did(lc.EndKernel)


@pytest.mark.parametrize(
    "event", [lc.Touched(because("executing", since="now")), lc.Kept(at(900).at, "a"), lc.Restarted()]
)
def test_once_it_has_begun_nothing_does(event: lc.Event) -> None:
    run = culling()
    run.feed(lc.Looked(verdict(idle=106)))
    run.feed(event)
    assert run.life.phase is Phase.CULLING
    assert run.life.keep_until is None


def test_the_answer_to_an_older_request_counts_for_nothing() -> None:
    run = Run().saving()
    run.feed(lc.Touched(because("executing", since="now")))
    run.feed(lc.Asked("ada", save=True))
    assert run.life.attempt == 2
    run.feed(lc.Saved("saved", None, attempt=1))
    assert not run.life.saved
    run.feed(lc.Saved("saved", None, attempt=2))
    assert run.life.saved


def test_asking_during_a_save_asks_anew() -> None:
    run = Run().saving()
    run.feed(lc.Asked("ada", save=True))
    assert [a.attempt for a in run.did(lc.AskToSave)] == [1, 2]


@pytest.mark.parametrize("phase", ["saving", "failed"])
@pytest.mark.parametrize("event", [lc.Touched(because("executing", since="now")), lc.Kept(at(900).at, "ada")])
def test_who_asked_and_goes_on_working_has_changed_their_mind(phase: str, event: lc.Event) -> None:
    run = Run()
    run.feed(lc.Asked("ada", save=True))
    if phase == "failed":
        run.feed(lc.Saved("saved"))
        run.feed(lc.Judged(verdict(ACTIVE)), 5)
        run.feed(lc.Looked(verdict(ACTIVE)))
        run.feed(lc.Culled(because("survivors", count=1)))
    run.feed(event)
    assert run.life.phase in (Phase.ACTIVE, Phase.IDLE)
    for t in range(100, 10_000, 100):
        run.feed(lc.Judged(verdict(ACTIVE)), t)
    assert len(run.did(lc.EndKernel)) == (1 if phase == "failed" else 0)


def test_who_asked_and_moves_the_mouse_has_not() -> None:
    run = Run()
    run.feed(lc.Asked("ada", save=True))
    run.feed(lc.Touched(because("present", at="now")))
    assert run.life.phase is Phase.SAVING


@pytest.mark.parametrize("before", ["observe", "warn"])
def test_a_stricter_mode_begins_with_its_first_lead(before: str) -> None:
    run = Run(policy(mode=before))
    run.idle_until(2000)
    run.policy = policy(mode="enforce")
    run.idle_until(2035)
    assert not run.did(lc.AskToSave)
    assert [a.warning.given for a in run.did(lc.Warn) if a.warning.lead == 40 * SECOND][-1] == at(2005)
    run.idle_until(2060)
    assert run.life.phase is Phase.SAVING


def test_where_it_cannot_be_told_whether_a_gpu_is_held_a_warning_stays() -> None:
    run = Run()
    run.idle_until(95)
    warnings = run.life.warnings
    unreadable = verdict(UNKNOWN, idle=95, holds_gpu=Unknown(because("driver_timeout", seconds=5)))
    run.feed(lc.Judged(unreadable), 100)
    assert run.life.phase is Phase.WARNED
    assert run.life.warnings == warnings


def test_maximum_runtime_is_over_when_the_gpu_was_given_back() -> None:
    run = Run(policy(max_runtime=200, idle_timeout=0, scope="all"))
    run.feed(lc.Judged(verdict(ACTIVE, held_for=timedelta(seconds=165))), 165)
    assert run.life.phase is Phase.WARNED
    run.feed(lc.Judged(verdict(ACTIVE, held_for=timedelta(0), holds_gpu=False)), 170)
    assert run.life.phase is Phase.ACTIVE


def test_a_stuck_kernel_keeps_its_notice_on_the_list() -> None:
    run = Run(policy(stalled_timeout=50))
    run.feed(lc.Judged(verdict(STALLED, stalled_for=timedelta(seconds=60))), 60)
    assert [(w.cause, w.lead) for w in run.life.warnings] == [(Cause.STALLED, None)]
    run.feed(lc.Judged(verdict(ACTIVE)), 65)
    assert run.life.warnings == ()


# --- properties ---

KINDS = st.sampled_from([IDLE, ACTIVE, UNKNOWN, STALLED])
EVENTS = st.one_of(
    st.tuples(st.just("judged"), KINDS, st.floats(0, 400)),
    st.tuples(st.just("touched"), st.none(), st.none()),
    st.tuples(st.just("kept"), st.none(), st.floats(1, 500)),
    st.tuples(st.just("asked"), st.booleans(), st.none()),
    st.tuples(
        st.just("saved"),
        st.sampled_from(["saved", "nothing_open", "recovered", "failed", "silent"]),
        st.none(),
    ),
    st.tuples(st.just("looked"), KINDS, st.floats(0, 400)),
    st.tuples(st.just("culled"), st.booleans(), st.none()),
    st.tuples(st.just("restarted"), st.none(), st.none()),
)


def build(event: tuple[str, object, object], now: float) -> lc.Event:
    name, a, b = event
    return {
        "judged": lambda: lc.Judged(verdict(a, idle=b) if isinstance(a, VerdictKind) else verdict()),
        "touched": lambda: lc.Touched(because("executing", since="now")),
        "kept": lambda: lc.Kept(at(now + float(b or 0)).at, "ada"),  # type: ignore[arg-type]
        "asked": lambda: lc.Asked("ada", bool(a)),
        "saved": lambda: lc.Saved(str(a), because("save_failed", path="a", error="no")),
        "looked": lambda: lc.Looked(verdict(a, idle=b) if isinstance(a, VerdictKind) else verdict()),
        "culled": lambda: lc.Culled(because("survivors", count=1) if a else None),
        "restarted": lc.Restarted,
    }[name]()


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(EVENTS, st.floats(0, 60)), max_size=60),
    st.sampled_from(["observe", "warn", "enforce"]),
)
def test_no_road_leads_to_an_unwarned_or_unsaved_end(
    steps: list[tuple[tuple[str, object, object], float]], mode: str
) -> None:
    run = Run(policy(mode=mode))
    for event, pause in steps:
        run.now += pause
        built = build(event, run.now)
        if type(built).__name__ not in lc.TRANSITIONS[run.life.phase]:
            continue
        before = run.life
        actions = run.feed(built)
        by_policy = Cause.USER not in (before.cause, run.life.cause)
        if any(isinstance(a, lc.AskToSave) for a in actions) and by_policy:
            given_ = [w for w in before.warnings if w.given is not None and w.lead is not None]
            assert mode == "enforce"
            assert given_, "a save begins only after a warning"
            assert all(at(run.now).since(w.given) >= w.lead for w in given_)  # type: ignore[arg-type,operator]
        if any(isinstance(a, lc.EndKernel) for a in actions) and run.life.cause is not Cause.USER:
            assert mode == "enforce"
            assert before.saved, "nothing is ended unsaved"
            assert isinstance(built, lc.Looked), "nothing is ended without a last look"
            assert built.verdict.kind is not ACTIVE or run.life.cause is Cause.MAX_RUNTIME
        if before.phase is Phase.CULLED:
            break


@given(KINDS, st.floats(0, 1000), st.floats(0, 1000))
def test_more_idle_time_never_moves_the_deadline_away(kind: VerdictKind, a: float, b: float) -> None:
    less, more = sorted((a, b))
    p = policy()
    first = next_deadline(verdict(kind, idle=less), p, T0, (), None, None, at(2000))
    second = next_deadline(verdict(kind, idle=more), p, T0, (), None, None, at(2000))
    assert (first is None) == (second is None)
    assert first is None or second is None or second.at <= first.at
