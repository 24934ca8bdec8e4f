"""`jupyter gpu-guard doctor`: each check with a fault that it has to find, and the good case beside it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from jupyter_gpu_guard import nvml_card
from jupyter_gpu_guard.cli import main, read_settings
from jupyter_gpu_guard.doctor import gpu, jupyter, machine, policy_file, servers
from jupyter_gpu_guard.doctor.finding import Finding, Level
from jupyter_gpu_guard.kernel.servers import Server
from tests.edges.answering import REPOSITORY, Odd, answering, by_path, kernel, reason, says, status
from tests.server.live import LiveServer

pytest_plugins = ["tests.standin.fixtures"]

#: A pid that Linux never gives out here: above the limit of most machines and of this test.
NOBODY = 4_194_303


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No server, configuration or token of the user's own. Returns the folder of all that Jupyter keeps."""
    for name in ("JUPYTER_TOKEN", "JUPYTERHUB_API_TOKEN", "JUPYTERHUB_USER", "JUPYTER_PATH"):
        monkeypatch.delenv(name, raising=False)
    for name in ("CONFIG", "DATA", "RUNTIME"):
        monkeypatch.setenv(f"JUPYTER_{name}_DIR", str(tmp_path / name.lower()))
    return tmp_path


def driver_findings() -> list[Finding]:
    return list(gpu.driver(gpu.take_reading("nvml")))


def failed(finding: Finding, found: str, remedy: str) -> None:
    assert (finding.status, found in finding.found, remedy in finding.remedy) == (Level.FAIL, True, True), (
        finding
    )


# --- the driver ---


def test_a_driver_that_can_be_read(standin):
    (finding,) = driver_findings()
    assert (finding.status, finding.found) == (Level.OK, "NVIDIA driver 570.86.15, 2 GPUs")
    assert standin.held_inits == 0  # it let go again


@pytest.mark.parametrize(
    ("code", "found", "remedy"),
    [
        (9, "the NVIDIA kernel driver is not loaded", "modprobe nvidia"),
        (18, "differ in version", "Restart the machine"),
        (4, "refused permission", "access to /dev/nvidia*"),
        (12, "libnvidia-ml.so.1 was not found", "--gpus all"),
        (15, "fallen off the bus", "Xid"),
        (10, "the driver answered", "nvidia-smi"),
    ],
)
def test_a_driver_that_fails(standin, code, found, remedy):
    standin.fail("nvmlInit*", code)
    (finding,) = driver_findings()
    assert finding.name == "driver"
    failed(finding, found, remedy)


def test_a_driver_that_hangs(standin, monkeypatch):
    monkeypatch.setattr(gpu, "PATIENCE", 0.5)
    standin.hang("nvmlDeviceGetCount")
    (finding,) = driver_findings()
    failed(finding, "the driver has not answered", "a driver that hangs needs a restart")


def test_a_card_whose_processes_cannot_be_listed(standin):
    standin.fail("nvmlDeviceGetComputeRunningProcesses", 4, gpu=1)
    good, bad = driver_findings()
    assert (good.status, bad.name) == (Level.OK, "GPU 1")
    failed(bad, "its processes cannot be listed", "access to /dev/nvidia*")


def test_a_card_that_hides_the_use_of_its_processes(standin):
    standin.add_mig(0, 0, gi=1)
    _, hidden = driver_findings()
    assert (hidden.name, hidden.status) == ("GPU 0", Level.WARN)
    assert "use cannot be read on a MIG device" in hidden.found
    assert "other-signals" in hidden.remedy


def test_a_card_that_tells_of_no_process_by_its_nature(standin, tmp_path, monkeypatch):
    monkeypatch.setattr(nvml_card, "WINDOWS_GPU", tmp_path)  # as under WSL
    _, first, second = driver_findings()
    assert (first.name, first.status, second.status) == ("GPU 0", Level.WARN, Level.WARN)
    assert "its processes cannot be listed: this GPU or driver cannot tell" in first.found
    assert "other-signals" in first.remedy


