"""REST, on a real server: what each route gives. What it refuses: test_rest_refusals."""

from __future__ import annotations

import getpass
import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.server.gpu_server import GIB, GpuServer
from tests.server.rest_calls import call, refused, rest_server, standing, unused_kernel
from tests.server.wire_schemas import NAMES, check, load


@pytest.fixture(scope="module")
def server(make_server: Callable[..., GpuServer]) -> GpuServer:
    return rest_server(make_server, "GpuGuard.on_save_failure=recovery-copy")


@pytest.fixture(scope="module")
def kernel_id(server: GpuServer) -> str:
    return unused_kernel(server, "one.ipynb")


@pytest.mark.parametrize("name", NAMES)
def test_each_schema_is_one(name: str) -> None:
    Draft202012Validator.check_schema(load(name))
    assert load(name)["title"]


def test_the_status(server: GpuServer, kernel_id: str) -> None:
    body = server.until(lambda: body if (body := server.guard())["gpus"] else None, 10, "no GPU is shown")
    check("status", body)
    assert (body["mode"], body["gpu_source"], body["simulated"]) == ("enforce", "nvml", False)
    assert body["telemetry"]["state"] == "ok"
    assert body["policy"] == {"valid": True, "hash": None, "error": None}
    assert [gpu["memory_used_bytes"] for gpu in body["gpus"]] == [3 * GIB, 0]
    assert body["gpus"][0]["memory_total_bytes"] == 80 * GIB
    assert body["limits"]["keep_alive_max_seconds"] > 0
    (kernel,) = [k for k in body["kernels"] if k["kernel_id"] == kernel_id]
    assert kernel["notebooks"] == ["one.ipynb"]
    (share,) = kernel["gpus"]
    assert (share["memory_bytes"], share["attribution"], share["sm_ratio"]) == (3 * GIB, "kernel", 0.0)


def test_a_kernel_and_its_transitions(server: GpuServer, kernel_id: str) -> None:
    code, body = call(server, "GET", f"kernels/{kernel_id}")
    assert code == 200
    check("kernel", body)
    assert (body["kernel_id"], body["name"], body["holds_gpu"]) == (kernel_id, "python3", True)
    assert isinstance(body["transitions"], list)


def test_an_extension_is_given_and_taken_back(server: GpuServer, kernel_id: str) -> None:
    code, body = call(server, "POST", f"kernels/{kernel_id}/keep-alive", {"seconds": 600, "reason": "tea"})
    assert code == 201
    check("keep_alive", body)
    assert server.kernel(kernel_id)["keep_alive_until"] == body["until"]
    (row, *_) = server.guard(f"history?kernel_id={kernel_id}")["transitions"]
    assert (row["action"], row["reason"]["params"]["note"]) == ("keep_alive", "tea")
    assert call(server, "DELETE", f"kernels/{kernel_id}/keep-alive") == (204, None)
    assert server.kernel(kernel_id)["keep_alive_until"] is None


@pytest.mark.parametrize("seconds", [10**9, 10**300, 10**400, 1e308])
def test_an_extension_over_the_limit_is_refused_with_the_limit(
    server: GpuServer, kernel_id: str, seconds: float
) -> None:
    before = standing(server, kernel_id)
    reason = refused(call(server, "POST", f"kernels/{kernel_id}/keep-alive", {"seconds": seconds}), 403)
    limit = server.kernel(kernel_id)["keep_alive_max_seconds"]
    assert (reason["code"], reason["params"]) == ("keep_alive_too_long", {"limit_seconds": limit})
    assert standing(server, kernel_id) == before


def test_a_report_is_shown_until_the_page_goes(server: GpuServer, kernel_id: str) -> None:
    document = {"path": "one.ipynb", "kernel_id": kernel_id, "dirty": True}
    report = {"documents": [document], "focused_kernel_id": kernel_id, "input_age_seconds": 1.5}
    assert call(server, "POST", "clients/page-1", report) == (204, None)
    shown = [{"path": "one.ipynb", "dirty": True, "client_id": "page-1"}]
    assert server.kernel(kernel_id)["documents"] == shown
    assert call(server, "DELETE", "clients/page-1") == (204, None)
    server.until(lambda: server.kernel(kernel_id)["documents"] == [], 5, "the page does not go")
    assert call(server, "DELETE", "clients/never-seen") == (204, None)


def test_policies_say_where_each_value_comes_from(server: GpuServer, kernel_id: str) -> None:
    code, body = call(server, "GET", "policies")
    assert code == 200
    check("policies", body)
    policy = body["kernels"][kernel_id]
    assert policy["name"] == "default"
    assert policy["values"]["mode"] == "enforce"
    assert policy["values"].keys() == policy["sources"].keys()


