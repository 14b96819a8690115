"""The shape of the code: imports go one way, and the public names are what they say."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import mathneuro_hub

ROOT = Path(mathneuro_hub.__file__).parent
ORDER = [
    ["errors", "_version"],
    ["versions", "files", "remote"],
    ["masks"],
    ["weights"],
    ["base_model"],
    ["calibration"],
    ["methods"],
    ["adapter"],
    ["evaluation"],
    ["publishing"],
    ["demo"],
]
LEVEL = {name: level for level, names in enumerate(ORDER) for name in names}
FREE = {"mathneuro_hub.demo"}  # the demo package itself holds paths and nothing else


def imports_of(path: Path) -> set[str]:
    """Modules that a file imports when it is loaded or run, those for type checking left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def test_imports_go_down_the_list_only():
    checked = 0
    for path in ROOT.rglob("*.py"):
        room = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if room == "__init__":
            continue
        for module in imports_of(path):
            assert not module.startswith(("mathneuro_hub_cli", "typer")), f"{path} imports {module}"
            if module.startswith("mathneuro_hub.") and module not in FREE:
                other = module.split(".")[1]
                assert other == room or LEVEL[other] < LEVEL[room], f"{path} imports {module}"
                checked += 1
    assert checked > 30


def test_public_names_are_sorted_and_there():
    assert mathneuro_hub.__all__ == sorted(mathneuro_hub.__all__)
    for name in mathneuro_hub.__all__:
        assert getattr(mathneuro_hub, name) is not None


def test_importing_the_library_imports_nothing_heavy():
    code = "import sys, mathneuro_hub; sys.exit(bool({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT.parent).returncode == 0


def test_no_file_is_longer_than_400_lines():
    long = [str(path) for path in ROOT.rglob("*.py") if len(path.read_text(encoding="utf-8").splitlines()) > 400]
    assert not long