def test_no_gpu_is_no_failure(monkeypatch):
    monkeypatch.setattr(gpu, "gpu_present", lambda: False)
    (finding,) = gpu.driver(gpu.take_reading("auto"))
    assert (finding.status, finding.found) == (Level.WARN, "there is no NVIDIA GPU on this machine")
    assert "--GpuGuard.gpu_source=simulated" in finding.remedy


def test_a_source_that_was_chosen():
    (off,) = gpu.driver(gpu.take_reading("none"))
    (simulated,) = gpu.driver(gpu.take_reading("simulated"))
    assert (off.status, "gpu_source to auto" in off.remedy) == (Level.WARN, True)
    assert (simulated.status, simulated.found) == (Level.OK, "simulated GPUs")


# --- process numbers ---


def numbers(first: bool = False) -> Finding:
    return gpu.pid_namespace(gpu.take_reading("nvml"), first, gpu.is_here)


def test_processes_that_are_not_to_be_seen_from_here(standin):
    standin.add_process(os.getpid(), memory=1 << 30)
    standin.add_process(NOBODY, memory=1 << 30)
    failed(numbers(), "names 1 of 2 processes", "--pid=host")


def test_samples_of_processes_that_are_not_to_be_seen_from_here(standin):
    standin.add_process(os.getpid(), memory=1 << 30, sm=90, sample_pid=NOBODY)
    failed(numbers(), "names 1 of 2 processes", "hostPID")


def test_in_the_first_namespace_foreign_numbers_are_other_peoples(standin):
    standin.add_process(NOBODY, memory=1 << 30)
    assert numbers(first=True).status is Level.OK


def test_processes_that_are_all_here(standin):
    standin.add_process(os.getpid(), memory=1 << 30)
    assert numbers().status is Level.OK


def test_nothing_to_compare_with(standin):
    finding = numbers()
    assert (finding.status, "while a kernel uses the GPU" in finding.remedy) == (Level.WARN, True)


# --- /proc, devices, folders ---


def test_proc_tells_what_is_read_of_kernels():
    assert machine.processes().status is Level.OK


def test_a_proc_that_tells_nothing(tmp_path):
    finding = machine.processes(tmp_path)
    failed(finding, "disk use (io)", "Mount a full /proc")
    for part in ("stat", "status", "fd, maps", "environ"):
        assert f"({part})" in finding.found


def test_devices_that_can_and_cannot_be_opened(tmp_path):
    assert machine.devices(tmp_path).found == f"no {tmp_path}/nvidia*"
    (tmp_path / "nvidia0").touch()
    (tmp_path / "nvidiactl").touch()
    assert machine.devices(tmp_path).found == "2 device files can be opened"
    (tmp_path / "nvidia1").symlink_to(tmp_path / "gone")
    (tmp_path / "nvidia-uvm").mkdir()
    finding = machine.devices(tmp_path)
    failed(finding, "nvidia1 (No such file or directory)", "cgroup")
    assert "nvidia-uvm (Is a directory)" in finding.found
    assert "nvidia0" not in finding.found


def test_a_history_that_can_be_written(tmp_path):
    finding = machine.history(tmp_path / "new" / "history.sqlite")
    assert (finding.status, "on a local disk" in finding.found) == (Level.OK, True)
    assert list(tmp_path.iterdir()) == []  # a doctor changes nothing


def test_a_history_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    finding = machine.history(tmp_path / "file" / "history.sqlite")
    failed(finding, "Not a directory", "until then nothing is shut down")


def test_a_history_on_a_network_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "on_local_disk", lambda path: False)
    finding = machine.history(tmp_path / "history.sqlite")
    assert (finding.status, "local disk" in finding.remedy) == (Level.WARN, True)


