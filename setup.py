"""Build the package; pyproject.toml has everything that is the same in a checkout and in a wheel.

A wheel has one top-level package, `claimcheck`: the library under its own name, and the application below `app`, which
only the `claimcheck` command puts on the path.  Moving the library's modules instead would change their digests.
"""

import re
import shutil
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

LIBRARY = ("rules.py", "texts.py", "yaml_reader.py", "reported/*.py", "verdicts/*.py")
READ = ("dvc.yaml", "params.yaml", ".gitignore", ".dvc/plots/arms.json", "docs/*.md")
"""Files that the application reads next to its code."""


class BuildPackage(build_py):
    """Builds `claimcheck` alone; in editable mode, as a checkout is."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        built, package = Path(self.build_lib), Path(self.build_lib, "claimcheck")
        shutil.rmtree(package, ignore_errors=True)
        for name in ("stages", "service"):
            shutil.move(built / name, package / "app" / name)
        for path in (path for pattern in READ for path in Path().glob(pattern)):
            (package / "app" / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, package / "app" / path)
        shutil.move(built / "claimcheck.py", package / "__init__.py")
        for path in [package / "__init__.py", *(path for pattern in LIBRARY for path in Path("stages").glob(pattern))]:
            target = path if path.is_relative_to(built) else package / path.relative_to("stages")
            target.parent.mkdir(exist_ok=True)
            names = r"\bstages\.(rules|texts|yaml_reader|reported|verdicts)\b"
            text = re.sub(names, r"claimcheck.\1", path.read_text(encoding="utf-8"))
            target.write_text(text, encoding="utf-8")
        about = Path(self.get_finalized_command("egg_info").egg_info)
        (about / "top_level.txt").write_text("claimcheck\n", encoding="utf-8")


def read_requirements(*groups: str) -> list[str]:
    lines = "\n".join(Path("requirements", f"{group}.in").read_text(encoding="utf-8") for group in groups).splitlines()
    return [line.partition("#")[0].strip() for line in lines if line[:1].isalpha()]


# A checkout's command doesn't wait for pandas, which the library loads.
COMMAND = "stages.cli:main" if "editable_wheel" in sys.argv else "claimcheck.reported.command:main"

setup(
    entry_points={"console_scripts": [f"claimcheck = {COMMAND}"]},
    cmdclass={"build_py": BuildPackage},
    extras_require={
        "export": ["huggingface_hub", "trackio"],
        "plot": ["matplotlib"],
        "trackers": ["pyyaml", "tensorboard"],
        "service": read_requirements("serve"),
        "train": read_requirements("serve", "pipeline"),
    },
)
