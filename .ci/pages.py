"""Generate the documentation site's pages that docs/ lacks: home, commands, parameters, API, notebook.

A hook of MkDocs (`mkdocs.yml`). It also fills the tables of docs/verdicts.md, like the service on /method.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pydantic import TypeAdapter

from service.pages.concluding import fill_tables
from service.settings import Settings
from stages.claims.lines import read_deviations
from stages.cli import CODES, COMMANDS, build_parser
from stages.params import experiment
from stages.params.experiment import load_params
from stages.run import Protocol

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+(?!docs/)[^)]+|/[^)]*)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    notebook, pictures = read_notebook(json.loads((ROOT / "docs" / "notebook.ipynb").read_text(encoding="utf-8")))
    pages: dict[str, str | bytes] = {
        "index.md": re.sub(r"\]\(docs/", "](", (ROOT / "README.md").read_text(encoding="utf-8")),
        "cli.md": "\n".join(describe_commands()),
        "params.md": "\n".join(describe_params()),
        "api.md": "\n".join(describe_api(json.loads((ROOT / "docs" / "openapi.json").read_text(encoding="utf-8")))),
        "notebook.md": notebook,
        **pictures,
    }
    for name, content in pages.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill the tables of the method, and print names of files outside docs/ instead of links."""
    if page.file.src_uri == "verdicts.md":
        markdown = fill_tables(markdown, load_params(ROOT).verdicts)
    tables = {"<!-- settings -->": describe_settings, "<!-- datasets -->": describe_datasets}
    for mark, describe in tables.items():
        if mark in markdown:
            markdown = markdown.replace(mark, "\n".join(describe()))
    if page.file.src_uri.startswith("papers/"):
        markdown = markdown.replace("<!-- deviations -->", "\n".join(describe_deviations(Path(page.file.name).stem)))
    if page.file.src_uri == "index.md":
        markdown = re.sub(r"\[([^\]]+)\]\((?!http|#)([A-Z]\w+(?:\.\w+)?)\)", r"\1 (`\2`)", markdown)
    markdown = markdown.replace("(notebook.ipynb)", "(notebook.md)")
    return OUTSIDE.sub(lambda found: f"{found[1]} (`{found[2].replace('../', '')}`)", markdown)


def describe_commands() -> Iterator[str]:
    """Yield the reference of the command line from its parsers."""
    yield "# Command line\n\nRun `claimcheck` in the root of a clone. Exit codes, unless a command says otherwise:\n"
    yield from (f"- {code}: {meaning}" for code, meaning in CODES.items())
    yield "\nErrors are one line on stderr. `--json` prints one document on stdout and nothing else.\n"
    _, parsers = build_parser()
    for name, command in COMMANDS.items():
        yield f"## {name}\n\n{command.does}\n\n```sh\n{command.example}\n```\n"
        actions = [one for one in parsers[name]._actions if not isinstance(one, argparse._HelpAction)]
        if actions:
            yield "| argument | meaning |\n|---|---|"
        for one in actions:
            words = ", ".join(one.option_strings) or str(one.metavar or one.dest)
            meaning = (one.help or "").replace("%(default)s", str(one.default))
            yield f"| `{words}` | {cell(meaning)} |".replace("`experiment|claim`", "`experiment` or `claim`")
        yield ""
        yield from (f"Exit code {code}: {meaning}.\n" for code, meaning in command.codes.items())
        if command.document:
            yield f"`--json`: {command.document}.\n"


def cell(text: str) -> str:
    """Escape text for a table cell."""
    return text.replace("|", "\\|")


def describe_settings() -> Iterator[str]:
    """Yield the table of the service's settings from their definitions."""
    yield "| name | default | meaning |\n|---|---|---|"
    for name, field in Settings.model_fields.items():
        default = field.default if isinstance(field.default, str | int | float) else None
        yield f"| `{name.upper()}` | {f'`{default}`' if default not in (None, '') else ''} | {field.description} |"


