"""What notebooks say of themselves."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from jupyter_server.services.contents.largefilemanager import LargeFileManager

from jupyter_gpu_guard.contents import Contents
from jupyter_gpu_guard.labels import Labels, NotebookMetadata, parse

LOG = logging.getLogger("test_labels")


def write(root: Path, name: str, mine: object) -> None:
    metadata = {} if mine is None else {"gpu_guard": mine}
    (root / name).write_text(
        json.dumps({"cells": [], "metadata": metadata, "nbformat": 4, "nbformat_minor": 5})
    )


def labels(root: Path) -> Labels:
    return Labels(Contents(LargeFileManager(root_dir=str(root))), LOG)


async def test_a_label_is_read_and_read_again_when_the_file_changes(tmp_path: Path) -> None:
    read = labels(tmp_path)
    write(tmp_path, "a.ipynb", {"label": "long", "project": "x"})
    await read.refresh(["a.ipynb"])
    assert read.of(["a.ipynb"]) == NotebookMetadata(label="long", project="x")
    write(tmp_path, "a.ipynb", {"label": "another"})
    await read.refresh(["a.ipynb"])
    assert read.of(["a.ipynb"]).label == "another"


async def test_a_file_that_cannot_be_read_leaves_what_was_known(tmp_path: Path) -> None:
    read = labels(tmp_path)
    write(tmp_path, "a.ipynb", {"label": "long"})
    await read.refresh(["a.ipynb"])
    (tmp_path / "a.ipynb").unlink()
    await read.refresh(["a.ipynb"])
    assert read.of(["a.ipynb"]).label == "long"


async def test_half_a_notebook_says_nothing(tmp_path: Path) -> None:
    read = labels(tmp_path)
    (tmp_path / "a.ipynb").write_text('{"cells": [')
    await read.refresh(["a.ipynb"])
    assert read.of(["a.ipynb"]) == NotebookMetadata()


async def test_of_several_notebooks_the_first_that_says_something_counts(tmp_path: Path) -> None:
    read = labels(tmp_path)
    write(tmp_path, "a.ipynb", None)
    write(tmp_path, "b.ipynb", {"label": "b"})
    await read.refresh(["a.ipynb", "b.ipynb"])
    assert read.of(["a.ipynb", "b.ipynb"]).label == "b"


async def test_a_mistake_is_told_once_and_the_notebook_has_no_label(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    read = labels(tmp_path)
    write(tmp_path, "a.ipynb", {"labl": "long"})
    for _ in range(3):
        await read.refresh(["a.ipynb"])
    assert read.of(["a.ipynb"]).label is None
    assert [r.getMessage() for r in caplog.records] == [
        "gpu_guard: a.ipynb: the notebook's metadata counts as absent: gpu_guard.labl: unknown; "
        "expected label, owner, project"
    ]


@pytest.mark.parametrize(
    ("mine", "key"),
    [
        (["long"], "gpu_guard"),
        ("long", "gpu_guard"),
        ({"label": 3}, "gpu_guard.label"),
        ({"label": True}, "gpu_guard.label"),
        ({"label": ""}, "gpu_guard.label"),
        ({"owner": "x" * 101}, "gpu_guard.owner"),
        ({"mode": "observe"}, "gpu_guard.mode"),
    ],
)
def test_mistakes_name_their_key(mine: object, key: str) -> None:
    found = parse({"gpu_guard": mine})
    assert found.label is None
    assert found.error is not None and dict(found.error.params)["key"] == key


@pytest.mark.parametrize("metadata", [None, {}, [], {"gpu_guard": None}, {"kernelspec": {}}])
def test_nothing_said_is_no_mistake(metadata: object) -> None:
    assert parse(metadata) == NotebookMetadata()
