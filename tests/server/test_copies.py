"""A copy that a browser can write nowhere: it is handed to the server, named in the answer, and can be fetched.

The request is a real one, of a server whose only place for recovery copies is a folder that no browser reaches.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.server.live import LiveServer

API = "gpu-guard/api/v1"
TEXT = "print('grün')\n".encode()


@dataclass
class Scene:
    """What a window with a notebook and a text file of one kernel was asked and told."""

    server: LiveServer
    folder: Path
    kernel_id: str
    asked: dict[str, Any]
    copies: dict[str, tuple[bytes, str]]
    tombstone: dict[str, Any]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("copies")
    options = ("GpuGuard.gpu_source=simulated", "GpuGuard.mode=enforce", "GpuGuard.sample_interval=1")
    with LiveServer(folder, *options, f"GpuGuard.recovery_dir=['{folder / 'kept'}']") as server:
        yield play(server, folder / "kept")


def play(server: LiveServer, folder: Path) -> Scene:
    kernel_id = server.start_kernel("work.ipynb")
    (server.root / "tool ä.py").write_text("print('old')\n")
    server.until(lambda: server.kernel(kernel_id), 10, "the guard does not see the kernel")
    documents = [
        {"path": path, "kernel_id": kernel_id, "dirty": True} for path in ("work.ipynb", "tool ä.py")
    ]
    post(server, "clients/window", {"documents": documents}, 204)
    post(server, f"kernels/{kernel_id}/cull", {"save": True}, 202)
    (asked,) = server.until(
        lambda: server.guard("status?client_id=window")["save_requests"], 10, "no request"
    )
    contents = {"work.ipynb": edited(server), "tool ä.py": TEXT}
    copies, said = {}, []
    for path, content in contents.items():
        query = f"client_id=window&nonce={quote(asked['nonce'])}&path={quote(path)}"
        code, kept = server.request("POST", f"{API}/kernels/{kernel_id}/copies?{query}", raw=content)
        assert code == 201, kept
        copies[path] = (content, str(kept["recovery_id"]))
        said.append({"path": path, "outcome": "conflict", "recovery_id": kept["recovery_id"]})
    answer = {"nonce": asked["nonce"], "client_id": "window", "documents": said}
    post(server, f"kernels/{kernel_id}/saved", answer, 204)
    server.until(lambda: not server.has_kernel(kernel_id), 30, "the kernel was not shut down")
    tombstone = server.until(lambda: stone_of(server, kernel_id), 10, "nothing is left to read")
    return Scene(server, folder, kernel_id, asked, copies, tombstone)


def post(server: LiveServer, path: str, body: Any, expected: int) -> None:
    code, said = server.request("POST", f"{API}/{path}", body)
    assert code == expected, said


def stone_of(server: LiveServer, kernel_id: str) -> Any:
    code, stone = server.request("GET", f"{API}/tombstones/{kernel_id}")
    return stone if code == 200 else None


def edited(server: LiveServer) -> bytes:
    """The notebook as a window has it after an edit."""
    notebook = json.loads((server.root / "work.ipynb").read_text())
    notebook["cells"][0]["source"] = "2 + 2"
    return json.dumps(notebook, indent=1).encode()


def test_the_window_is_told_that_there_is_no_place_to_write_to(scene: Scene) -> None:
    offered = {document["path"]: document["recovery_path"] for document in scene.asked["documents"]}
    assert offered == {"work.ipynb": None, "tool ä.py": None}


def test_what_was_handed_over_counts_as_recovered(scene: Scene) -> None:
    saved = {
        d["path"]: (d["outcome"], d["recovery_path"], d["recovery_id"]) for d in scene.tombstone["saved"]
    }
    assert saved == {
        path: ("recovered", None, recovery_id) for path, (_, recovery_id) in scene.copies.items()
    }
    assert "2 + 2" not in (scene.server.root / "work.ipynb").read_text()


def test_the_copies_are_given_out_byte_for_byte_under_a_name_that_tells_the_document(scene: Scene) -> None:
    for path, (content, recovery_id) in scene.copies.items():
        stem, extension = path.split()[0].split(".")[0], path[path.rindex(".") :]
        found = [file for file in scene.folder.iterdir() if file.suffix == extension]
        assert [file.read_bytes() for file in found] == [content]
        assert found[0].name.startswith(stem)
        code, body = scene.server.request("GET", f"{API}/recovery/{recovery_id}")
        assert code == 200
        assert body == (json.loads(content) if extension == ".ipynb" else content)


def test_a_copy_for_a_request_that_is_over_is_refused(scene: Scene) -> None:
    kernel_id = scene.server.start_kernel("other.ipynb")
    scene.server.until(lambda: scene.server.kernel(kernel_id), 10, "the guard does not see the kernel")
    query = f"client_id=window&nonce={quote(scene.asked['nonce'])}&path=other.ipynb"
    before = sorted(scene.folder.iterdir())
    code, body = scene.server.request("POST", f"{API}/kernels/{kernel_id}/copies?{query}", raw=TEXT)
    assert (code, body["reason"]["code"]) == (409, "old_nonce")
    assert sorted(scene.folder.iterdir()) == before
