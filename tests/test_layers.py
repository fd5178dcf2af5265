"""The structure of the package: imports point downwards, and a part is known by its registry alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parents[1] / "src"

#: Lowest first: a module imports from its own layer and from those before it.
LAYERS = (
    *("core", "environments", "uncertainty", "identification", "estimators", "agents", "runs", "tracking", "plot"),
    *("evaluation", "training", "sweeps", "tuning", "report", "cli"),
)
#: Beside the layers: what `deeprok.tabular` may import, which nothing but the command line imports.
TABULAR = ("tabular", "core", "uncertainty", "plot")

#: (module, what it imports within a function) -> why.
LATE_IMPORTS = {
    ("deeprok.cli.main", "deeprok.cli.streams"): "start-up: rich is for what is printed",
    ("deeprok.cli.main", "deeprok.cli.options"): "start-up: tyro is for commands with options",
    ("deeprok.cli.solve", "deeprok.plot"): "start-up: figures are for sweeps, and read runs, with all that learns",
    ("deeprok.cli.main", "deeprok"): "the version, which is looked up when it is asked for",
}
#: Modules that import by a name which they compute -> why.
IMPORT_MODULE = {
    "deeprok": "start-up: the public names, each imported when it is asked for",
    "deeprok.tabular": "start-up: likewise",
    "deeprok.cli.main": "start-up: the module of the command that was given",
    "deeprok.cli.reproduce": "the studies, which are no part of the package and need not be there",
    "deeprok.tabular.gymnasium": "Gymnasium, which need not be installed",
    "deeprok.environments.mujoco": "MuJoCo, which need not be installed",
    "deeprok.tracking.wandb": "Weights & Biases, which need not be installed",
    "deeprok.tracking.mlflow": "MLflow, which need not be installed",
    "deeprok.core.frames": "pandas, which need not be installed",
    "deeprok.core.registry": "parts that are named module:object",
}

MOST_LINES = 430


class Import(NamedTuple):
    module: str  # what is imported
    line: int
    late: bool  # within a function


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in sorted((SOURCE / "deeprok").rglob("*.py"))}
TREES = {module: ast.parse(path.read_text()) for module, path in MODULES.items()}


def statements(node: ast.AST, late: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Every node that is run, and whether within a function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield child, late
        yield from statements(child, late or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))


def imports_of(tree: ast.AST) -> list[Import]:
    """What a module imports; `from package import module` is an import of the module."""
    found = []
    for node, late in statements(tree):
        if isinstance(node, ast.Import):
            found += [Import(name.name, node.lineno, late) for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            for name in node.names:
                inner = f"{node.module}.{name.name}"
                found.append(Import(inner if inner in MODULES else str(node.module), node.lineno, late))
    return found


IMPORTS = {module: imports_of(tree) for module, tree in TREES.items()}


def layer(module: str) -> str:
    """The first folder or file below `deeprok`; empty for the package itself."""
    return module.partition(".")[2].partition(".")[0]


def allowed_layers(module: str) -> tuple[str, ...]:
    own = layer(module)
    if own in ("", "__main__", "cli"):
        return (*LAYERS, "tabular", "")
    return TABULAR if own == "tabular" else LAYERS[: LAYERS.index(own) + 1]


def test_modules_were_found() -> None:
    assert len(MODULES) > 80
    assert {layer(module) for module in MODULES} == {*LAYERS, "tabular", "", "__main__"}
    assert Import("deeprok.agents.algorithms", 0, False) in [
        each._replace(line=0) for each in IMPORTS["deeprok.runs.settings"]
    ]


def test_imports_point_downwards() -> None:
    wrong = [
        f"{MODULES[module]}:{each.line} imports {each.module}"
        for module, found in IMPORTS.items()
        for each in found
        if each.module.partition(".")[0] in ("studies", "tests", "benchmarks")
        or (each.module.partition(".")[0] == "deeprok" and layer(each.module) not in allowed_layers(module))
    ]
    assert wrong == []


def test_parts_that_are_named_by_text_are_in_the_registrys_layer() -> None:
    """ "deeprok.agents.q_learning:PART" is an import too."""
    named = [
        (module, node.value.partition(":")[0])
        for module, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and re.fullmatch(r"deeprok(\.\w+)+:\w+", str(node.value))
    ]
    assert len(named) > 10
    assert [(module, other) for module, other in named if layer(module) != layer(other)] == []
    assert {other for _, other in named} <= set(MODULES)


def test_no_module_imports_itself_by_way_of_others() -> None:
    waiting = {
        module: {each.module for each in found if each.module in MODULES and not each.late} - {module}
        for module, found in IMPORTS.items()
    }
    while free := {module for module, needs in waiting.items() if not needs & waiting.keys()}:
        waiting = {module: needs for module, needs in waiting.items() if module not in free}
    assert waiting == {}  # what is left imports what is left


def test_functions_import_no_modules_of_ours_but_those_listed() -> None:
    late = {
        (module, each.module)
        for module, found in IMPORTS.items()
        for each in found
        if each.late and each.module.partition(".")[0] == "deeprok"
    }
    assert late == set(LATE_IMPORTS)


def test_imports_by_a_computed_name_are_those_listed() -> None:
    calls = {
        module
        for module, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__"))
    }
    assert calls == set(IMPORT_MODULE)


def test_files_are_short() -> None:
    lines = {module: len(path.read_text().splitlines()) for module, path in MODULES.items()}
    assert {module: count for module, count in lines.items() if count > MOST_LINES} == {}


#: Settings and fields that name a part.
_NAMES_A_PART = ("algorithm", "env", "estimator", "learner", "network", "robust_set", "trajectory_set")


def asks_which_part(node: ast.AST) -> bool:
    """Whether an expression depends on which part it has: on the class of its settings, or on its name."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
        return bool(re.search(r"\w(Config|Settings)\b", ast.unparse(node.args[1])))
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        name = any(ast.unparse(side).split(".")[-1] in _NAMES_A_PART for side in sides)
        return name and any(isinstance(c, ast.Constant) and c.value for side in sides for c in ast.walk(side))
    return isinstance(node, ast.Match) and ast.unparse(node.subject).split(".")[-1] in _NAMES_A_PART


@pytest.mark.parametrize(
    ("code", "asks"),
    [
        ("isinstance(settings, KalmanConfig)", True),
        ("isinstance(config, Config)", False),
        ("row.estimator == 'kalman'", True),
        ("config.algorithm in ('dqn', 'ddqn')", True),
        ("estimator is None", False),
        ("settings.explore == 'thompson'", False),
    ],
)
def test_ladders_are_recognised(code: str, asks: bool) -> None:
    assert asks_which_part(ast.parse(code, mode="eval").body) == asks


def test_nothing_asks_which_part_it_has() -> None:
    """What differs between parts is in the part, so that a user's own can have it too."""
    asking = [
        f"{MODULES[module]}:{node.lineno}: {ast.unparse(node)}"
        for module, tree in TREES.items()
        for node in ast.walk(tree)
        if asks_which_part(node)
    ]
    assert asking == []
