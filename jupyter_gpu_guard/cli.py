"""`jupyter gpu-guard`: status, doctor, policy check, policy explain.

Covers the arguments, what is printed, and the exit status: 0, 1 where something is wrong or missing, 2 for a wrong
argument. What is said of a kernel stands in kernel/words, what is examined in doctor, what a policy is in policies.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

from jupyter_core.application import JupyterApp
from jupyter_server.serverapp import list_running_servers
from traitlets.config.application import Application
from traitlets.config.loader import ConfigFileNotFound

from . import doctor
from ._version import __version__
from .config import GpuGuard, Settings
from .core.policy import PolicyError
from .kernel import words
from .kernel.servers import NOT_OURS, REFUSED, NoAnswer, Server, ask, server_of
from .policies import check_file, explain

Json = dict[str, Any]

#: An option of the server, as it may stand on this command line too.
OPTION = "--GpuGuard."
_HEADS = ("notebook", "use", "GPU memory", "GPU use", "what is next")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status. argparse exits by itself for a wrong argument."""
    parser = _parser()
    arguments, rest = parser.parse_known_args(argv)
    unknown = [word for word in rest if not (word.startswith(OPTION) and "=" in word)]
    if unknown or (rest and not hasattr(arguments, "config")):
        parser.error(f"unknown argument {(unknown or rest)[0]}")
    arguments.options = rest
    with suppress(BrokenPipeError):  # as under `| head`
        return int(arguments.run(arguments))
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "jupyter gpu-guard", description="GPU kernels and what the guard does about them."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    as_json = argparse.ArgumentParser(add_help=False)
    as_json.add_argument("--json", action="store_true", help="print JSON for programs")
    server = argparse.ArgumentParser(add_help=False)
    server.add_argument(
        "--url", type=_url, help="ask the server at this address, instead of those that run on this machine"
    )
    server.add_argument("--token", help="its token; better in the environment variable JUPYTER_TOKEN, where no other "
                        "user of the machine can read it")  # fmt: skip
    config = argparse.ArgumentParser(add_help=False)
    config.add_argument("--config", metavar="FILE", help="a configuration file, instead of Jupyter's own; any option "
                        "of the server may stand here too, as --GpuGuard.NAME=VALUE")  # fmt: skip

    status = commands.add_parser(
        "status", parents=[as_json, server], help="kernels, their GPUs, and what is next"
    )
    status.set_defaults(run=_status)
    check_up = commands.add_parser(
        "doctor", parents=[as_json, config, server], help="what stands in the guard's way"
    )
    check_up.set_defaults(run=_doctor)
    policy = commands.add_parser("policy", help="check and explain policies").add_subparsers(
        required=True, metavar="COMMAND"
    )
    check = policy.add_parser("check", parents=[config], help="list every mistake in a policy file")
    check.add_argument("file", metavar="FILE")
    check.set_defaults(run=_policy_check)
    why = policy.add_parser(
        "explain", parents=[as_json, config], help="what holds for a kernel, and where it is said"
    )
    why.add_argument("--path", default="", help="of the notebook, from the server's root folder")
    why.add_argument("--kernel-name", default="", help="such as python3")
    why.add_argument("--gpu", default="", help="model of the GPU that it holds")
    why.add_argument(
        "--user", default=os.environ.get("JUPYTERHUB_USER") or _user(), help="whose server; default: you"
    )
    why.add_argument("--group", action="append", default=[], help="of the user; may be repeated")
    why.add_argument("--label", help="that the notebook carries")
    why.add_argument("--policy-file", metavar="FILE", help="instead of the configured one")
    why.set_defaults(run=_policy_explain)
    return parser


def _url(text: str) -> str:
    """argparse shows the error, and ends with 2."""
    if text.startswith(("http://", "https://")):
        return text
    likely = "" if "://" in text else f"; did you mean http://{text.rstrip('/')}/ ?"
    raise argparse.ArgumentTypeError(f"{text!r} is no address such as http://127.0.0.1:8888/{likely}")


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid without a name, as in some containers
        return None


