"""The command line: what it finds, says and returns, against a real server and against odd ones."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from jupyter_gpu_guard._version import __version__
from jupyter_gpu_guard.cli import aligned, main
from jupyter_gpu_guard.core.reasons import TEXTS, because
from jupyter_gpu_guard.kernel import words
from tests.edges.answering import REPOSITORY, answering, kernel, leave_file, reason, says, status
from tests.server.live import LiveServer

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No server, configuration or token of the user's own; the zone is UTC. Returns the runtime folder."""
    for name in ("JUPYTER_TOKEN", "JUPYTERHUB_API_TOKEN", "JUPYTERHUB_USER"):
        monkeypatch.delenv(name, raising=False)
    for name in ("CONFIG", "DATA", "RUNTIME"):
        monkeypatch.setenv(f"JUPYTER_{name}_DIR", str(tmp_path / name.lower()))
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    return tmp_path / "runtime"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("live")
    options = ("GpuGuard.gpu_source=simulated", "GpuGuard.sample_interval=0.5")
    with LiveServer(folder, *options, env={"PYTHONPATH": str(REPOSITORY)}) as server:
        server.guard()  # somebody looks, so that the GPUs are read
        yield server


@pytest.fixture
def beside(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> LiveServer:
    """The real server, found by its file."""
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(live.folder / "runtime"))
    return live


