"""Claimcheck's pipeline: the steps (`fetch` … `report`) and the library that they share.

From its import on, the source of every loaded module is recorded, except of the standard library and of installed
packages, so that it is certain which code ran, whatever is on the disk later.  Cached bytecode is matched by the digest
of its source and not by its time, because that misses an edit within one second that keeps a file's length.
"""

from __future__ import annotations

import os
import sys
import time
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import MAGIC_NUMBER, cache_from_source, source_hash
from marshal import dumps, loads
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

LOADED: dict[str, bytes] = {}
"""Source of each module outside of installed packages that this process has loaded since then."""
STARTED_NS = time.time_ns()
"""Time after which this process, or the one that it is a fork of, has loaded its modules (ns since 1970)."""
_HEADER = MAGIC_NUMBER + (0b11).to_bytes(4, "little")  # bytecode that is checked by the hash of its source (PEP 552)
_LIBRARY = os.path.dirname(os.path.realpath(os.__file__)) + os.sep
_PACKAGES = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))


def is_installed(path: str) -> bool:
    """Return True if a file belongs to the standard library or an installed package, which the lock file pins."""
    return any(name in path for name in _PACKAGES) or os.path.realpath(path).startswith(_LIBRARY)


def papers_folder() -> Path:
    """Return the folder with a package per paper: `papers` in the working directory, or ours."""
    own = Path("papers").absolute()
    return own if own.is_dir() else Path(__file__).parent / "papers"


class _RecordingLoader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        source = LOADED[self.name] = self.get_data(self.path)
        header = _HEADER + source_hash(source)
        cached = cache_from_source(self.path)
        try:
            content = self.get_data(cached)
            if content.startswith(header):
                code: CodeType = loads(memoryview(content)[len(header) :])  # noqa: S302  (as Python itself does)
                return code
        except (OSError, EOFError, ValueError, TypeError):
            pass  # there is none yet, or it is damaged
        code = compile(source, self.path, "exec", dont_inherit=True)
        if not sys.dont_write_bytecode:
            self.set_data(cached, header + dumps(code))
        return code


class _PapersLoader(_RecordingLoader):
    def exec_module(self, module: ModuleType) -> None:
        """Add the model for other packages' classes, which a project's own folder of papers lacks."""
        super().exec_module(module)
        own, imported = vars(module)["model_paths"], f"{__name__}.papers.imported.model:ImportedModel"
        vars(module)["model_paths"] = cache(lambda: tuple(sorted({*own(), imported})))


class _Finder(MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or type(spec.loader) is not SourceFileLoader:
            return spec
        if fullname == f"{__name__}.papers" and spec.submodule_search_locations is not None:
            spec.submodule_search_locations.insert(0, str(papers_folder()))
            spec.origin = str(papers_folder() / "__init__.py")  # it lists the packages next to it; the text is ours
        if fullname.startswith(f"{__name__}.") or not is_installed(spec.loader.path):
            loader = _PapersLoader if fullname == f"{__name__}.papers" else _RecordingLoader
            spec.loader = loader(fullname, spec.loader.path)
        return spec


sys.meta_path.insert(sys.meta_path.index(PathFinder), _Finder())


def _report_interrupt(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Report Ctrl-C in one line while a command's modules are imported; later, its `main` does."""
    if issubclass(kind, KeyboardInterrupt):
        print("stopped by Ctrl-C", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


if os.path.basename("".join(sys.argv[:1])) in ("-m", "claimcheck"):  # "-m": while Python looks for the module
    sys.excepthook = _report_interrupt
