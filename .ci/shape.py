"""Print the size of the project's files in git as a Markdown table; `make shape` calls it.

Give a revision to compare with it: `.ci/shape.py main`.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path
from statistics import median

SOURCE = ("stages/", "service/")
SUFFIXES = (".py", ".md", ".cpp", ".h")
NO_DOCUMENTS = ("CHANGELOG.md", "docs/results.md", "docs/findings.md", "docs/performance.md")  # a log, generated pages
PAPERS = "docs/papers/"
NOT_BY_HAND = re.compile(r"<!-- [^>\n]*: [^>\n]* -->.*?<!-- end -->|^```.*?^```", re.DOTALL | re.MULTILINE)


def read_tree(revision: str | None) -> dict[str, str]:
    """Return the text of every counted file by path; `revision` None means the working tree."""
    if revision is None:
        listing = subprocess.run(["git", "ls-files", "-z"], capture_output=True, check=True).stdout
        files = [Path(name) for name in listing.decode().split("\0") if name.endswith(SUFFIXES)]
        return {str(path): path.read_text(encoding="utf-8") for path in files if path.is_file()}
    done = subprocess.run(["git", "archive", revision], capture_output=True, check=False)
    if done.returncode:
        sys.exit(f"shape: {revision} is not a revision of this clone: {done.stderr.decode().strip()}")
    packed = done.stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        members = [member for member in archive if member.isfile() and member.name.endswith(SUFFIXES)]
        return {member.name: file.read().decode() for member in members if (file := archive.extractfile(member))}


def count_words(text: str) -> int:
    """Count handwritten words: without code, and without tables that a program writes or a test recomputes."""
    return len(re.findall(r"\S*\w\S*", NOT_BY_HAND.sub("", text)))


def used_once(tree: ast.AST) -> int:
    """Count private functions whose module uses them exactly once."""
    uses = Counter(
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.Attribute)
    )
    return sum(
        node.name.startswith("_") and not node.name.endswith("__") and uses[node.name] == 1
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def import_lines(tree: ast.AST) -> int:
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in statements)


def measure(texts: dict[str, str]) -> dict[str, str]:
    """Return each row of the table: label and number."""
    modules = {name: text for name, text in texts.items() if name.startswith(SOURCE) and name.endswith(".py")}
    trees = [ast.parse(text) for text in modules.values()]
    classes = Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    words = {
        name: count_words(text) for name, text in texts.items() if name.endswith(".md") and name not in NO_DOCUMENTS
    }
    of_papers = sum(number for name, number in words.items() if name.startswith(PAPERS))

    def lines(folders: tuple[str, ...]) -> int:
        return sum(
            text.count("\n") for name, text in texts.items() if name.startswith(folders) and not name.endswith(".md")
        )

    return {
        "source lines (`stages`, `service`, with C++)": f"{lines(SOURCE):,}",
        "lines of tests": f"{lines(('tests/',)):,}",
        "lines of benchmarks": f"{lines(('benchmarks/',)):,}",
        "words written by hand, pages of papers apart": f"{sum(words.values()) - of_papers:,}, {of_papers:,}",
        "modules in `stages` and `service`": f"{len(modules):,}",
        "lines of a module (median)": f"{median(text.count(chr(10)) for text in modules.values()):.0f}",
        "lines of imports": f"{sum(map(import_lines, trees)):,}",
        "private functions used once": f"{sum(map(used_once, trees)):,}",
        "class names that occur twice": f"{sum(times > 1 for times in classes.values()):,}",
    }


def main() -> None:
    columns = {revision: measure(read_tree(revision)) for revision in sys.argv[1:]} | {"here": measure(read_tree(None))}
    print(f"| | {' | '.join(columns)} |\n|---|{'--:|' * len(columns)}")
    for name in columns["here"]:
        print(f"| {name} | {' | '.join(column[name] for column in columns.values())} |")


if __name__ == "__main__":
    main()
