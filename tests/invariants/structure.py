"""Print how the source is built: its size, its imports, and what two typical calls go through.

    python tests/invariants/structure.py
    python tests/invariants/structure.py --json

Importers are counted in src. Imports for type checking do not count. Names in tables of modules, as
those of `HEADS`, do, together with imports inside functions. A chain is a longest path of imports.
JSON has the names of the modules that are counted.
"""

import argparse
import ast
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE, TESTS = ROOT / "src" / "highrank", ROOT / "tests"
TABLE_ENTRY = re.compile(r"(highrank(?:\.\w+)+)(?::\w+)?")

# Runs a program and writes which functions were called, and which files of the package loaded.
TRACED = """
import inspect, json, sys, threading
folder, out, program, *sys.argv = sys.argv[1:]
calls = {}
def note(frame, event, _):
    code = frame.f_code
    # Bodies of modules and classes are not optimised; comprehensions belong to what is around them.
    if event == "call" and code.co_flags & inspect.CO_OPTIMIZED and code.co_name[0] != "<":
        calls[code] = calls.get(code, 0) + 1
threading.setprofile(note)
sys.setprofile(note)
try:
    exec(compile(program, "program", "exec"), {})
finally:
    sys.setprofile(None)
    loaded = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
    with open(out, "w") as file:
        found = {"calls": [(c.co_filename, c.co_name, n) for c, n in calls.items()]}
        json.dump(found | {"loaded": [path for path in loaded if path.startswith(folder)]}, file)
"""
TRAIN = "from highrank.__main__ import main\nmain()"
ARGUMENTS = """
train my.txt --model.embedding-size 8 --model.hidden-sizes 12 10 --batch.batch-size 4
--valid-batch-size 2 --train.epochs 1 --threads 1
"""
UPGRADE = """
from transformers import AutoModelForCausalLM, GPT2Config
sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 60, "n_positions": 32}
model = AutoModelForCausalLM.from_config(GPT2Config(**sizes, bos_token_id=1, eos_token_id=1))
import highrank
highrank.upgrade(model)
"""


class Imports(ast.NodeVisitor):
    """The modules of the package that one of them imports: at its top level, and later."""

    def __init__(self, name, trees):
        self.name, self.trees, self.depth = name, trees, 0
        self.early, self.late = set(), set()
        self.visit(trees[name])

    def add(self, target, is_late):
        """The module of that name, or the one that defines it; the root is always there."""
        while target and target not in self.trees:
            target = target.rpartition(".")[0]
        if target not in ("", "highrank", self.name):
            (self.late if is_late else self.early).add(target)

    def visit_Import(self, node):
        for alias in node.names:
            self.add(alias.name, self.depth)

    def visit_ImportFrom(self, node):
        for alias in node.names:
            self.add(f"{node.module}.{alias.name}", self.depth)

    def visit_FunctionDef(self, node):
        self.depth += 1
        self.generic_visit(node)
        self.depth -= 1

    def visit_If(self, node):
        is_typing = ast.unparse(node.test).endswith("TYPE_CHECKING")
        for child in node.orelse if is_typing else [node.test, *node.body, *node.orelse]:
            self.visit(child)

    def visit_Constant(self, node):
        if isinstance(node.value, str) and (entry := TABLE_ENTRY.fullmatch(node.value)):
            self.add(entry[1], True)

    def visit_JoinedStr(self, node):
        """f"highrank.cli.{name}": the modules there that this file has the names of."""
        start = node.values[0].value if isinstance(node.values[0], ast.Constant) else ""
        if re.fullmatch(r"highrank\.(\w+\.)*", start):
            constants = (n for n in ast.walk(self.trees[self.name]) if isinstance(n, ast.Constant))
            for name in {f"{start}{n.value}" for n in constants if isinstance(n.value, str)}:
                self.add(name if name in self.trees else "", True)


def parsed():
    """The syntax tree of each module, by its name."""
    trees = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        trees[name.removesuffix(".__init__")] = ast.parse(path.read_text(encoding="utf-8"))
    return trees


def longest_chain(graph):
    """The modules of a longest path; an error names those of a circle."""
    chains = {}
    for name in TopologicalSorter(graph).static_order():
        below = (chains[target] for target in sorted(graph[name]))
        chains[name] = [name, *max(below, key=len, default=[])]
    return max(chains.values(), key=len)


def lines_of(folder):
    """The number of lines of each file."""
    files = sorted(folder.rglob("*.py"))
    return {p.relative_to(folder): len(p.read_text(encoding="utf-8").splitlines()) for p in files}


def static_numbers():
    source, tests, by_package = lines_of(PACKAGE), lines_of(TESTS), Counter()
    for path, count in source.items():
        by_package[path.parts[0].removesuffix(".py")] += count
    trees = parsed()
    imports = {name: Imports(name, trees) for name in trees}
    every = {name: found.early | found.late for name, found in imports.items()}
    importers = Counter(target for targets in every.values() for target in targets)
    nodes = (node for tree in trees.values() for node in ast.walk(tree))
    functions = [n.end_lineno - n.lineno + 1 for n in nodes if isinstance(n, ast.FunctionDef)]
    return {
        "source_lines": sum(source.values()),
        "source_files": len(source),
        "test_lines": sum(tests.values()),
        "test_files": len(tests),
        "test_lines_invariants": sum(lines_of(TESTS / "invariants").values()),
        "one_importer": sorted(name for name, count in importers.items() if count == 1),
        "chain_top_level": longest_chain({name: found.early for name, found in imports.items()}),
        "chain_with_functions": longest_chain(every),
        "median_function_lines": statistics.median(functions),
        "lines_by_package": dict(by_package.most_common()),
    }


def traced(name, program, arguments=""):
    """Files that a program loads and goes through, and how often it builds a model and parses."""
    with tempfile.TemporaryDirectory() as place:
        Path(place, "my.txt").write_text("the old cat saw a small dog and then it slept\n" * 300)
        environment = {"PYTHONPATH": str(ROOT / "src"), "HIGHRANK_CACHE": place}
        given = [f"{PACKAGE}{os.sep}", f"{place}/calls.json", program, "highrank"]
        done = subprocess.run(
            [sys.executable, "-c", TRACED, *given, *arguments.split()],
            cwd=place,
            env=os.environ | environment | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            sys.exit(f"{arguments or program} failed:\n{done.stderr[-3000:]}")
        found = json.loads(Path(place, "calls.json").read_text())
    calls, parser = found["calls"], os.path.join("tyro", "_cli.py")
    ours = [call for call in calls if call[0].startswith(str(PACKAGE))]
    return {
        f"{name}_files_loaded": len(found["loaded"]),
        f"{name}_files_passed": len({path for path, _, _ in ours}),
        f"{name}_build_model_calls": sum(n for _, called, n in ours if called == "build_model"),
        f"{name}_parser_calls": sum(n for p, called, n in calls if called == "cli" and parser in p),
    }


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = static_numbers() | traced("train", TRAIN, ARGUMENTS) | traced("upgrade", UPGRADE)
    if options.json:
        print(json.dumps(found, indent=1))
        return
    packages = found.pop("lines_by_package")
    for name, value in found.items():
        number = len(value) if isinstance(value, list) else value
        print(f"{name.replace('_', ' '):28}{number:>8,}")
    for name, count in packages.items():
        print(f"{'lines of ' + name:28}{count:>8,}")


if __name__ == "__main__":
    main()