@pytest.fixture(scope="module")
def ended(server: GpuServer) -> dict[str, Any]:
    """A kernel that a person ended: one page's document was clean, the other page handed over a copy."""
    kernel_id = unused_kernel(server, "two.ipynb", GIB)
    document = {"path": "two.ipynb", "kernel_id": kernel_id, "dirty": True}
    for page in ("tidy", "lost"):
        assert call(server, "POST", f"clients/{page}", {"documents": [document]}) == (204, None)
    code, body = call(server, "POST", f"kernels/{kernel_id}/cull", {"save": True})
    assert (code, body["state"]) == (202, "saving")
    check("kernel", body)
    seen: dict[str, Any] = {
        "kernel_id": kernel_id,
        "again": call(server, "POST", f"kernels/{kernel_id}/cull"),
    }
    seen["polled"] = {
        page: server.until(
            lambda page=page: server.guard(f"status?client_id={page}")["save_requests"], 5, page
        )
        for page in ("tidy", "lost")
    }
    seen["for_others"] = server.guard("status?client_id=other")["save_requests"]
    nonce = seen["polled"]["tidy"][0]["nonce"]

    def answer(client_id: str, nonce: str = nonce, **said: Any) -> tuple[int, Any]:
        said = {"path": "two.ipynb", **said}
        whole = {"nonce": nonce, "client_id": client_id, "documents": [said]}
        return call(server, "POST", f"kernels/{kernel_id}/saved", whole)

    seen["stranger"] = answer("stranger", outcome="failed")
    seen["elsewhere"] = answer("tidy", outcome="conflict", recovery_path="one.ipynb")
    copy = (server.root / "two.ipynb").read_bytes()
    where = f"kernels/{kernel_id}/copies?client_id=lost&path=two.ipynb"
    seen["copies"] = {
        "old": call(server, "POST", f"{where}&nonce=old", raw=copy),
        "stranger": call(server, "POST", where.replace("=lost", "=stranger") + f"&nonce={nonce}", raw=copy),
        "empty": call(server, "POST", f"{where}&nonce={nonce}", raw=b""),
        "kept": call(server, "POST", f"{where}&nonce={nonce}", raw=copy),
    }
    seen["copy"] = copy
    seen["tidy"] = answer("tidy", outcome="clean", hash=hashlib.sha256(copy).hexdigest())
    seen["lost"] = answer("lost", outcome="conflict", recovery_id=seen["copies"]["kept"][1]["recovery_id"])
    seen["tombstone"] = server.culled(kernel_id)
    seen["late"] = answer("tidy", outcome="failed")
    return seen


def test_who_polls_gets_the_requests_to_that_page(ended: dict[str, Any]) -> None:
    (tidy,), (lost,) = ended["polled"]["tidy"], ended["polled"]["lost"]
    check("save_request", tidy)
    assert (tidy["nonce"], tidy["kernel_id"]) == (lost["nonce"], ended["kernel_id"])
    ((one,), (other,)) = tidy["documents"], lost["documents"]
    assert one["path"] == other["path"] == "two.ipynb"
    assert one["recovery_path"] != other["recovery_path"]
    assert ended["for_others"] == []


def test_answers_that_do_not_fit_are_refused(ended: dict[str, Any]) -> None:
    assert refused(ended["stranger"], 404)["params"] == {"client_id": "stranger"}
    refused(ended["elsewhere"], 400, "documents[0].recovery_path")
    assert refused(ended["copies"]["old"], 409)["code"] == "old_nonce"
    assert refused(ended["copies"]["stranger"], 404)["code"] == "unknown_client"
    assert refused(ended["copies"]["empty"], 507)["code"] == "save_failed"
    assert ended["again"][0] == 202  # it is being saved already


def test_a_kernel_is_ended_as_asked_and_leaves_a_tombstone(server: GpuServer, ended: dict[str, Any]) -> None:
    assert ended["tidy"] == ended["lost"] == (204, None)
    stone = ended["tombstone"]
    check("tombstone", stone)
    assert stone["cause"] == "user"
    assert stone["owner"] == getpass.getuser()  # Jupyter makes up a new name for each use of a token
    assert {d["client_id"]: d["outcome"] for d in stone["saved"]} == {"tidy": "clean", "lost": "recovered"}
    assert stone["memory_released_bytes"] == GIB
    assert call(server, "GET", f"tombstones/{ended['kernel_id']}") == (200, stone)
    found = server.guard("tombstones?path=two.ipynb&since=2020-01-01T00:00:00Z")
    check("tombstones", found)
    assert found == {"tombstones": [stone]}
    assert server.guard("tombstones?path=one.ipynb") == {"tombstones": []}
    assert server.guard("tombstones?since=2999-01-01T00:00:00%2B01:00") == {"tombstones": []}
    status, _ = ended["late"]
    assert status in (404, 409)  # the kernel may be forgotten by then


def test_a_copy_that_was_handed_over_can_be_fetched(server: GpuServer, ended: dict[str, Any]) -> None:
    code, body = ended["copies"]["kept"]
    assert code == 201
    assert call(server, "GET", f"recovery/{body['recovery_id']}") == (200, json.loads(ended["copy"]))
    refused(call(server, "GET", "recovery/nothing"), 404, "id")


def test_history_is_newest_first_and_bounded(server: GpuServer, ended: dict[str, Any]) -> None:
    body = server.guard(f"history?kernel_id={ended['kernel_id']}")
    check("history", body)
    assert [row["action"] for row in body["transitions"]] == [
        "culled",
        "saved",
        "save_requested",  # asked twice, each time anew
        "save_requested",
    ]
    assert len(server.guard("history?limit=2")["transitions"]) == 2
    assert server.guard("history?since=2999-01-01T00:00:00Z") == {"transitions": []}


def test_nothing_of_it_leaves_a_traceback(server: GpuServer, ended: dict[str, Any]) -> None:
    assert "extension was successfully loaded" in server.tail(100_000)
    assert "Traceback" not in server.tail(100_000)
