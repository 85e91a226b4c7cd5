"""The direction of dependencies is a test, not a wish. So are names and sizes of files."""

import ast
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import highrank
from highrank.cli.main import COMMANDS

ROOT = Path(highrank.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
# A layer may import itself and the layers before it in this list.
LAYERS = (  # noqa: SIM905
    "__init__ environment files progress signatures ops ngram heads data models config build run "
    "predictor generation evaluation analysis training integrations presets report studies "
    "cli __main__"
).split()
# Only the command line knows them: deleting one touches nothing else.
LEAVES = ("studies",)
# The files of a study that show its numbers; all others measure.
SHOWING = ("page", "charts", "sweeps", "table")
# Each heavy dependency has one home.
HOMES = {
    "triton": "ops",
    "transformers": "integrations",
    "lm_eval": "integrations",
    "matplotlib": "report",
}
# Features with a file or a folder of their own: a prefix is a folder that was not made.
FEATURES = ("audit", "bench", "compare", "demo", "evaluate", "train")


class Import(NamedTuple):
    path: Path
    """Of the importing file, from the package's folder."""
    name: str
    """Dotted, what is imported."""

    def __str__(self):
        return f"{self.path} imports {self.name}"

    @property
    def layer(self):
        return layer_of(self.path)

    @property
    def target(self):
        """The parts below the package; empty for other packages and for what `__init__` defines."""
        package, *parts = self.name.split(".")
        return tuple(parts) if package == "highrank" and parts != ["__version__"] else ()


def layer_of(path):
    return path.parts[0].removesuffix(".py")


def imports_of(path):
    path = path.relative_to(ROOT)
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (Import(path, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from (Import(path, f"{node.module}.{alias.name}") for alias in node.names)


IMPORTS = [found for path in FILES for found in imports_of(path)]
OURS = [found for found in IMPORTS if found.target and found.layer != "__init__"]
OF_STUDIES = [found for found in OURS if found.layer == "studies"]


def forbid(found):
    lines = [str(one) for one in found]
    assert not lines, "\n".join(lines)


def test_every_file_has_a_layer():
    assert {layer_of(path.relative_to(ROOT)) for path in FILES} == set(LAYERS)


def test_layers_import_only_what_lies_below():
    below = {layer: LAYERS[: index + 1] for index, layer in enumerate(LAYERS)}
    forbid(found for found in OURS if found.target[0] not in below[found.layer])


def test_presets_import_only_configurations_and_the_list_of_heads():
    allowed = ("config", "heads", "presets")
    forbid(f for f in OURS if f.layer == "presets" and f.target[0] not in allowed)


def test_only_the_command_line_imports_leaves():
    leaves = (found for found in OURS if found.target[0] in LEAVES)
    forbid(found for found in leaves if found.layer not in (found.target[0], "cli"))


def test_studies_do_not_import_each_other():
    others = (found for found in OF_STUDIES if found.target[0] == "studies")
    forbid(found for found in others if found.target[1:2] != found.path.parts[1:2])


def test_what_measures_does_not_import_what_shows():
    measuring = (found for found in OF_STUDIES if found.path.stem not in SHOWING)
    forbid(f for f in measuring if f.target[0] == "report" or set(f.target[2:3]) & set(SHOWING))


def test_heavy_dependencies_stay_home():
    homes = ((found, HOMES.get(found.name.split(".")[0])) for found in IMPORTS)
    forbid(found for found, home in homes if home not in (None, found.layer))


def test_imports_are_absolute():
    for path in FILES:
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        assert not any(isinstance(node, ast.ImportFrom) and node.level for node in nodes), path


def test_a_shared_prefix_is_a_folder():
    """Neither train_loop.py, nor x_a.py beside a folder x, nor x_a.py, x_b.py and x_c.py."""
    prefixed = [path for path in FILES if "_" in path.stem.strip("_")]
    siblings = Counter((path.parent, path.stem.split("_")[0]) for path in prefixed)
    for path in prefixed:
        prefix = path.stem.split("_")[0]
        assert prefix not in FEATURES, path
        assert not (path.parent / prefix).is_dir(), path
        assert siblings[path.parent, prefix] < 3, path


def test_no_file_outgrows_its_reader():
    for path in FILES:
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 400, path


def test_commands_are_thin():
    for name in (*COMMANDS, "evaluate/__init__"):
        path = ROOT / "cli" / f"{name}.py"
        if path.exists():
            assert len(path.read_text(encoding="utf-8").splitlines()) <= 120, path