def test_it_runs_as_a_program():
    done = subprocess.run(
        [sys.executable, "-m", "jupyter_gpu_guard.cli", "--version"],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == __version__


# --- status against a real server ---


def test_status_shows_a_kernel_and_what_it_holds(beside, capsys):
    kernel_id = beside.start_kernel("train.ipynb")
    code = "from jupyter_gpu_guard import SimulatedGpu\ngpu = SimulatedGpu('4GiB', utilization=0.25)"
    beside.until(lambda: beside.guard()["telemetry"]["state"] == "ok", 20, "no reading")
    beside.run(kernel_id, code)
    beside.until(lambda: beside.kernel(kernel_id)["gpus"], 20, "the kernel holds no GPU")
    assert main(["status"]) == 0
    url, heading, head, row = capsys.readouterr().out.splitlines()
    assert url == beside.url
    assert heading == "  mode observe, simulated GPUs, policy: ok"
    assert head.split() == ["notebook", "use", "GPU", "memory", "GPU", "use", "what", "is", "next"]
    cells = [cell.strip() for cell in row.split("  ") if cell.strip()]
    assert cells == ["train.ipynb", "in use", "4.0 GiB", "25 %", "observing: nothing will be shut down"]


def test_status_as_json_is_the_answer_of_the_server(beside, capsys):
    assert main(["status", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["servers"]
    assert (found["url"], found["error"]) == (beside.url, None)
    assert found["status"]["version"] == __version__
    assert found["status"]["simulated"] is True


def test_a_server_is_asked_by_its_address_with_the_token_of_the_environment(live, monkeypatch, capsys):
    monkeypatch.setenv("JUPYTER_TOKEN", live.token)
    assert main(["status", "--url", live.url.rstrip("/")]) == 0
    assert capsys.readouterr().out.startswith(f"{live.url}\n  mode observe")


def test_a_wrong_token_is_told(live, capsys):
    assert main(["status", "--url", live.url, "--token", "wrong"]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said == [
        live.url,
        "  it refused the token",
        f"Name the token of {live.url} (`jupyter server list` on its machine shows it):",
        f"    JUPYTER_TOKEN=TOKEN jupyter gpu-guard status --url {live.url}",
    ]


# --- status against odd servers ---


def test_without_a_server_it_says_what_to_do(capsys):
    assert main(["status"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "No Jupyter server of yours runs on this machine. Start one with `jupyter lab`, or name one elsewhere:",
        "    JUPYTER_TOKEN=TOKEN jupyter gpu-guard status --url http://HOST:8888/",
    ]
    assert main(["status", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {"servers": []}


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (says(b"<html>", 404), "no guard runs in it"),
        (says(b"<html>login</html>"), "it answered something that is not the guard's"),
        (says([1]), "it answered something that is not the guard's"),
        (says({"status": "ok"}), "it answered something that is not the guard's"),
        (says(status(kernel(deadline=5))), "it answered something that is not the guard's"),
        (says(b"[" * 100_000), "it answered something that is not the guard's"),
        (says({"message": "Forbidden", "reason": None}, 403), "it refused the token"),
        (says(b"", 500), "it answered with the error 500"),
        (says({"message": "the disk is full", "reason": reason("cannot_record")}, 503), "the disk is full"),
        (says(b"", 302, Location="http://hub/login?token=x"), "it sends us to http://hub/login"),
        (lambda handler: handler.wfile.write(b"220 mail\r\n\r\n"), "it does not speak HTTP (BadStatusLine)"),
        (lambda handler: None, "it cannot be reached"),
    ],
)
def test_what_is_no_answer_is_said(alone, capsys, answer, sentence):
    with answering(answer) as odd:
        leave_file(alone, odd.url)
        assert main(["status"]) == 1
    said = capsys.readouterr().out
    assert said.splitlines()[0] == odd.url
    assert sentence in said.splitlines()[1]
    assert odd.requests[0][:3] == ("GET", "/gpu-guard/api/v1/status", "token secret")
    doctor = "`jupyter gpu-guard doctor` says what is in the way." in said
    assert doctor is ("refused" not in sentence)


def test_nobody_listens(alone, capsys):
    with answering(says({})) as odd:
        pass
    leave_file(alone, odd.url)
    assert main(["status"]) == 1
    assert "it cannot be reached (Connection refused)" in capsys.readouterr().out


def test_a_redirect_does_not_take_the_token_elsewhere(alone):
    with answering(says({})) as elsewhere, answering(says(b"", 307, Location=elsewhere.url)) as odd:
        leave_file(alone, odd.url)
        assert main(["status"]) == 1
    assert len(odd.requests) == 1
    assert elsewhere.requests == []


def test_an_answer_that_drips_has_an_end(alone, capsys, monkeypatch):
    monkeypatch.setattr("jupyter_gpu_guard.kernel.servers.PATIENCE", 0.6)

    def drip(handler):
        handler.send_response(200)
        handler.end_headers()
        try:
            for _ in range(200):
                handler.wfile.write(b" ")
                time.sleep(0.1)
        except OSError:
            return

    with answering(drip) as odd:
        leave_file(alone, odd.url)
        assert main(["status"]) == 1
    assert "it did not answer within" in capsys.readouterr().out


def test_no_proxy_stands_before_this_machine(alone, monkeypatch, capsys):
    with answering(says(b"", 500)) as proxy, answering(says(status())) as odd:
        monkeypatch.setenv("http_proxy", proxy.url)
        leave_file(alone, odd.url)
        assert main(["status"]) == 0
    assert proxy.requests == []
    assert "no kernels" in capsys.readouterr().out


def test_behind_a_hub_its_token_opens_the_server(alone, monkeypatch):
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "of-the-hub")
    with answering(says(status())) as odd:
        leave_file(alone, odd.url, token="")
        assert main(["status"]) == 0
    assert odd.requests[0][2] == "token of-the-hub"


def test_a_socket_is_said_to_be_none(alone, capsys):
    leave_file(alone, "http+unix://%2Frun%2Fjupyter.sock/")
    assert main(["status"]) == 1
    assert "a server on a Unix socket cannot be asked" in capsys.readouterr().out


def test_one_server_of_two_is_enough(alone, capsys):
    with answering(says(status(kernel()))) as good, answering(says(b"", 404)) as bad:
        leave_file(alone, good.url)
        leave_file(alone, bad.url, pid=os.getppid())
        assert main(["status"]) == 0
    said = capsys.readouterr().out
    assert f"{bad.url}\n  no guard runs in it" in said
    assert said.splitlines()[-2:] == [
        "One of them alone:",
        f"    jupyter gpu-guard status --url {said.splitlines()[0]}",
    ]
    assert "doctor" not in said


def test_a_server_that_was_named_is_examined_by_its_name(capsys):
    with answering(says(b"", 404)) as bad:
        assert main(["status", "--url", bad.url]) == 1
    assert capsys.readouterr().out.splitlines() == [
        bad.url,
        "  no guard runs in it",
        f"`jupyter gpu-guard doctor --url {bad.url}` says what is in the way.",
    ]


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("localhost:8888", "did you mean http://localhost:8888/ ?"),
        ("http+unix://%2Frun%2Fj.sock", "is no address such as http://127.0.0.1:8888/"),
        ("", "'' is no address"),
    ],
)
def test_what_is_no_address_is_said_to_be_none(url, sentence, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["status", "--url", url])
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


def test_what_is_wrong_in_a_server_stands_above_its_kernels(alone, capsys):
    telemetry = {
        "state": "unavailable",
        "reason": reason("driver_not_loaded", "the NVIDIA kernel driver is not loaded"),
        "last_success": "2026-03-01T11:58:00Z",
    }
    policy = {"valid": False, "hash": None, "error": reason("policy_invalid", "the policy file is wrong")}
    hold = reason("cannot_record", "the history cannot be written")
    answer = status(telemetry=telemetry, policy=policy, hold=hold)
    with answering(says(answer)) as odd:
        leave_file(alone, odd.url)
        assert main(["status"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "  mode enforce, GPU readings: unavailable, policy: wrong",
        "  the NVIDIA kernel driver is not loaded, last read at 11:58 UTC",
        "  the policy file is wrong",
        "  the history cannot be written",
        "  no kernels",
    ]


# --- words ---


@pytest.mark.parametrize(
    ("changes", "use", "outlook"),
    [
        ({}, "unused for 1 h 55 min", "shuts down in 5 min (at 12:05 UTC)"),
        ({"deadline": "2026-03-01T12:01:59Z"}, "unused for 1 h 55 min", "shuts down in 119 s (at 12:01 UTC)"),
        (
            {"deadline": "2026-03-03T13:00:00Z"},
            "unused for 1 h 55 min",
            "shuts down in 2 d 1 h (at 2026-03-03 13:00 UTC)",
        ),
        ({"deadline": "2026-03-01T11:59:59Z"}, "unused for 1 h 55 min", "shuts down any moment"),
        (
            {"verdict": "active", "reason": reason("executing", "a cell has been running since noon")},
            "in use",
            "a cell has been running since noon",
        ),
        (
            {"verdict": "active", "deadline_reason": reason("max_runtime", "too long")},
            "in use",
            "shuts down in 5 min (at 12:05 UTC)",
        ),
        (
            {"verdict": "active", "deadline_source": "cull_idle_timeout"},
            "in use",
            "shuts down in 5 min (at 12:05 UTC, by cull_idle_timeout)",
        ),
        (
            {
                "verdict": "unknown",
                "deadline": None,
                "reason": reason("gpu_lost", "the GPU has fallen off the bus"),
            },
            "can't tell – not counting",
            "the GPU has fallen off the bus",
        ),
        (
            {
                "verdict": "stalled",
                "deadline": None,
                "reason": reason("busy_nothing_moves", "nothing has moved"),
            },
            "stuck?",
            "nothing has moved",
        ),
        (
            {"mode": "observe", "deadline": None},
            "unused for 1 h 55 min",
            "observing: nothing will be shut down",
        ),
        (
            {"mode": "warn", "deadline": None},
            "unused for 1 h 55 min",
            "only warning: nothing will be shut down",
        ),
        (
            {"deadline": None, "deadline_reason": reason("out_of_scope", "the kernel holds no GPU")},
            "unused for 1 h 55 min",
            "the kernel holds no GPU",
        ),
        ({"keep_alive_until": "2026-03-01T14:00:00Z"}, "unused for 1 h 55 min", "kept until 14:00 UTC"),
        ({"state": "saving"}, "unused for 1 h 55 min", "saving, then shuts down"),
        ({"state": "culled"}, "unused for 1 h 55 min", "shut down"),
        (
            {"state": "failed", "state_reason": reason("survivors", "2 processes outlived the shutdown")},
            "unused for 1 h 55 min",
            "could not be shut down: 2 processes outlived the shutdown",
        ),
    ],
)
def test_the_words_of_a_kernel(changes, use, outlook):
    said = kernel(**changes)
    assert (words.use(said), words.outlook(said, NOON)) == (use, outlook)


@pytest.mark.parametrize(
    ("memories", "ratios", "memory", "use"),
    [
        ([2 << 30, 1 << 30], [0.0, 0.5], "3.0 GiB", "50 %"),
        ([2 << 30, None], [0.0, 0.5], "?", "50 %"),
        ([2 << 30, 0], [0.5, None], "2.0 GiB", "?"),
        ([500, 400], [0.001, 0.0], "900 B", "<1 %"),
    ],
)
def test_what_is_unknown_of_one_gpu_is_not_taken_for_nothing(memories, ratios, memory, use):
    shares = [{"memory_bytes": m, "sm_ratio": r} for m, r in zip(memories, ratios, strict=True)]
    said = kernel(gpus=shares)
    assert (words.size(words.memory(said)), words.percent(words.gpu_use(said))) == (memory, use)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "?"), (-3, "0 s"), (119.9, "119 s"), (120, "2 min"), (3599, "59 min"), (3600, "1 h"), (7260, "2 h 1 min"),
     (172799, "47 h 59 min"), (172800, "2 d"), (180000, "2 d 2 h")],
)  # fmt: skip
def test_durations_are_rounded_down(seconds, text):
    assert words.duration(seconds) == text


