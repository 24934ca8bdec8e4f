"""scripts/lab: its help, and one line for each wrong option, before anything is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.edges.answering import REPOSITORY

LAB = REPOSITORY / "scripts" / "lab"
#: The check that needs JupyterLab, without the set-up that comes before it.
CHECK = r"""source <(sed -n '/^check_options() {/,/^}/p' "$0"); check_options "$@" """


def run(*command: str | Path, cwd: Path = REPOSITORY) -> tuple[int, str, str]:
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("script", ["lab", "test"])
def test_help_is_there_wherever_it_is_called_from(script):
    code, said, errors = run(f"./{script}", "--help", cwd=REPOSITORY / "scripts")
    assert (code, errors) == (0, "")
    assert f"  scripts/{script} " in said
    assert "set -euo" not in said


@pytest.mark.parametrize(
    "arguments",
    [["--port", "abc"], ["--port"], ["--port=0"], ["--port=65536"], ["--port=-1"], ["--ServerApp.port=x"]],
)
def test_a_port_that_is_none_is_one_line(arguments):
    code, said, errors = run(LAB, *arguments)
    port = arguments[0].partition("=")[2] or "".join(arguments[1:])
    assert (code, said) == (1, "")
    assert errors.strip() == f"lab: --port '{port}': expected a number from 1 to 65535"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--nonsense"], "unknown option '--nonsense'"),
        (["--no-browser", "--nonsense=3"], "unknown option '--nonsense=3'"),
        (["-x"], "unknown option '-x'"),
        (["mine.ipynb"], "'mine.ipynb' is no option: what is opened is a copy of the demo"),
        (["--browser"], "'--browser' needs a value: --browser=VALUE"),
        (["--browser", "--debug"], "'--browser' needs a value: --browser=VALUE"),
        (["--no-browser", "--debug", "--browser", "firefox", "--GpuGuard.mode=warn", "--ip=::1"], ""),
        ([], ""),
    ],
)
def test_an_option_that_jupyter_lab_does_not_know_is_one_line(arguments, error):
    code, said, errors = run("bash", "-c", CHECK, LAB, *arguments)
    assert (code, said, errors.strip()) == (int(bool(error)), "", error)