# --- status -------------------------------------------------------------------------------------------------------


def _status(arguments: argparse.Namespace) -> int:
    servers = _servers(arguments)
    answers = [(server, *_asked(server)) for server in servers]
    if arguments.json:
        rows = [{"url": server.url, "status": found, "error": error} for server, found, error in answers]
        _print_json({"servers": rows})
    else:
        for server, found, error in answers:
            print("\n".join([server.url, *_told(found, error)]))
        for line in _hints(arguments.url, answers):
            print(line)
    return 0 if any(found is not None for _, found, _ in answers) else 1


def _hints(url: str | None, answers: Sequence[tuple[Server, Json | None, str | None]]) -> Iterable[str]:
    """Which command to type next, where the answers leave something open."""
    if not answers:
        yield "No Jupyter server of yours runs on this machine. Start one with `jupyter lab`, or name one elsewhere:"
        yield f"    {_command('http://HOST:8888/', token=True)}"
        return
    refused = [server for server, _, error in answers if error == REFUSED]
    for server in refused:
        yield f"Name the token of {server.url} (`jupyter server list` on its machine shows it):"
        yield f"    {_command(server.url, token=True)}"
    if len(refused) < len(answers) and all(found is None for _, found, _ in answers):
        yield f"`jupyter gpu-guard doctor{f' --url {url}' if url else ''}` says what is in the way."
    if len(answers) > 1:
        yield "One of them alone:"
        yield f"    {_command(answers[0][0].url)}"


def _command(url: str, *, token: bool = False) -> str:
    """How to ask one server; the token stands where no other user of the machine can read it."""
    return f"{'JUPYTER_TOKEN=TOKEN ' if token else ''}jupyter gpu-guard status --url {url}"


def _servers(arguments: argparse.Namespace) -> list[Server]:
    """The one that was named, or all that run on this machine; with the token that was given, or their own."""
    running = []
    for info in list_running_servers():
        with suppress(KeyError, TypeError, ValueError):
            running.append(server_of(info))
    if arguments.url:
        url = arguments.url.rstrip("/") + "/"
        known = [server for server in running if server.url == url]
        given = os.environ.get("JUPYTER_TOKEN") or os.environ.get("JUPYTERHUB_API_TOKEN") or ""
        running = known or [Server(url, given)]
    return [server._replace(token=arguments.token or server.token) for server in running]


def _asked(server: Server) -> tuple[Json | None, str | None]:
    try:
        found = ask(server, "status")
        list(_told(found, None))  # what can't be told is no answer
    except NoAnswer as error:
        return None, str(error)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None, NOT_OURS
    return found, None


def _told(status: Json | None, error: str | None) -> Iterable[str]:
    """The lines on one server."""
    if status is None:
        return [f"  {error}"]
    now = words.moment(status["server_time"])
    rows = [
        (
            ", ".join(kernel["notebooks"]) or f"kernel {kernel['kernel_id'][:8]}",
            words.use(kernel),
            words.size(words.memory(kernel))
            if kernel["gpus"]
            else "none"
            if kernel["holds_gpu"] is False
            else "?",
            words.percent(words.gpu_use(kernel)) if kernel["gpus"] else "",
            words.outlook(kernel, now),
        )
        for kernel in status["kernels"]
    ]
    table = [f"  {line}" for line in aligned([_HEADS, *rows])] if rows else ["  no kernels"]
    return [*[f"  {line}" for line in _heading(status, now)], *table]


