"""Sources of the pinned releases that the integrations are written for, read without importing them.

The tests that need them run with GPUSHM_INTEGRATIONS=1, which downloads each wheel once, vLLM's of 340 MB,
into the folder that GPUSHM_CONTRACTS names (`./run test python` sets it).
"""

import ast
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import os
import pathlib
import subprocess
import sys
import zipfile

PINNED = {"vllm": "0.33.0", "sglang": "0.5.23", "lmcache": "0.5.6"}


def wheel(package):
    """The file of the pinned release's wheel."""
    folder = os.environ["GPUSHM_CONTRACTS"]
    found = list(pathlib.Path(folder).glob(f"{package}-{PINNED[package]}-*.whl"))
    if not found:
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
                        "--no-deps", "--only-binary", ":all:", "--dest", folder,
                        f"{package}=={PINNED[package]}"], check=True, timeout=1200)
        found = list(pathlib.Path(folder).glob(f"{package}-{PINNED[package]}-*.whl"))
    return found[0]


class Sources:
    """The Python files of a wheel."""

    def __init__(self, package):
        self._zip = zipfile.ZipFile(wheel(package))
        self._trees = {}

    def files(self):
        """The paths of all Python files."""
        return [each for each in self._zip.namelist() if each.endswith(".py")]

    def text(self, path):
        return self._zip.read(path).decode()

    def tree(self, path):
        if path not in self._trees:
            self._trees[path] = ast.parse(self.text(path))
        return self._trees[path]

    def find(self, path, name):
        """The definition or assignment of "Class.method", "function" or "NAME" in a file."""
        scope = self.tree(path)
        for part in name.split("."):
            scope = next((each for each in scope.body if part in _defines(each)), None)
            assert scope is not None, f"{path} has no {name}"
        return scope

    def parameters(self, path, name):
        """The names of a function's parameters, and which of them must be given."""
        given = self.find(path, name).args
        positional = [each.arg for each in given.posonlyargs + given.args]
        required = positional[:len(positional) - len(given.defaults)]
        required += [each.arg for each, default in zip(given.kwonlyargs, given.kw_defaults) if default is None]
        return [*positional, *(each.arg for each in given.kwonlyargs)], required

    def accepts(self, path, name, *positional, **named):
        """Asserts that a call with so many positional arguments and these names is accepted."""
        known, required = self.parameters(path, name)
        if known and known[0] in ("self", "cls"):
            known, required = known[1:], [each for each in required if each not in ("self", "cls")]
        taken = [*known[:len(positional)], *named]
        assert set(taken) <= set(known), f"{name} of {path} takes {known}, not {set(taken) - set(known)}"
        assert set(required) <= set(taken), f"{name} of {path} needs {set(required) - set(taken)}"

    def fields(self, path, name):
        """The annotated attributes of a class."""
        return [each.target.id for each in self.find(path, name).body
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)]

    def abstract(self, path, name):
        """The methods that a subclass must define."""
        return {each.name for each in self.find(path, name).body if isinstance(each, ast.FunctionDef)
                and any("abstractmethod" in ast.dump(decorator) for decorator in each.decorator_list)}

    def has(self, module):
        """Whether there is such a module or package."""
        base = module.replace(".", "/")
        return any(each.startswith((f"{base}.py", f"{base}/")) for each in self._zip.namelist())

    def path(self, module):
        """The file of a module."""
        base = module.replace(".", "/")
        found = [each for each in (f"{base}.py", f"{base}/__init__.py") if each in self._zip.namelist()]
        assert found, f"there is no module {module}"
        return found[0]

    def exports(self, module, name):
        """Whether `from module import name` works, by definition or by import."""
        base, path = module.replace(".", "/"), self.path(module)
        if any(name in _defines(each) for each in _statements(self.tree(path))):
            return True
        return f"{base}/{name}.py" in self._zip.namelist() or f"{base}/{name}/__init__.py" in self._zip.namelist()


def _statements(tree):
    for each in tree.body:
        yield each
        if isinstance(each, (ast.If, ast.Try)):
            yield from _statements(each)


def _defines(statement):
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [statement.name]
    if isinstance(statement, ast.AnnAssign):
        return [getattr(statement.target, "id", "")]
    if isinstance(statement, ast.Assign):
        return [target.id for target in statement.targets if isinstance(target, ast.Name)]
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return [alias.asname or alias.name for alias in statement.names]
    return []


def what_we_import(module_file, package):
    """Pairs of module and name that a file of ours imports from `package`."""
    tree = ast.parse(pathlib.Path(module_file).read_text())
    return sorted({(node.module, alias.name) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
                   and (node.module or "").split(".")[0] == package for alias in node.names})


def installed(file):
    """A file of our integrations, as it is installed."""
    import gpushm

    return pathlib.Path(gpushm.__file__).parent / "integrations" / file


def check_imports(sources, file, package, at_least=1):
    """Each name that this file of our integrations imports from `package` is there."""
    imported = what_we_import(installed(file), package)
    assert len(imported) >= at_least
    for module, name in imported:
        assert sources.exports(module, name), f"{module} has no {name}"


def entry_points(group):
    return {each.name: each.value for each in importlib.metadata.entry_points(group=group)}


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of a package: from a Sources, or empty; and modules that only `given` has."""

    def __init__(self, sources, package, real, given):
        self._sources, self._package, self._real, self._given = sources, package, real, given
        self._others = {name for name in given if name.split(".")[0] != package}

    def find_spec(self, name, path=None, target=None):
        if name in self._given or (name.split(".")[0] == self._package and self._sources.has(name)):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        name = module.__name__
        vars(module).update(self._given.get(name, {}))
        if name in self._real:
            path = self._sources.path(name)
            exec(compile(self._sources.text(path), path, "exec"), vars(module))
            return
        if name in self._others:
            return

        def missing(attribute):
            if attribute.startswith("__"):
                raise AttributeError(attribute)
            if any(f"{each}.".startswith(f"{name}.{attribute}.") for each in [*self._real, *self._given]):
                return importlib.import_module(f"{name}.{attribute}")
            made = type(attribute, (), {})  # For annotations and isinstance: nothing is one.
            setattr(module, attribute, made)
            return made

        module.__getattr__ = missing


@contextlib.contextmanager
def standin(sources, package, real, given):
    """While it is active, `import package` gives the pinned release without its dependencies: the modules
    `real` as its wheel has them, and others that are empty, but for what `given` names. `given` may also
    name modules of other packages, which it then replaces.
    """
    ours = f"gpushm.integrations.{package}"
    finder = _Finder(sources, package, real, given)

    def take_out():
        return {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == package
                or name == ours or name.startswith(f"{ours}.") or name in given}

    kept = take_out()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        take_out()
        sys.modules.update(kept)
