"""Copy a notebook as this Python's kernel would have left it: `python binder/fit_notebook.py FROM TO`.

JupyterLab writes what the kernel says of its language into a notebook that it opens. Where that is something new, and
be it the last digit of a version, the notebook has unsaved edits before anybody did anything.
"""

import json
import sys

from ipykernel.ipkernel import IPythonKernel


def main(source: str, target: str) -> None:
    with open(source, encoding="utf-8") as file:
        notebook = json.load(file)
    notebook["metadata"]["language_info"] = IPythonKernel.language_info
    with open(target, "w", encoding="utf-8") as file:
        json.dump(notebook, file, indent=1, ensure_ascii=False)
        file.write("\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