def _heading(status: Json, now: datetime) -> Iterable[str]:
    """Mode, readings and policy of a server; more than a line only where something is wrong."""
    telemetry, policy = status["telemetry"], status["policy"]
    readings = "simulated GPUs" if status["simulated"] else f"GPU readings: {telemetry['state']}"
    yield f"mode {status['mode']}, {readings}, policy: {'ok' if policy['valid'] else 'wrong'}"
    if telemetry["reason"]:
        last = telemetry["last_success"]
        since = f", last read at {words.clock(words.moment(last), now)}" if last else ""
        yield words.text_of(telemetry["reason"], now) + since
    if not policy["valid"]:
        yield words.text_of(policy["error"], now)
    if status["hold"]:
        yield words.text_of(status["hold"], now)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """A table with its columns under each other, the last one as long as it is."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    ]


# --- doctor -------------------------------------------------------------------------------------------------------


def _doctor(arguments: argparse.Namespace) -> int:
    try:
        settings = read_settings(arguments.config, arguments.options)
    except PolicyError as error:
        findings = iter([doctor.misconfigured(str(error))])
    else:
        findings = doctor.examine(settings, _servers(arguments))
    kept = []
    for finding in findings:
        kept.append(finding)
        if not arguments.json:
            print(f"{finding.status.value:4}  {finding.name}: {finding.found}")
            if finding.status is not doctor.Level.OK:
                print(f"      {finding.remedy}")
    if arguments.json:
        _print_json({"checks": [finding.to_json() for finding in kept]})
    return int(any(finding.status is doctor.Level.FAIL for finding in kept))


# --- policies -----------------------------------------------------------------------------------------------------


def _policy_check(arguments: argparse.Namespace) -> int:
    try:
        base = read_settings(arguments.config, arguments.options).layers
    except PolicyError as error:
        print(f"the server's own configuration is wrong: {error}")
        return 1
    mistakes = check_file(arguments.file, base)
    for mistake in mistakes:
        print(mistake)
    if not mistakes:
        print(f"{arguments.file} is good")
    return int(bool(mistakes))


def _policy_explain(arguments: argparse.Namespace) -> int:
    options = list(arguments.options)
    if arguments.policy_file is not None:
        options.append(f"{OPTION}policy_file={arguments.policy_file}")
    try:
        settings = read_settings(arguments.config, options)
    except PolicyError as error:
        print(f"the configuration is wrong: {error}", file=sys.stderr)
        return 1
    rows = explain(
        settings,
        now=datetime.now(timezone.utc),
        kernel_name=arguments.kernel_name,
        path=arguments.path,
        gpu=arguments.gpu,
        user=arguments.user,
        groups=tuple(arguments.group),
        label=arguments.label,
    )
    if arguments.json:
        _print_json(
            {"policy": [{"setting": name, "value": value, "source": source} for name, value, source in rows]}
        )
    else:
        print("\n".join(aligned([(name, _shown(value), source) for name, value, source in rows])))
    mistakes = check_file(settings.policy_file, settings.layers) if settings.policy_file else []
    for mistake in mistakes:
        print(f"the policy file is not in force: {mistake}", file=sys.stderr)
    return int(bool(mistakes))


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


# --- the server's configuration -----------------------------------------------------------------------------------


class _Configuration(JupyterApp):
    """Reads what a server would read."""

    name = "jupyter-gpu-guard"
    classes = [GpuGuard]  # noqa: RUF012  (a trait of traitlets, not a field)
    config_file_name = "jupyter_server_config"
    raise_config_file_errors = True


def read_settings(config_file: str | None, options: Sequence[str]) -> Settings:
    """The options that a server started now would have. Raises PolicyError for a wrong one, and for a file that can't
    be read."""
    app = _Configuration(log_level="ERROR")  # what is wrong is told once, by the error below
    if config_file:
        if not os.path.isfile(config_file):
            raise PolicyError("--config", config_file, "a configuration file")
        app.config_file = os.path.abspath(config_file)
    app.parse_command_line(list(options))
    given = app.cli_config
    try:
        app.load_config_file(suppress_errors=False)
        with suppress(ConfigFileNotFound):  # the extension's own file, as each server extension may have one
            Application.load_config_file(app, "jupyter_jupyter_gpu_guard_config", path=app.config_file_paths)
    except Exception as error:  # it is code, and may raise anything
        raise PolicyError(
            "--config", config_file or "Jupyter's own", f"a file that can be run ({error})"
        ) from None
    app.update_config(given)
    return GpuGuard(parent=app).settings()


if __name__ == "__main__":
    sys.exit(main())
