"""Run one call of `tests.preloaded.python`, in the fork that does it; imports none of our code."""

import importlib
import json
import os
import runpy
import sys
import types


def run(arguments: list[str], cwd: str, env: dict[str, str], before: tuple[str, str] | None, executable: str) -> None:
    sys.path.remove(os.getcwd())  # the folder of tests, from which this module was found
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.dont_write_bytecode = bool(env.get("PYTHONDONTWRITEBYTECODE"))
    sys.executable = executable
    option, what, *sys.argv[1:] = arguments
    roots = [os.path.abspath(root) for root in env.get("PYTHONPATH", "").split(os.pathsep) if root]
    sys.path[:0] = [*{"-m": [cwd], "-c": [""], "-P": []}[option], *roots]
    importlib.invalidate_caches()
    if before is not None:
        getattr(importlib.import_module(before[0]), before[1])()
    if option == "-m":
        sys.modules.pop(what, None)  # `before` may have imported the module that now runs as `__main__`
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    elif option == "-P":
        sys.argv[0] = what
        runpy.run_path(what, run_name="__main__")
    else:
        sys.argv[0] = "-c"
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(what, "<string>", "exec"), vars(sys.modules["__main__"]))


if __name__ == "__main__":
    run(**json.loads(sys.argv[1]))
