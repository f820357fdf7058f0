"""A training script's syntax tree, and what its names stand for: pure, nothing is run."""

import ast
from collections.abc import Callable, Iterator, Sequence

NO_GRADIENT = {"torch.no_grad", "torch.inference_mode"}
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Source:
    """A syntax tree with what its names stand for. Names are looked up over the whole file, whatever their scope."""

    def __init__(self, tree: ast.Module) -> None:
        self.nodes = list(ast.walk(tree))
        self.parents = {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}
        self.calls = [node for node in self.nodes if isinstance(node, ast.Call)]
        self.classes = {node.name: node for node in self.nodes if isinstance(node, ast.ClassDef)}
        self.functions = {
            node.name: node
            for node in self.nodes
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and not isinstance(self.parents.get(node), ast.ClassDef)
        }
        self.values: dict[str, list[ast.expr | None]] = {}
        """Every value that a name, or self.name, is given; None: unknown."""
        self.target_of: dict[ast.AST, str] = {}
        for node in self.nodes:
            self._bind(node)
        self.imported = self._imports()
        self.imports_daisychain = any(full.split(".")[0] == "daisychain" for full in self.imported.values())
        self.chains = {"chain"} | {
            name for call, name in self.target_of.items()
            if isinstance(call, ast.Call) and self.full(call.func) == "daisychain.init"
        }  # fmt: skip
        self.prepares = [
            call for call in self.calls if isinstance(call.func, ast.Attribute) and call.func.attr == "prepare"
        ]
        self.given = {
            n.id for call in self.prepares for arg in call.args for n in ast.walk(arg) if isinstance(n, ast.Name)
        }

    def _imports(self) -> dict[str, str]:
        """What each imported name is in full; without names that also stand for something else."""
        found: dict[str, str] = {}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.split(".")[0]
                    found[alias.asname or top] = alias.name if alias.asname else top
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        other = {name for name, values in self.values.items() if any(not is_none(value) for value in values)}
        return {
            name: full for name, full in found.items() if name not in other | set(self.functions) | set(self.classes)
        }

    def _bind(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._assign(target, node.value)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            self._assign(node.target, node.value)
        elif isinstance(node, ast.AugAssign | ast.For | ast.AsyncFor | ast.comprehension):
            self._assign(node.target, None)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            self._assign(node.optional_vars, None)
        elif isinstance(node, ast.arg):
            self.values.setdefault(node.arg, []).append(None)

    def _assign(self, target: ast.expr, value: ast.expr | None) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            paired = isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts)
            values: Sequence[ast.expr | None] = value.elts if paired else [None] * len(target.elts)  # type: ignore[union-attr]
            for one, its in zip(target.elts, values, strict=True):
                self._assign(one, its)
        elif isinstance(target, ast.Name | ast.Attribute):
            name = ast.unparse(target)
            self.values.setdefault(name, []).append(value)
            if value is not None:
                self.target_of[value] = name

    def full(self, node: ast.AST | None) -> str:
        """The dotted name that an expression stands for by the imports, '' when that isn't known."""
        if isinstance(node, ast.Name):
            return self.imported.get(node.id, "")
        if isinstance(node, ast.Attribute):
            base = self.full(node.value)
            return f"{base}.{node.attr}" if base else ""
        if isinstance(node, ast.Subscript):
            return self.full(node.value)
        return ""

    def value(self, node: ast.expr | None) -> ast.expr | None:
        """The expression itself, or what a name is given, if the script gives it one thing only; None: unknown."""
        for _ in range(4):
            if not isinstance(node, ast.Name | ast.Attribute):
                return node
            values = self.values.get(ast.unparse(node), [])
            node = values[0] if len(values) == 1 else None
        return None

    def is_a(self, node: ast.ClassDef, wanted: Callable[[str], bool], seen: frozenset[str] = frozenset()) -> bool:
        """Whether a class of the script derives from one with such a full name, also through others of the script."""
        for base in node.bases:
            if wanted(self.full(base)):
                return True
            name = base.id if isinstance(base, ast.Name) else ""
            if name in self.classes and name not in seen and self.is_a(self.classes[name], wanted, seen | {name}):
                return True
        return False

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """Everything that a node lies in, from the inside out."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def is_without_gradient(self, node: ast.AST) -> bool:
        """Whether it lies in a no_grad or inference_mode block or function."""
        return any(
            self.full(item.func if isinstance(item, ast.Call) else item) in NO_GRADIENT
            for outer in self.around(node)
            for item in guards(outer)
        )


def guards(node: ast.AST) -> list[ast.expr]:
    """What a block or function is done within: context managers, decorators."""
    if isinstance(node, ast.With | ast.AsyncWith):
        return [item.context_expr for item in node.items]
    return node.decorator_list if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else []


def is_none(node: ast.expr | None) -> bool:
    """Whether it says None."""
    return isinstance(node, ast.Constant) and node.value is None


def argument(call: ast.Call, name: str, position: int) -> ast.expr | None:
    """An argument by its name or position; None when it isn't given, or given by a star."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    plain = not any(isinstance(arg, ast.Starred) for arg in call.args[: position + 1])
    return call.args[position] if plain and position < len(call.args) else None


def is_data(full: str, names: set[str]) -> bool:
    """Whether a full name is one of these of torch.utils.data."""
    return full.startswith("torch.utils.data.") and full.rsplit(".", 1)[1] in names


def is_module(full: str) -> bool:
    """Whether a full name is a layer of torch.nn."""
    return full.startswith("torch.nn.") and not full.startswith("torch.nn.functional.")


def methods(node: ast.ClassDef) -> dict[str, Function]:
    """A class's own methods by name."""
    return {part.name: part for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)}
