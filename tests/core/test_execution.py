"""Busy and idle, paired by the request that they answer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpu_guard.core.execution import OUTPUT, Executions, Message
from jupyter_gpu_guard.core.model import Instant

BEGIN = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def at(seconds: float) -> Instant:
    return Instant(seconds, BEGIN + timedelta(seconds=seconds))


def status(state: str, msg_id: str, parent_kind: str = "execute_request", **more) -> Message:
    return Message("status", parent_kind, msg_id, execution_state=state, **more)


def busy(msg_id: str, **more) -> Message:
    return status("busy", msg_id, **more)


def idle(msg_id: str, **more) -> Message:
    return status("idle", msg_id, **more)


def told(msg_id: str, **more) -> Message:
    return Message("execute_input", "execute_request", msg_id, **more)


def output(msg_id: str, kind: str = "stream", **more) -> Message:
    return Message(kind, "execute_request", msg_id, **more)


def play(*steps: tuple[float, Message], begin: Executions | None = None) -> Executions:
    executions = Executions(settled=True) if begin is None else begin
    for second, message in steps:
        executions = executions.see(message, at(second))
    return executions


def running(executions: Executions, second: float) -> list[str]:
    return [request.msg_id for request in executions.running(at(second))]


def test_a_cell_runs_from_its_busy_to_its_idle():
    begun = play((10, busy("a")), (10, told("a")))
    assert running(begun, 10) == ["a"]
    assert begun.running(at(10))[0].since == at(10)
    assert begun.last_start == at(10)
    ended = play((70, idle("a")), begin=begun)
    assert running(ended, 70) == []
    assert (ended.last_start, ended.last_end, ended.last_seconds) == (at(10), at(70), 60.0)


@pytest.mark.parametrize(
    "kind",
    [
        "create_subshell_request",
        "list_subshell_request",
        "usage_request",
        "comm_msg",
        "comm_open",
        "kernel_info_request",
        "complete_request",
        "inspect_request",
        "history_request",
        "debug_request",
        "interrupt_request",
        "",
    ],
)
def test_what_is_no_execute_request_changes_nothing(kind):
    begun = play((0, busy("a")), (0, told("a")))
    for state in ("busy", "idle", "starting"):
        assert begun.see(status(state, "other", kind), at(3)) is begun
    for message in ("comm_msg", "comm_open", "comm_close", "stream", "display_data"):
        assert begun.see(Message(message, kind, "other"), at(3)) is begun


@pytest.mark.parametrize("kind", sorted(OUTPUT))
def test_output_is_dated_while_the_cell_runs_and_when_its_thread_prints_later(kind):
    shown = play((0, busy("a")), (0, told("a")), (5, output("a", kind)))
    assert shown.last_output == at(5)
    after = play((6, idle("a")), (90, output("a", kind)), begin=shown)
    assert after.last_output == at(90)
    assert running(after, 90) == []
    assert after.last_end == at(6)


@pytest.mark.parametrize("kind", ["clear_output", "comm_msg", "status", "debug_event"])
def test_other_messages_of_a_cell_are_no_output(kind):
    assert play((0, busy("a")), (0, told("a")), (5, output("a", kind))).last_output is None


def test_a_lost_idle_is_closed_by_the_next_cell_and_its_length_is_not_made_up():
    executions = play((0, busy("a")), (0, told("a")), (18000, busy("b")), (18000, told("b")))
    assert running(executions, 18000) == ["b"]
    assert executions.last_end == at(18000)
    assert executions.last_seconds is None
    assert executions.last_start == at(18000)


def test_a_cell_in_a_subshell_does_not_end_the_one_in_the_main_shell():
    both = play((0, busy("a")), (0, told("a")), (5, busy("s", shell="1")), (5, told("s", shell="1")))
    assert running(both, 5) == ["a", "s"]
    assert running(play((6, idle("s", shell="1")), begin=both), 6) == ["a"]


def test_a_short_silent_request_counts_as_nothing():
    asked = play((0, busy("poll")), (0.1, output("poll")))
    assert running(asked, 0.5) == []
    done = play((0.5, idle("poll")), begin=asked)
    assert (done.last_start, done.last_end, done.last_output, done.requests) == (None, None, None, ())


def test_a_long_silent_request_is_work():
    asked = play((0, busy("job")))
    assert running(asked, 1) == ["job"]
    done = play((40, output("job")), (60, idle("job")), begin=asked)
    assert (done.last_output, done.last_end, done.last_seconds) == (at(40), at(60), 60.0)


def test_a_request_without_history_is_as_quiet_as_a_silent_one():
    steps = [(0, busy("q")), (0, told("q", quiet=True)), (0.2, output("q", quiet=True))]
    assert running(play(*steps), 0.3) == []
    done = play(*steps, (0.3, idle("q", quiet=True)), (9, output("q", quiet=True)))
    assert (done.last_end, done.last_output, done.last_start) == (None, None, None)
    assert running(play(*steps), 1.5) == ["q"]


def test_input_waits_until_it_is_answered():
    asked = play((0, busy("a")), (0, told("a"))).ask("a", at(1))
    assert asked.waiting_for_input(at(1))
    assert running(asked, 1) == ["a"]
    answered = asked.answer()
    assert not answered.waiting_for_input(at(2))
    assert answered.ask("a", at(3)).waiting_for_input(at(3))


def test_the_end_of_the_cell_ends_the_waiting():
    asked = play((0, busy("a")), (0, told("a"))).ask("a", at(1))
    ended = play((2, idle("a")), begin=asked)
    assert not ended.waiting_for_input(at(2))
    again = play((3, busy("b")), (3, told("b")), begin=ended)
    assert not again.waiting_for_input(at(3))


def test_a_question_may_arrive_before_the_busy_of_its_cell():
    asked = Executions(settled=True).ask("a", at(0))
    assert not asked.waiting_for_input(at(0))
    assert play((0.1, busy("a")), (0.1, told("a")), begin=asked).waiting_for_input(at(0.1))


def test_work_beside_the_question_is_no_waiting():
    asked = play((0, busy("a")), (0, told("a"))).ask("a", at(1))
    beside = play((2, busy("s", shell="1")), (2, told("s", shell="1")), begin=asked)
    assert not beside.waiting_for_input(at(2))


def test_before_the_watch_stands_output_shows_that_a_cell_runs():
    seen = play((0, output("a")), begin=Executions())
    assert running(seen, 0) == ["a"]
    assert not seen.settled
    ended = play((9, idle("a")), begin=seen)
    assert running(ended, 9) == []
    assert (ended.last_end, ended.last_seconds) == (at(9), None)


def test_before_the_watch_stands_a_question_shows_that_a_cell_runs():
    assert Executions().ask("a", at(0)).waiting_for_input(at(0))


def test_settling_ends_what_was_only_inferred():
    seen = play(
        (0, output("thread")), (1, busy("s", shell="1")), (1, told("s", shell="1")), begin=Executions()
    )
    settled = seen.settle(at(2))
    assert settled.settled
    assert running(settled, 2) == ["s"]
    printed = play((3, output("thread")), begin=settled)
    assert running(printed, 3) == ["s"]
    assert printed.last_output == at(3)


def test_an_idle_whose_busy_was_missed_still_dates_the_end():
    executions = play((5, idle("a")))
    assert (executions.last_end, executions.last_seconds, executions.requests) == (at(5), None, ())
    assert play((5, idle("q", quiet=True))) == Executions(settled=True)


def test_the_end_of_the_process_ends_all():
    executions = play((0, busy("a")), (0, told("a")), (2, busy("s", shell="1"))).ask("a", at(3)).stop(at(30))
    assert executions.requests == ()
    assert not executions.waiting_for_input(at(30))
    assert (executions.last_end, executions.last_seconds) == (at(30), 28.0)


# --- any sequence of messages ---

IDS = ("a", "b", "c", "d")
kinds = st.sampled_from(["busy", "idle", "told", "out"])
steps = st.lists(
    st.tuples(
        st.floats(0, 100, allow_nan=False),
        kinds,
        st.sampled_from(IDS),
        st.booleans(),
    ),
    max_size=40,
)
noise = st.lists(
    st.tuples(
        st.integers(0, 40),
        st.sampled_from(["comm_msg", "kernel_info_request", "usage_request", "create_subshell_request", ""]),
        st.sampled_from(["busy", "idle"]),
        st.sampled_from(IDS),
    ),
    max_size=20,
)
MAKE = {"busy": busy, "idle": idle, "told": told, "out": output}


def sequence(drawn) -> list[tuple[float, Message]]:
    """Steps in the order of time. Ids a and b belong to the main shell, c and d to a subshell."""
    now, result = 0.0, []
    for gap, kind, msg_id, quiet in drawn:
        now += gap
        result.append((now, MAKE[kind](msg_id, shell=None if msg_id in "ab" else "1", quiet=quiet)))
    return result


@given(steps, noise, st.booleans())
def test_foreign_traffic_never_makes_a_difference(drawn, others, settled):
    plain = sequence(drawn)
    mixed = list(plain)
    for place, kind, state, msg_id in sorted(others, reverse=True):
        moment = plain[min(place, len(plain) - 1)][0] if plain else 0.0
        mixed.insert(min(place, len(mixed)), (moment, status(state, msg_id, kind)))
    begin = Executions(settled=settled)
    assert play(*mixed, begin=begin) == play(*plain, begin=begin)


@given(steps, st.booleans())
def test_each_shell_runs_what_was_begun_last_and_nothing_that_has_ended(drawn, settled):
    executions = Executions(settled=settled)
    for second, message in sequence(drawn):
        executions = executions.see(message, at(second))
        ids = [request.msg_id for request in executions.requests]
        assert len(ids) == len(set(ids))
        if message.kind == "status" and message.execution_state == "idle":
            assert message.parent_id not in ids
        if message.kind == "execute_input":
            assert [r.msg_id for r in executions.requests if r.shell == message.shell] == [message.parent_id]
        for moment in (executions.last_start, executions.last_end, executions.last_output):
            assert moment is None or moment <= at(second)
        assert executions.last_seconds is None or executions.last_seconds >= 0
    assert executions.stop(at(10_000)).requests == ()


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), min_size=1, max_size=10), st.integers(0, 1500)
)
def test_of_well_formed_cells_exactly_the_current_one_runs(cells, moment):
    now, timeline, spans = 0, [], []
    for number, (gap, length) in enumerate(cells):
        begin, end = now + gap, now + gap + length
        timeline += [(begin, busy(f"{number}")), (begin, told(f"{number}")), (end, idle(f"{number}"))]
        spans.append((begin, end, f"{number}"))
        now = end
    executions = play(*[step for step in timeline if step[0] <= moment])
    expected = [name for begin, end, name in spans if begin <= moment < end]
    assert running(executions, moment) == expected
    ended = [(begin, end) for begin, end, _ in spans if end <= moment]
    if ended:
        assert executions.last_end == at(ended[-1][1])
        assert executions.last_seconds == ended[-1][1] - ended[-1][0]


def test_a_main_shell_that_owes_its_answer_runs_what_nobody_heard_begin():
    heard = Executions().hear(at(10))
    assert (running(heard, 10.9), running(heard, 11)) == ([], [""])
    assert heard.hear(at(20)).running(at(20))[0].since == at(10)
    assert not heard.waiting_for_input(at(20))
    settled = heard.settle(at(35))
    assert running(settled, 36) == []
    assert (settled.last_start, settled.last_end, settled.last_seconds) == (at(10), at(35), 25.0)


def test_a_main_shell_that_answers_at_once_has_run_nothing():
    settled = Executions().hear(at(10)).settle(at(10.5))
    assert settled == Executions(settled=True)


def test_what_nobody_heard_begin_ends_with_its_idle_and_the_next_counts_anew():
    first = Executions().hear(at(0)).see(idle("a"), at(30))
    assert (first.last_start, first.last_end, first.last_seconds) == (at(0), at(30), 30.0)
    assert (running(first, 30.5), running(first, 31)) == ([], [""])
    told_of = play((30.2, busy("b")), (30.2, told("b")), begin=first)
    assert running(told_of, 40) == ["b"]
    assert told_of.settle(at(50)).last_seconds == 30.0  # "b" has been heard, and ends by its own idle


def test_a_kernel_that_was_never_heard_runs_nothing_that_is_known():
    assert running(Executions(), 1000) == []


def test_what_nobody_heard_begin_ends_with_its_process():
    stopped = Executions().hear(at(0)).stop(at(60))
    assert (running(stopped, 70), stopped.last_end, stopped.last_seconds) == ([], at(60), 60.0)


def test_what_a_subshell_runs_says_nothing_of_the_main_one():
    begun = play((1, busy("s", shell="1")), (1, told("s", shell="1")), begin=Executions().hear(at(0)))
    assert running(begun, 5) == ["s", ""]