def test_a_kernel_without_notebook_and_gpu_has_a_row_too(alone, capsys):
    bare = kernel(notebooks=[], gpus=[], holds_gpu=False, deadline=None, mode="observe")
    unknown = kernel(notebooks=["b.ipynb"], gpus=[], holds_gpu=None, deadline=None, mode="observe")
    with answering(says(status(bare, unknown))) as odd:
        leave_file(alone, odd.url)
        main(["status"])
    rows = capsys.readouterr().out.splitlines()[3:]
    assert [row.split()[:2] for row in rows] == [["kernel", "0a1b2c3d"], ["b.ipynb", "unused"]]
    assert [" none " in row for row in rows] == [True, False]
    assert [" ? " in row for row in rows] == [False, True]


BERLIN = "CET-1CEST,M3.5.0,M10.5.0/3"


@pytest.mark.parametrize(
    ("text", "params", "said"),
    [
        ("kernels unused for 7200 s are shut down", {"seconds": 7200.0}, "kernels unused for 2 h are shut down"),
        ("after a run of 65 s it may rest for 5 s", {"run_seconds": 65.2, "seconds": 5},
         "after a run of 65 s it may rest for 5 s"),
        ("a run of 7205 s, then 5 s", {"seconds": 5.0, "run_seconds": 7205.0}, "a run of 2 h, then 5 s"),
        ("runs since 2026-03-01T09:12:44Z", {"since": "2026-03-01T09:12:44Z"}, "runs since 10:12 CET"),
        ("ran until 2026-02-28T09:12:44Z", {"at": "2026-02-28T09:12:44Z"}, "ran until 2026-02-28 10:12 CET"),
        ("expected 2026-03-01T09:12:44Z or so", {"error": "2026-03-01T09:12:44Z or so", "seconds": None},
         "expected 2026-03-01T09:12:44Z or so"),
    ],
)  # fmt: skip
def test_spans_and_times_of_a_reason_are_those_of_people(monkeypatch, text, params, said):
    monkeypatch.setenv("TZ", BERLIN)
    time.tzset()
    assert words.text_of({"code": "x", "params": params, "text": text}, NOON) == said


