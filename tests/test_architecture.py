"""The direction of dependencies is a test, not a wish."""

import ast
from pathlib import Path

import pytest

import highrank

ROOT = Path(highrank.__file__).parent
# A layer may import itself and the layers before it in this list.
LAYERS = (  # noqa: SIM905
    "environment files ops heads data models config build run generation evaluation analysis "
    "training integrations presets report studies explorer cli __main__"
).split()
# Each heavy dependency has one home.
HOMES = {"triton": "ops", "transformers": "integrations", "matplotlib": "report"}
# Only the command line knows them: deleting one touches nothing else.
LEAVES = ("studies", "explorer")


def imports():
    """Yield (file, its layer, the dotted name it imports)."""
    for path in ROOT.rglob("*.py"):
        layer = path.relative_to(ROOT).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from ((path, layer, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: imports are absolute"
                yield from ((path, layer, f"{node.module}.{alias.name}") for alias in node.names)


def test_layers_import_only_what_lies_below():
    for path, layer, name in imports():
        package, *rest = name.split(".")
        if package == "highrank" and layer != "__init__" and rest != ["__version__"]:
            assert rest[0] in LAYERS[: LAYERS.index(layer) + 1], f"{path} imports {name}"


def test_only_the_command_line_imports_leaves():
    for path, layer, name in imports():
        package, *rest = name.split(".")
        if package == "highrank" and rest[0] in LEAVES:
            assert layer in (rest[0], "cli"), f"{path} imports {name}"


@pytest.mark.xfail(reason="charts of studies still import matplotlib", strict=True)
def test_heavy_dependencies_stay_home():
    for path, layer, name in imports():
        assert HOMES.get(name.split(".")[0], layer) == layer, f"{path} imports {name}"


def test_no_file_outgrows_its_reader():
    for path in ROOT.rglob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 400, path
