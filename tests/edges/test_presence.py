"""People, from what their browsers report."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpu_guard.core.model import Instant
from jupyter_gpu_guard.presence import MAX_CLIENTS, MAX_DOCUMENTS, BadReport, People

BEGIN = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def at(seconds: float) -> Instant:
    return Instant(seconds, BEGIN + timedelta(seconds=seconds))


def doc(path: str = "a.ipynb", kernel_id: str = "k1", dirty: bool = False) -> dict[str, object]:
    return {"path": path, "kernel_id": kernel_id, "dirty": dirty}


def last_input(people: People, kernel_id: str, now: float) -> Instant | None:
    presence = people.for_kernels(at(now)).get(kernel_id)
    return None if presence is None else presence.last_input


def open_at(people: People, kernel_id: str) -> list[str]:
    presence = people.for_kernels(at(10**6)).get(kernel_id)
    return [] if presence is None else [document.client_id for document in presence.open_documents]


def test_an_input_is_dated_back_by_its_age():
    people = People()
    assert people.report("c", [doc()], "k1", 12.5, at(100)) == {"k1"}
    assert last_input(people, "k1", 100) == at(87.5)


def test_an_open_document_alone_is_nobody():
    people = People()
    people.report("c", [doc(dirty=True)], None, None, at(100))
    presence = people.for_kernels(at(100))["k1"]
    assert presence.last_input is None
    (opened,) = presence.open_documents
    assert (opened.client_id, opened.path, opened.kernel_id, opened.dirty) == ("c", "a.ipynb", "k1", True)
    assert opened.reported == at(100)


@pytest.mark.parametrize(("focused", "age"), [("k1", None), (None, 0.0)])
def test_focus_without_input_and_input_elsewhere_are_nobody(focused, age):
    people = People()
    people.report("c", [doc()], focused, age, at(100))
    assert last_input(people, "k1", 100) is None


def test_a_focused_kernel_without_a_document_has_presence_too():
    people = People()
    assert people.report("c", [], "k9", 0, at(5)) == {"k9"}
    assert last_input(people, "k9", 5) == at(5)


@pytest.mark.parametrize(
    ("later", "age", "expected"),
    [
        (60.0, 60.0, 100.0),  # the same input, told again
        (60.0, 58.5, 100.0),  # and the time it travelled
        (60.0, 50.0, 110.0),  # a later one
        (5.0, 0.0, 100.0),  # sent twice: the very same report
        (60.0, 0.0, 160.0),  # a minute later it is a new input
        (60.0, 90.0, 100.0),  # an earlier one takes nothing back
    ],
)
def test_the_same_input_told_again_is_not_a_new_one(later, age, expected):
    people = People()
    people.report("c", [doc()], "k1", 0.0, at(100))
    people.report("c", [doc()], "k1", age, at(100 + later))
    assert last_input(people, "k1", 200) == at(expected)


def test_an_edit_is_presence_at_its_own_kernel():
    people = People()
    people.report("c", [doc(), doc("b.ipynb", "k2")], "k2", 0, at(0))
    changed = people.report("c", [doc(dirty=True), doc("b.ipynb", "k2")], "k2", 50, at(50))
    assert changed == {"k1", "k2"}
    assert last_input(people, "k1", 50) == at(50)
    assert last_input(people, "k2", 50) == at(0)


def test_saving_and_appearing_are_no_edit():
    people = People()
    people.report("c", [doc(dirty=True)], None, None, at(0))
    people.report("c", [doc(), doc("new.ipynb", "k2", dirty=True)], None, None, at(60))
    assert last_input(people, "k1", 60) is None
    assert last_input(people, "k2", 60) is None


def test_a_page_that_is_silent_for_days_is_still_there_until_it_says_good_bye():
    people = People()
    people.report("c", [doc(dirty=True)], "k1", 0, at(0))
    week = 7 * 86400
    assert [d.dirty for d in people.for_kernels(at(week))["k1"].open_documents] == [True]
    assert people.gone("c") == {"k1"}
    assert people.for_kernels(at(week))["k1"].open_documents == ()
    assert last_input(people, "k1", week) == at(0)
    assert people.gone("c") == frozenset()


def test_a_report_replaces_the_one_before():
    people = People()
    people.report("c", [doc(), doc("b.ipynb", "k2")], None, None, at(0))
    assert people.report("c", [doc("b.ipynb", "k2")], None, None, at(1)) == {"k1", "k2"}
    assert open_at(people, "k1") == []
    assert open_at(people, "k2") == ["c"]


def test_one_notebook_in_two_browsers_and_twice_in_one():
    people = People()
    people.report("one", [doc(), doc(dirty=True)], None, None, at(0))
    people.report("two", [doc()], None, None, at(1))
    documents = people.for_kernels(at(1))["k1"].open_documents
    assert [(d.client_id, d.dirty) for d in documents] == [("one", True), ("two", False)]


def test_nobody_is_there_in_the_future_of_an_observation():
    people = People()
    people.report("c", [doc()], "k1", 0, at(100))
    assert last_input(people, "k1", 90) == at(90)


def test_of_too_many_pages_the_longest_silent_goes():
    people = People()
    for number in range(MAX_CLIENTS):
        people.report(f"c{number}", [doc()], None, None, at(number))
    people.report("c0", [doc()], None, None, at(1000))
    people.report("new", [doc()], None, None, at(1001))
    clients = open_at(people, "k1")
    assert len(clients) == MAX_CLIENTS
    assert "c0" in clients
    assert "new" in clients
    assert "c1" not in clients


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("client_id", {"client_id": ""}),
        ("client_id", {"client_id": 7}),
        ("client_id", {"client_id": "c" * 201}),
        ("client_id", {"client_id": "a\nb"}),
        ("documents", {"documents": None}),
        ("documents", {"documents": {"path": "a"}}),
        ("documents", {"documents": [doc()] * (MAX_DOCUMENTS + 1)}),
        ("documents[0]", {"documents": ["a.ipynb"]}),
        ("documents[1].path", {"documents": [doc(), {"kernel_id": "k", "dirty": True}]}),
        ("documents[0].path", {"documents": [doc(path="")]}),
        ("documents[0].path", {"documents": [doc(path="a\0b")]}),
        ("documents[0].path", {"documents": [doc(path="\ud800")]}),
        ("documents[0].path", {"documents": [doc(path="x" * 4097)]}),
        ("documents[0].kernel_id", {"documents": [doc(kernel_id=None)]}),
        ("documents[0].dirty", {"documents": [doc(dirty=1)]}),
        ("documents[0].size", {"documents": [{**doc(), "size": 1}]}),
        ("focused_kernel_id", {"focused_kernel_id": 3}),
        ("focused_kernel_id", {"focused_kernel_id": ""}),
        ("input_age_seconds", {"input_age_seconds": True}),
        ("input_age_seconds", {"input_age_seconds": "3"}),
        ("input_age_seconds", {"input_age_seconds": -1}),
        ("input_age_seconds", {"input_age_seconds": math.nan}),
        ("input_age_seconds", {"input_age_seconds": math.inf}),
        ("input_age_seconds", {"input_age_seconds": 1e12}),
    ],
)
def test_a_wrong_report_names_the_key_and_changes_nothing(key, changes):
    people = People()
    people.report("c", [doc()], "k1", 0, at(0))
    before = people.for_kernels(at(100))
    report = {"client_id": "c", "documents": [], "focused_kernel_id": "k2", "input_age_seconds": 0, **changes}
    with pytest.raises(BadReport) as caught:
        people.report(**report, now=at(100))
    assert caught.value.key == key
    assert str(caught.value) == f"{key}: {caught.value.error}"
    assert people.for_kernels(at(100)) == before


def test_a_path_may_hold_any_letter():
    people = People()
    people.report("c", [doc("Müller/数据\u00a0neu.ipynb")], None, None, at(0))
    assert people.for_kernels(at(0))["k1"].open_documents[0].path == "Müller/数据\u00a0neu.ipynb"


reports = st.tuples(
    st.sampled_from(["c1", "c2"]),
    st.sampled_from(["k1", "k2"]),
    st.one_of(st.none(), st.floats(0, 1000)),
    st.booleans(),
    st.floats(0, 500),
)


@given(st.lists(reports, max_size=30))
def test_the_last_input_never_moves_back_and_is_never_ahead(drawn):
    people, now = People(), 0.0
    before: dict[str, Instant] = {}
    for client, kernel_id, age, dirty, gap in drawn:
        now += gap
        people.report(client, [doc(kernel_id=kernel_id, dirty=dirty)], kernel_id, age, at(now))
        for kernel, presence in people.for_kernels(at(now)).items():
            if presence.last_input is not None:
                assert presence.last_input <= at(now)
                assert kernel not in before or presence.last_input >= before[kernel]
                before[kernel] = presence.last_input


def test_a_page_says_whether_it_can_be_seen():
    people = People()
    assert not people.is_hidden("c")
    people.report("c", [], None, None, at(0), False)
    assert people.is_hidden("c")
    people.report("c", [], None, None, at(1))
    assert not people.is_hidden("c")
    with pytest.raises(BadReport, match="visible: expected true or false"):
        people.report("c", [], None, None, at(2), 0)
