"""`%gpu_guard`: in a real kernel of a real server, and what it says where there is no guard."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from jupyter_gpu_guard.kernel.magic import Mistake, Unguarded, answer, describe, seconds_of
from jupyter_gpu_guard.kernel.servers import NoAnswer, Server, ask, servers_in
from tests.edges.answering import REPOSITORY, answering, by_path, kernel, leave_file, reason, says
from tests.server.live import LiveServer

KERNEL = "0a1b2c3d-0000-4000-8000-000000000000"
NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("live")
    options = ("GpuGuard.gpu_source=simulated", "GpuGuard.sample_interval=0.5", "GpuGuard.mode=enforce")
    with LiveServer(folder, *options, env={"PYTHONPATH": str(REPOSITORY), "TZ": "UTC"}) as server:
        server.guard()  # somebody looks, so that the GPUs are read
        yield server


@pytest.fixture(scope="module")
def guarded(live: LiveServer) -> str:
    """A kernel that holds a GPU and has the magic."""
    kernel_id = live.start_kernel("a.ipynb")
    live.until(lambda: live.guard()["telemetry"]["state"] == "ok", 20, "no reading")
    live.run(
        kernel_id, "from jupyter_gpu_guard import SimulatedGpu\ngpu = SimulatedGpu('4GiB', utilization=0.5)"
    )
    live.run(kernel_id, "%load_ext jupyter_gpu_guard")
    live.until(lambda: (live.kernel(kernel_id) or {}).get("gpus"), 20, "the kernel holds no GPU")
    return kernel_id


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process as a kernel of a guarded server whose file is in the folder."""
    for name in ("JUPYTERHUB_API_TOKEN", "JPY_PARENT_PID", "XDG_DATA_HOME", "JUPYTER_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("JUPYTER_GPU_GUARD_KERNEL_ID", KERNEL)
    return tmp_path / "runtime"


# --- in a kernel ---


def test_it_says_the_state_and_what_is_held(live, guarded):
    lines = live.run(guarded, "%gpu_guard").splitlines()
    assert lines[0].startswith("in use: ")
    assert lines[1] == "GPU-simulated-0: 4.0 GiB, 50 % in use"
    assert len(lines) == 2


def test_it_keeps_the_kernel(live, guarded):
    said = live.run(guarded, '%gpu_guard keep 2h "the long evaluation"')
    assert said.startswith("kept until ")
    assert said.rstrip().endswith("22 h of extensions are left")
    until = datetime.fromisoformat(live.kernel(guarded)["keep_alive_until"])
    left = (until - datetime.now(UTC)).total_seconds()
    assert 7000 < left <= 7200
    rows = live.guard(f"history?kernel_id={guarded}")["transitions"]
    assert any(row["reason"]["code"] == "kept" for row in rows)


def test_it_takes_the_extension_back(live, guarded):
    live.run(guarded, "%gpu_guard keep 1h")
    assert live.kernel(guarded)["keep_alive_until"]
    first, second, *_ = live.run(guarded, "%gpu_guard keep off").splitlines()
    assert first == "no longer kept"
    assert second.startswith("in use: ")
    assert live.kernel(guarded)["keep_alive_until"] is None
    assert live.run(guarded, "%gpu_guard keep off").strip() == "this kernel was not kept"


def test_times_are_those_of_the_kernels_own_zone(live, guarded):
    """The server is on UTC."""
    live.run(guarded, "import os, time; os.environ['TZ'] = 'XYZ-5:30'; time.tzset()")
    try:
        said = live.run(guarded, "%gpu_guard keep 1h")
        state = live.run(guarded, "%gpu_guard")
    finally:
        live.run(guarded, "os.environ['TZ'] = 'UTC'; time.tzset()")
        live.run(guarded, "%gpu_guard keep off")
    zone = timezone(timedelta(hours=5, minutes=30))
    expected = {(datetime.now(zone) + timedelta(hours=1, minutes=-m)).strftime("%H:%M XYZ") for m in (0, 1)}
    assert any(f"{at}; " in said for at in expected), said
    assert re.match(r"in use: .* \d\d:\d\d XYZ$", state.splitlines()[0]), state


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("keep 20h", "one extension may last 16 h at most: %gpu_guard keep 16h"),
        ("keep soon", "'soon' is no duration"),
        ("keep", "%gpu_guard keep 2h"),
        ('keep 2h "why', "No closing quotation"),
        ("keep off now", "'off' is no duration"),
        ("stop", "%gpu_guard keep 2h"),
    ],
)
def test_a_refusal_or_a_slip_is_a_usage_error(live, guarded, line, sentence):
    said: list[str] = []

    def hook(message):
        if message["msg_type"] == "stream":
            said.append(message["content"]["text"])

    reply = live.client(guarded).execute_interactive(f"%gpu_guard {line}", timeout=30, output_hook=hook)
    assert reply["content"]["status"] == "error"
    assert "UsageError" in "".join(said)
    assert sentence in "".join(said)


# --- where there is no guard ---


def test_a_kernel_without_a_guard_is_told_so_and_goes_on():
    code = "from jupyter_gpu_guard.kernel.magic import gpu_guard; gpu_guard('keep 2h'); print('on')"
    env = {k: v for k, v in os.environ.items() if not k.startswith("JUPYTER")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**env, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
    )
    first, second = done.stdout.splitlines()
    assert first.startswith("No GPU guard looks after this kernel: it was not started by a Jupyter server")
    assert second == "on"


def test_no_server_is_found(runtime):
    with pytest.raises(
        Unguarded, match=r"\(its Jupyter server was not found on this machine\)\. `jupyter gpu-guard"
    ):
        answer("")