def test_a_history_in_memory():
    finding = machine.history(Path(":memory:"))
    assert (finding.status, "outlives the server" in finding.remedy) == (Level.WARN, True)


def test_places_for_recovery_copies(tmp_path):
    (tmp_path / "file").touch()
    good, bad = str(tmp_path / "kept"), str(tmp_path / "file" / "kept")
    (found,) = machine.recovery([good, "beside"], [str(tmp_path)])
    assert (found.status, str(tmp_path / "beside") in found.found) == (Level.OK, True)
    wrong, right = machine.recovery([bad, good], [])
    assert (wrong.status, right.status) == (Level.WARN, Level.OK)
    assert f"{bad}: Not a directory" in wrong.found
    (alone,) = machine.recovery([bad], [])
    failed(alone, "Not a directory", "recovery_dir")


# --- extensions and kernels ---


def enable(config: Path, enabled: bool) -> None:
    folder = config / "jupyter_server_config.d"
    folder.mkdir(parents=True, exist_ok=True)
    content = {"ServerApp": {"jpserver_extensions": {"jupyter_gpu_guard": enabled}}}
    (folder / "guard.json").write_text(json.dumps(content))


@pytest.fixture
def config_alone(alone: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Jupyter's configuration is this folder and no other: in a virtual environment its own goes first."""
    monkeypatch.setattr(jupyter, "jupyter_config_path", lambda: [str(alone / "config")])
    return alone / "config"


def test_the_server_extension_is_enabled(config_alone):
    enable(config_alone, True)
    assert jupyter.server_extension().status is Level.OK


def test_the_server_extension_is_disabled(config_alone):
    enable(config_alone, False)
    failed(jupyter.server_extension(), "is disabled", "jupyter server extension enable jupyter_gpu_guard")


def test_the_server_extension_is_enabled_nowhere(config_alone):
    failed(jupyter.server_extension(), "is enabled nowhere", "jupyter server extension enable")


def test_the_server_extension_cannot_be_loaded(config_alone, monkeypatch):
    enable(config_alone, True)
    monkeypatch.setitem(sys.modules, "jupyter_gpu_guard.app", None)  # as if its import failed
    failed(jupyter.server_extension(), "cannot be loaded", "Install jupyter-gpu-guard again")


def install_lab_extension(data: Path) -> None:
    folder = data / "labextensions" / "jupyter-gpu-guard"
    folder.mkdir(parents=True)
    build = {"load": "static/remoteEntry.js", "extension": "./extension"}
    package = {"name": "jupyter-gpu-guard", "version": "0.1.0", "jupyterlab": {"_build": build}}
    (folder / "package.json").write_text(json.dumps(package))


def test_the_browser_extension(alone, monkeypatch):
    monkeypatch.setattr(jupyter, "jupyter_path", lambda *parts: [str(alone.joinpath("data", *parts))])
    failed(jupyter.lab_extension(), f"is in none of {alone}/data/labextensions", "Install jupyter-gpu-guard")
    install_lab_extension(alone / "data")
    assert jupyter.lab_extension().found == "jupyter-gpu-guard 0.1.0 is enabled"
    labconfig = alone / "config" / "labconfig"
    labconfig.mkdir(parents=True)
    disabled = {"disabledExtensions": {"jupyter-gpu-guard": True}}
    (labconfig / "page_config.json").write_text(json.dumps(disabled))
    failed(jupyter.lab_extension(), "is disabled", "jupyter labextension enable jupyter-gpu-guard")


def add_kernel(alone: Path, name: str, argv: list[str], language: str = "python", **env: str) -> None:
    folder = alone / "data" / "kernels" / name
    folder.mkdir(parents=True)
    spec = {"argv": argv, "language": language, "display_name": name, "env": env}
    (folder / "kernel.json").write_text(json.dumps(spec))


LAUNCH = ["-m", "ipykernel_launcher", "-f", "{connection_file}"]


def test_which_kernels_have_the_kernel_half(alone, monkeypatch):
    # Rather short, but longer than a Python needs that has to be taken from a slow disk by four at a time.
    monkeypatch.setattr(jupyter, "START_SECONDS", 8.0)
    slow = alone / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    add_kernel(alone, "with", [sys.executable, *LAUNCH], PYTHONPATH=str(REPOSITORY))
    add_kernel(alone, "without", [sys.executable, "-I", "-S", *LAUNCH])
    add_kernel(alone, "gone", ["/no/such/python", *LAUNCH])
    add_kernel(alone, "script", ["/opt/start-kernel.sh", "{connection_file}"])
    add_kernel(alone, "slow", [str(slow), *LAUNCH])
    add_kernel(alone, "ir", ["R", "-e", "IRkernel::main()"], language="R")
    found = {finding.name.removeprefix("kernel "): finding for finding in jupyter.kernel_halves()}
    levels = {name: found[name].status for name in ("with", "without", "gone", "script", "slow")}
    assert levels.pop("with") is Level.OK
    assert set(levels.values()) == {Level.WARN}
    assert "ir" not in found
    install = f"{sys.executable} -I -S -m pip install --no-deps jupyter-gpu-guard"
    assert install in found["without"].remedy
    assert "/no/such/python cannot be run: No such file or directory" in found["gone"].found
    assert "starts by a script of its own" in found["script"].found
    assert "did not start within 8 s" in found["slow"].found


@pytest.mark.parametrize(
    ("argv", "python"),
    [
        (["python", *LAUNCH], [sys.executable]),
        (["python3", "-Xfrozen_modules=off", *LAUNCH], [sys.executable, "-Xfrozen_modules=off"]),
        (["/opt/x/bin/python", *LAUNCH], ["/opt/x/bin/python"]),
        (["conda", "run", "-n", "x", "python", *LAUNCH], ["conda", "run", "-n", "x", "python"]),
        (["start.sh", "{connection_file}"], None),
        ([], None),
    ],
)
def test_the_python_of_a_kernel(argv, python):
    assert jupyter.interpreter(argv) == python


# --- configuration ---


def test_the_policy_file(alone):
    file = alone / "policy.toml"
    settings = read_settings(None, [f"--GpuGuard.policy_file={file}"])
    failed(policy_file(settings), "a readable file", "observes only")
    file.write_text('idle_timeout = "-1h"\nmod = "warn"\n')
    finding = policy_file(settings)
    failed(finding, "policy.toml:1: idle_timeout = '-1h'", "Correct it")
    assert "policy.toml:2: mod = 'warn'" in finding.found
    file.write_text('idle_timeout = "1h"\n')
    assert policy_file(settings).found == f"{file} is good"
    assert policy_file(read_settings(None, [])).found == "none is set"


def test_a_wrong_option_is_the_only_finding(capsys):
    assert main(["doctor", "--json", "--GpuGuard.idle_timeout=-1"]) == 1
    (check,) = json.loads(capsys.readouterr().out)["checks"]
    assert (check["name"], check["status"]) == ("configuration", "fail")
    assert "idle_timeout" in check["found"]


# --- running servers ---


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A guard with a wrong policy file, so that it observes."""
    folder = tmp_path_factory.mktemp("live")
    (folder / "policy.toml").write_text('mod = "enforce"\n')
    options = (
        "GpuGuard.gpu_source=simulated",
        "GpuGuard.sample_interval=0.5",
        f"GpuGuard.policy_file={folder}/policy.toml",
    )
    with LiveServer(folder, *options, env={"PYTHONPATH": str(REPOSITORY)}) as server:
        yield server


def about(server: LiveServer | Odd) -> dict[str, Finding]:
    """The findings about a server, by their names."""
    found = servers.running([Server(server.url, getattr(server, "token", "secret"))])
    return {finding.name.replace(server.url, "URL"): finding for finding in found}


def test_a_guard_and_its_policy(live):
    live.until(lambda: not live.guard()["policy"]["valid"], 20, "the policy file is not read")
    found = list(servers.running([Server(live.url, live.token)]))
    assert (found[0].status, "version " in found[0].found) == (Level.OK, True)
    failed(found[1], "mod = 'enforce'", "policy check")


def test_what_keeps_a_server_active(live, monkeypatch):
    monkeypatch.setattr(servers, "LATER", timedelta(seconds=0.5))
    name = "what keeps URL active"
    idle = about(live)[name]
    assert (idle.status, idle.found.startswith("nothing; its last activity was at")) == (Level.OK, True)

    def poll() -> bool:
        live.get("api/contents")  # counts as activity, as a page that asks at intervals does
        return about(live)[name].status is Level.WARN

    live.until(poll, 20, "the requests are not seen")
    polled = about(live)[name]
    assert "a request came at" in polled.found
    assert "disable its other extensions" in polled.remedy

    kernel_id = live.start_kernel("busy.ipynb")
    live.begin(kernel_id, "import time; time.sleep(60)")
    live.until(lambda: (live.kernel(kernel_id) or {}).get("executing"), 20, "the cell does not run")
    assert (
        live.request("POST", f"gpu-guard/api/v1/kernels/{kernel_id}/keep-alive", {"seconds": 600})[0] == 201
    )
    code, terminal = live.request("POST", "api/terminals")
    assert code == 200
    live.until(lambda: live.kernel(kernel_id)["reason"]["code"] == "executing", 20, "the run is not judged")
    busy = about(live)[name]
    assert "kernel busy.ipynb is in use (a cell has been running since" in busy.found
    assert "kernel busy.ipynb is kept" in busy.found
    assert f"terminal {terminal['name']} was used or printed something" in busy.found


def test_looking_keeps_no_server_active(live):
    before = live.get("api/status")["last_activity"]
    about(live)
    assert live.get("api/status")["last_activity"] == before


def test_a_server_without_a_guard():
    with answering(says(b"", 404)) as odd:
        (finding,) = about(odd).values()
    failed(finding, "no guard runs in it", "Restart the server after enabling the extension")


def test_a_server_that_refuses():
    with answering(says(b"", 403)) as odd:
        (finding,) = about(odd).values()
    assert (finding.status, finding.found) == (Level.WARN, "it refused the token")


def test_no_server():
    (finding,) = servers.running([])
    assert (finding.status, finding.found) == (Level.WARN, "none of this user's")


def metrics(held: float | None, **unknown: float) -> bytes:
    name = "jupyter_gpu_guard_unknown_gpu_seconds_total"
    lines = [f'{name}{{reason="{code}"}} {seconds}' for code, seconds in unknown.items()]
    if held is not None:
        lines.append(f"jupyter_gpu_guard_held_gpu_seconds_total {held}")
    return "\n".join([*lines, ""]).encode()


QUIET = {
    "last_activity": "2026-03-01T10:00:00Z",
    "started": "2026-03-01T09:00:00Z",
    "kernels": 0,
    "connections": 0,
}


def judged(exported: bytes, *kernels: dict[str, object], **changes: object) -> Finding:
    answers = {
        "gpu-guard/api/v1/status": says(status(*kernels, **changes)),
        "api/status": says(QUIET),
        "api/kernels": says([]),
        "metrics": says(exported),
    }
    with answering(by_path(answers)) as odd:
        return about(odd)["judged GPU time of URL"]


@pytest.mark.parametrize(
    ("exported", "level", "found"),
    [
        (metrics(36000.0, pid_namespace=3000.0, gpu_lost=600.0), Level.WARN,
         "90 % of 10 h; could not be judged: 1 h, most of it for pid_namespace"),
        (metrics(36000.0, driver_timeout=360.0), Level.OK,
         "99 % of 10 h; could not be judged: 6 min, most of it for driver_timeout"),
        (metrics(7200.0), Level.OK, "100 % of 2 h"),
        (metrics(0.0), Level.OK, "no kernel has held a GPU yet"),
        (metrics(None), Level.OK, "all of it"),
        (metrics(None, gpu_lost=60.0), Level.WARN, "not all of it; could not be judged: 60 s, most of it for gpu_lost"),
    ],
)  # fmt: skip
def test_the_share_of_gpu_time_that_is_judged(exported, level, found):
    finding = judged(exported)
    assert (finding.status, finding.found) == (level, found)


def test_a_kernel_that_cannot_be_judged_now():
    lost = reason("gpu_lost", "the GPU has fallen off the bus")
    finding = judged(
        metrics(7200.0),
        kernel(verdict="unknown", reason=lost),
        kernel(verdict="unknown", holds_gpu=False),
        kernel(),
    )
    assert finding.status is Level.WARN
    assert (
        finding.found
        == "100 % of 2 h; cannot be judged now: work/train.ipynb (the GPU has fallen off the bus)"
    )


def test_a_guard_that_holds_back_says_why():
    answers = {
        "gpu-guard/api/v1/status": says(
            status(hold=reason("cannot_record", "the history cannot be written"))
        ),
        "api/status": says(b"no JSON"),
    }
    with answering(by_path(answers)) as odd:
        _, hold, unexpected = servers.running([Server(odd.url, "")])
    failed(hold, "the history cannot be written", "Make the history writable")
    assert (unexpected.status, "something unexpected" in unexpected.found) == (Level.WARN, True)


def test_a_terminal_that_uses_a_gpu_is_named():
    terminal = {"name": "3", "last_activity": None, "gpus": [{"sm_ratio": 0.4}, {"sm_ratio": None}]}
    answers = {
        "gpu-guard/api/v1/status": says(status(terminals=[terminal])),
        "api/status": says(QUIET),
        "api/kernels": says([{"connections": 1, "last_activity": "2026-03-01T10:00:00Z"}]),
        "api/terminals": says([{"name": "3", "last_activity": "2026-03-01T10:00:00Z"}]),
        "metrics": says(metrics(0.0)),
    }
    with answering(by_path(answers)) as odd:
        found = about(odd)["what keeps URL active"].found
    assert found.startswith("terminal 3 uses a GPU; 1 kernels have an open page")


# --- the whole ---


def test_everything_at_once(live, monkeypatch, capsys):
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(live.folder / "runtime"))
    code = main(["doctor", "--json", "--GpuGuard.gpu_source=simulated"])
    checks = json.loads(capsys.readouterr().out)["checks"]
    names = [check["name"] for check in checks]
    for part in ("driver", "process numbers", "/proc", "GPU devices", "server extension", "browser extension",
                 "configuration", "policy file", "history", "recovery copies", f"guard in {live.url}"):  # fmt: skip
        assert part in names
    assert any(name.startswith("kernel ") for name in names)
    assert [check for check in checks if not check["remedy"].endswith(".")] == []
    assert {check["status"] for check in checks} <= {"ok", "warn", "fail"}
    assert "fail" in {check["status"] for check in checks}  # the policy file of that server
    assert code == 1
    recovery = next(check for check in checks if check["name"] == "recovery copies")
    assert str(live.root / "gpu_guard_recovery") in recovery["found"]


def test_a_warning_is_no_failure_and_comes_with_its_remedy(alone, monkeypatch, capsys):
    enable(alone / "config", True)
    install_lab_extension(alone / "data")
    assert main(["doctor", "--GpuGuard.gpu_source=simulated", "--GpuGuard.history_path=:memory:"]) == 0
    said = capsys.readouterr().out
    assert "warn  history: kept in memory only\n      Set GpuGuard.history_path to a file" in said
    assert "ok    driver: simulated GPUs\n" in said