def test_a_sentence_is_that_of_the_guard_with_its_own_numbers(monkeypatch):
    """What `text_of` looks for is what the guard writes."""
    for code, text in TEXTS.items():
        seconds = dict.fromkeys(re.findall(r"\{(\w*seconds)", text), 3725.4)
        times = dict.fromkeys(re.findall(r"\{(at|since|until)\}", text), "2026-03-01T09:12:44Z")
        said = words.text_of(because(code, **seconds, **times).to_wire(), NOON)
        if len(seconds) + len(times) == len(re.findall(r"\{", text)):
            assert said.count("1 h 2 min") == len(seconds), code
            assert said.count("09:12 UTC") == len(times), code
            assert not re.search(r"\d s\b|T\d", said), code


def test_columns_stand_under_each_other():
    assert aligned([("a", "bb", "c"), ("aaa", "b", "longer")]) == ["a    bb  c", "aaa  b   longer"]


# --- policies ---


def policy_file(tmp_path: Path, text: str) -> str:
    file = tmp_path / "policy.toml"
    file.write_text(text)
    return str(file)


def test_a_good_policy_file(tmp_path, capsys):
    file = policy_file(tmp_path, 'idle_timeout = "3h"\n')
    assert main(["policy", "check", file]) == 0
    assert capsys.readouterr().out == f"{file} is good\n"


def test_every_mistake_of_a_policy_file_is_listed(tmp_path, capsys):
    text = 'idle_timeout = "-1h"\nmod = "warn"\n[[policies]]\nname = "a"\nwindow = true\n'
    assert main(["policy", "check", policy_file(tmp_path, text)]) == 1
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 3
    assert said[0].startswith("policy.toml:1: idle_timeout = '-1h': expected a duration of 0 or more")
    assert said[1] == "policy.toml:2: mod = 'warn': expected a known key: did you mean mode?"
    assert "policy.toml:5" in said[2]
    assert "window = True: expected a duration longer than 0" in said[2]