def describe_datasets() -> Iterator[str]:
    """Yield the table of data sets from params.yaml."""
    yield "| data set | training | test | shape | classes | terms |\n|---|--:|--:|---|--:|---|"
    for one in load_params(ROOT).datasets.values():
        shape = " × ".join(map(str, one.shape))
        yield f"| {one.title} | {one.train:,} | {one.test:,} | {shape} | {one.classes or ''} | {one.licence} |"


def describe_deviations(paper: str) -> Iterator[str]:
    """Yield the table of what a paper leaves open and what we chose."""
    yield "| subject | the paper | ours | why |\n|---|---|---|---|"
    (found,) = read_deviations({paper})
    for one in found.deviations.values():
        cells = (one.subject, one.paper, one.ours, one.why)
        yield f"| {' | '.join(cell(text or '') for text in cells)} |"


def describe_params() -> Iterator[str]:
    """Yield tables of the keys of `params.yaml` and `params/<experiment>.yaml` from their schema."""
    yield "# Parameters\n\nAn unknown key, a wrong type or an unknown name is rejected with its path and the choices.\n"
    for title, kind in (
        ("params.yaml", experiment._Index),
        ("params/<experiment>.yaml", experiment._ExperimentFile),
        ("protocol", Protocol),
    ):
        schema: dict[str, Any] = TypeAdapter(kind).json_schema()
        yield f"## `{title}`\n"
        for name, part in {"": schema, **schema.get("$defs", {})}.items():
            if not part.get("properties"):
                continue
            if name:
                yield f"### {name} ({title})\n"
            yield re.sub(r"\s+", " ", part.get("description", "")).replace("<", "&lt;") + "\n"
            yield "| key | type | default |\n|---|---|---|"
            for key, field in part["properties"].items():
                is_needed = key in part.get("required", ())
                default = "required" if is_needed else f"`{json.dumps(field.get('default'))}`"
                yield f"| `{key}` | {_type_of(field)} | {default} |"
            yield ""


def _type_of(field: dict[str, Any]) -> str:
    if "anyOf" in field or "oneOf" in field:
        return " or ".join(map(_type_of, field.get("anyOf") or field["oneOf"]))
    if "$ref" in field:
        return field["$ref"].rpartition("/")[2]
    if "enum" in field or "const" in field:
        return ", ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    if field.get("type") == "array":
        return f"list of {_type_of(field.get('items') or {})}"
    if field.get("type") == "object" and isinstance(field.get("additionalProperties"), dict):
        return f"mapping to {_type_of(field['additionalProperties'])}"
    limit = f" ≥ {field['minimum']:g}" if "minimum" in field else ""
    return str(field.get("type", "any")) + limit


def describe_api(document: dict[str, Any]) -> Iterator[str]:
    """Yield a table of routes; the service has the full reference at /docs."""
    yield "# HTTP API\n\nThe running service has this reference with schemas and examples at `/docs`.\n"
    yield "| route | parameters | answer |\n|---|---|---|"
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            names = ", ".join(f"`{one['name']}`" for one in route.get("parameters", ()) if "name" in one)
            answer = (route.get("description") or route.get("summary", "")).split("\n\n")[0].replace("\n", " ")
            yield f"| `{method.upper()} {path}` | {names} | {cell(answer)} |"


def read_notebook(document: dict[str, Any]) -> tuple[str, dict[str, bytes]]:
    """Return the notebook as Markdown, and its pictures by name."""
    parts, pictures = list[str](), dict[str, bytes]()
    for cell in document["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                name = f"notebook-{len(pictures)}.png"
                pictures[name] = base64.b64decode(data["image/png"])
                parts.append(f"![{data.get('text/plain', ['Picture'])[0]}]({name})")
            elif text := "".join(output.get("text", data.get("text/plain", ()))):
                parts.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(parts) + "\n", pictures
