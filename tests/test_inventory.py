"""Supply chain: `make sbom` lists what the locks pin, and `make audit` its known vulnerabilities."""

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.project import captured

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
Advise = Callable[[str], dict[str, Any]]


def make(target: str, at: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `make <target>` on this clone's locks and environment; output goes below `at`."""
    for part in ("Makefile", ".ci", ".venv", "params", "pyproject.toml", "README.md", "requirements", "stages"):
        (at / part).symlink_to(ROOT / part)
    return captured(["make", target, f"READY={at}"], cwd=at, env={**os.environ, **environment})


def pins(*groups: str) -> set[tuple[str, str]]:
    text = "".join((ROOT / "requirements" / f"{group}.lock").read_text(encoding="utf-8") for group in groups)
    return set(re.findall(r"^([a-z0-9._-]+)==([^ ;]+)", text, re.MULTILINE))


def test_sboms_list_every_pinned_package_with_version_and_hash(tmp_path: Path) -> None:
    done = make("sbom", tmp_path)
    assert done.returncode == 0, done.stderr
    for name, groups in {"serve": ("serve",), "all": ("serve", "pipeline", "dev", "docs")}.items():
        bill = json.loads((tmp_path / "sbom" / f"{name}.cdx.json").read_text(encoding="utf-8"))
        assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "claimcheck")
        assert {(one["name"], one["version"]) for one in bill["components"]} == pins(*groups)
        for one in bill["components"]:
            assert one["purl"] == f"pkg:pypi/{one['name']}@{one['version']}"
            assert one["externalReferences"][0]["hashes"], one["name"]


@pytest.fixture
def advisories() -> Iterator[Callable[[Advise], str]]:
    """Serve OSV's query API with the answers of `advise`; return its address."""
    servers = []

    def serve(advise: Advise) -> str:
        class Query(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
                body = json.dumps(advise(asked["package"]["name"])).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Stay silent."""

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Query))
        Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def a_fault_of(*faulty: str) -> Advise:
    affected = [{"package": {"ecosystem": "PyPI", "name": name}, "versions": []} for name in faulty]
    found = {"vulns": [{"id": "PYSEC-2026-1", "summary": "A fault.", "affected": affected}]}
    return lambda name: found if name in faulty else {}


def test_audit_queries_every_pinned_package(tmp_path: Path, advisories: Callable[[Advise], str]) -> None:
    asked = []

    def advise(name: str) -> dict[str, Any]:
        asked.append(name)
        return a_fault_of("jinja2")(name) if len(asked) == 1 else {}

    done = make("audit", tmp_path, OSV_URL=advisories(advise))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "audit: no vulnerability is known in what the locks pin for this machine\n"
    pinned = {name for name, _ in pins("serve", "pipeline", "dev", "docs")}
    assert {"torch", "fastapi", "dvc", "pytest"} <= set(asked) <= pinned


def test_audit_lists_vulnerable_packages(tmp_path: Path, advisories: Callable[[Advise], str]) -> None:
    done = make("audit", tmp_path, OSV_URL=advisories(a_fault_of("jinja2", "pillow")))
    assert done.returncode != 0 and "NOT AUDITED" not in done.stderr
    assert re.search(r"^pillow +[\d.]+ +PYSEC-2026-1", done.stdout, re.MULTILINE)
    assert "no vulnerability is known" not in done.stdout


def test_audit_rejects_advisories_that_know_no_vulnerability(
    tmp_path: Path, advisories: Callable[[Advise], str]
) -> None:
    done = make("audit", tmp_path, OSV_URL=advisories(a_fault_of()))
    assert done.returncode != 0 and done.stdout == ""
    assert "audit: NOT AUDITED: the advisories don't know the faults of jinja2 2.10" in done.stderr


def test_audit_without_network_does_not_pass(tmp_path: Path) -> None:
    done = make("audit", tmp_path, OSV_URL="http://127.0.0.1:9/")
    assert done.returncode != 0 and done.stdout == ""
    assert re.search(r"^audit: NOT AUDITED: .*Connection refused", done.stderr, re.MULTILINE)