def test_a_policy_file_is_held_against_the_configuration(tmp_path, capsys):
    file = policy_file(tmp_path, 'idle_timeout = "10m"\n')
    assert main(["policy", "check", file, "--GpuGuard.window=1h"]) == 1
    assert "idle_timeout" in capsys.readouterr().out
    assert main(["policy", "check", file]) == 0


@pytest.mark.parametrize("name", ["missing.toml", "."])
def test_a_policy_file_that_cannot_be_read(tmp_path, capsys, name):
    assert main(["policy", "check", str(tmp_path / name)]) == 1
    assert "policy_file" in capsys.readouterr().out


def explained(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, tuple[object, str]]:
    assert main(["policy", "explain", "--json", *arguments]) == 0
    rows = json.loads(capsys.readouterr().out)["policy"]
    return {row["setting"]: (row["value"], row["source"]) for row in rows}


def test_explain_says_where_each_value_came_from(tmp_path, capsys):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "jupyter_server_config.py").write_text('c.GpuGuard.max_runtime = "12h"\n')
    text = '[[policies]]\nname = "teaching"\nmatch = {path = "teaching/*"}\nidle_timeout = "30m"\n'
    file = policy_file(tmp_path, text)
    rows = explained(capsys, "--policy-file", file, "--path", "teaching/a.ipynb", "--GpuGuard.mode=warn")
    assert rows["policy"][0] == "teaching"
    assert rows["idle_timeout"][0] == "30m"
    assert "teaching" in rows["idle_timeout"][1]
    assert rows["mode"] == ("warn", "command line or config")
    assert rows["max_runtime"] == ("12h", "command line or config")
    assert rows["keep_alive_max"] == ("16h", "default")
    elsewhere = explained(capsys, "--policy-file", file, "--path", "a.ipynb")
    assert elsewhere["idle_timeout"] == ("2h", "default")


def test_explain_reads_the_extensions_own_file_and_a_named_one(tmp_path, capsys):
    (tmp_path / "config").mkdir()
    own = tmp_path / "config" / "jupyter_jupyter_gpu_guard_config.py"
    own.write_text('c.GpuGuard.mode = "enforce"\n')
    assert explained(capsys)["mode"][0] == "enforce"
    named = tmp_path / "other.py"
    named.write_text('c.GpuGuard.idle_timeout = "9h"\n')
    assert explained(capsys, "--config", str(named))["idle_timeout"][0] == "9h"


def test_explain_as_a_table(capsys):
    assert main(["policy", "explain", "--kernel-name", "python3"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["idle_timeout", "2h", "default"] in rows
    assert ["cull_stalled", "false", "default"] in rows


def test_explain_with_a_wrong_policy_file_says_what_holds_instead(tmp_path, capsys):
    file = policy_file(tmp_path, "mode = 3\n")
    assert main(["policy", "explain", "--policy-file", file, "--GpuGuard.mode=enforce"]) == 1
    captured = capsys.readouterr()
    assert "the policy file is not in force: policy.toml:1: mode = 3" in captured.err
    assert ["mode", "observe"] in [line.split()[:2] for line in captured.out.splitlines()]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--GpuGuard.idle_timeout=-1"], "idle_timeout = "),
        (["--GpuGuard.idle_timeot=1h"], "did you mean idle_timeout?"),
        (["--config", "/no/such/file.py"], "--config = '/no/such/file.py': expected a configuration file"),
    ],
)
def test_a_wrong_configuration_is_one_line(capsys, arguments, sentence):
    assert main(["policy", "explain", *arguments]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert sentence in line


def test_a_configuration_that_breaks_is_one_line(tmp_path, capsys):
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0\n")
    assert main(["policy", "explain", "--config", str(broken)]) == 1
    assert "division by zero" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["policy"],
        ["policy", "check"],
        ["status", "--GpuGuard.mode=warn"],
        ["policy", "explain", "--nonsense"],
        ["policy", "explain", "--GpuGuard.mode"],
    ],
)
def test_a_wrong_argument_ends_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "jupyter gpu-guard" in capsys.readouterr().err