def test_what_the_servers_said_is_told(runtime):
    with answering(says(b"", 403)) as odd:
        leave_file(runtime, odd.url)
        with pytest.raises(Unguarded) as sentence:
            answer("")
    assert f"({odd.url}: it refused the token)" in str(sentence.value)


def unknown_kernel():
    return says({"message": "there is no kernel x", "reason": reason("unknown_kernel")}, 404)


def test_another_server_that_does_not_know_the_kernel_is_passed_over(runtime):
    mine = by_path(
        {f"kernels/{KERNEL}": says(kernel(verdict="active", reason=reason("executing", "a cell runs")))}
    )
    with answering(unknown_kernel()) as other, answering(mine) as own:
        leave_file(runtime, other.url, pid=os.getppid())
        leave_file(runtime, own.url)
        assert answer("status").startswith("in use: a cell runs\nGPU-1: 2.0 GiB, 0 % in use")
    assert own.requests[0][:3] == ("GET", f"/gpu-guard/api/v1/kernels/{KERNEL}", "token secret")


def test_the_server_that_started_the_kernel_is_asked_first(runtime, monkeypatch):
    with answering(unknown_kernel()) as other, answering(says(kernel())) as own:
        leave_file(runtime, other.url, pid=1 if os.getpid() != 1 else os.getppid())
        leave_file(runtime, own.url)
        monkeypatch.setenv("JPY_PARENT_PID", str(os.getpid()))
        answer("")
    assert other.requests == []


def test_keep_sends_seconds_and_reason(runtime):
    kept = {"until": "2026-03-01T14:00:00Z", "remaining_total_seconds": 79200}
    with answering(says(kept, 201)) as own:
        leave_file(runtime, own.url)
        said = answer('keep 1h30m "the long evaluation"')
    assert said.endswith("; 22 h of extensions are left")
    method, path, _, body = own.requests[0]
    assert (method, path) == ("POST", f"/gpu-guard/api/v1/kernels/{KERNEL}/keep-alive")
    assert body == b'{"seconds": 5400.0, "reason": "the long evaluation"}'


@pytest.mark.parametrize(
    ("code", "params", "message", "said"),
    [
        ("keep_alive_off", {}, "they are off",
         "they are off: save what you need in time, or ask whoever runs the server to allow it"),
        ("keep_alive_used_up", {"limit_seconds": 5400.5}, "only 5400 s are left",
         "only 1 h 30 min are left: %gpu_guard keep 1h30m"),
        ("keep_alive_used_up", {"limit_seconds": 0.0}, "only 0 s are left",
         "only 0 s are left: save what you need; a kernel in use is not shut down"),
        ("bad_request", {"key": "reason"}, "reason: expected a text of at most 200 characters",
         "reason: expected a text of at most 200 characters"),
    ],
)  # fmt: skip
def test_a_refusal_of_the_guard_is_the_last_word(runtime, code, params, message, said):
    with answering(says({"message": message, "reason": reason(code, **params)}, 403)) as own:
        leave_file(runtime, own.url)
        with pytest.raises(Mistake) as mistake:
            answer("keep 2h")
    assert str(mistake.value) == said


def test_keep_off_asks_for_nothing_where_nothing_is_kept(runtime):
    with answering(says(kernel())) as own:
        leave_file(runtime, own.url)
        assert answer("keep off") == "this kernel was not kept"
    assert [request[0] for request in own.requests] == ["GET"]


# --- finding servers ---


def test_dead_broken_and_foreign_files_are_passed_over(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    leave_file(tmp_path, "http://127.0.0.1:1/", pid=child.pid)
    (tmp_path / "jpserver-7.json").write_text('{"url": "http://127')
    (tmp_path / "jpserver-8.json").write_text("[]")
    (tmp_path / "jpserver-9.json").write_text('{"url": "http://127.0.0.1:2/"}')
    leave_file(tmp_path, "http://127.0.0.1:3", token="t")
    expected = Server("http://127.0.0.1:3/", "t", os.getpid(), str(tmp_path), own=True)
    assert servers_in([str(tmp_path), str(tmp_path), "/no/such/folder"]) == [expected]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's file")
def test_another_users_file_is_not_trusted(tmp_path):
    os.chown(leave_file(tmp_path, "http://127.0.0.1:3/"), 65534, 65534)
    assert servers_in([str(tmp_path)]) == []


def test_an_address_that_is_none():
    with pytest.raises(NoAnswer, match="cannot be reached"):
        ask(Server("http://127.0.0.1:notaport/", ""), "status")
    with pytest.raises(NoAnswer, match="no web address"):
        ask(Server("file:///etc/", ""), "passwd")


# --- words ---


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("1.5h", 5400),
        ("30m", 1800),
        ("1h30m", 5400),
        ("2d", 172800),
        ("1d2h3m4s", 93784),
    ],
)
def test_durations(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0h", "-1h", "h", "2 h", "1h1d", "nan", "inf", "two", "1h30"])
def test_what_is_no_duration(text):
    with pytest.raises(Mistake, match="is no duration"):
        seconds_of(text)


def test_an_unused_kernel_in_words():
    share = {"uuid": "GPU-1", "memory_bytes": None, "sm_ratio": None}
    said = kernel(
        gpus=[share],
        mode="observe",
        deadline=None,
        reason=reason("idle", "unused for 6900 s: GPU peak 0.4%", seconds=6900.2),
    )
    assert describe(said, NOON).splitlines() == [
        "unused for 1 h 55 min: GPU peak 0.4%",
        "GPU-1: ?, ? in use",
        "observing: nothing will be shut down",
    ]
