"""docs/mathematics.md and the code name each other rightly."""

import inspect
import re
from pathlib import Path

from highrank.analysis import theory

HERE = Path(__file__).parent


def test_the_document_names_functions_and_tests_that_exist():
    text = (HERE.parents[1] / "docs/mathematics.md").read_text(encoding="utf-8")
    files = [path.read_text(encoding="utf-8") for path in HERE.glob("test_theory*.py")]
    known = {name for file in files for name in re.findall(r"^def (test_\w+)", file, flags=re.M)}
    tests = set(re.findall(r"`(test_\w+)`", text))
    functions = set(re.findall(r"\[`(\w+)`\]\([^)]*theory\.py\)", text))
    assert tests and tests <= known
    public = inspect.getmembers(theory, inspect.isfunction)
    assert functions == {
        name for name, f in public if f.__module__ == theory.__name__ and name[0] != "_"
    }
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)\)", text):
        assert (HERE.parents[1] / "docs" / target).exists(), target
