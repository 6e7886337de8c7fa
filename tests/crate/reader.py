"""Validate a crate or query it in SPARQL, offline and with only the packages of `reader.lock`.

`reader.py CONTEXT CRATE [QUESTION]`, where CONTEXT is a file with RO-Crate's context, prints JSON.
"""

import json
import sys
import tempfile
from pathlib import Path

import requests
import requests_cache
from rdflib import Graph
from rocrate_validator.models import Severity
from rocrate_validator.services import ValidationSettings, validate

ADDRESS = "https://w3id.org/ro/crate/1.1/context"


class OnDisk(requests.adapters.BaseAdapter):
    """Answers every request with a file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def send(self, request: requests.PreparedRequest, **_: object) -> requests.Response:
        answer = requests.Response()
        answer.status_code, answer.url, answer.request = 200, str(request.url), request
        answer.headers["content-type"] = "application/ld+json"
        answer.raw = requests.packages.urllib3.response.HTTPResponse(
            body=self.path.open("rb"), headers=answer.headers, status=200, preload_content=False
        )
        return answer

    def close(self) -> None:
        """Keep nothing open."""


def find_issues(crate: str, context: Path) -> list[str]:
    """Return the validator's findings against Process Run Crate as `severity: message (entity)`."""
    with tempfile.TemporaryDirectory() as folder:
        cache = str(Path(folder) / "cache")
        with requests_cache.CachedSession(cache, backend="sqlite", expire_after=-1) as session:
            session.mount("https://", OnDisk(context))
            session.get(ADDRESS).raise_for_status()
        result = validate(
            ValidationSettings(
                rocrate_uri=crate,
                profile_identifier="process-run-crate",
                requirement_severity=Severity.RECOMMENDED,
                cache_path=cache,
                offline=True,
                skip_availability_check=True,
            )
        )
        return [f"{one.severity.name}: {one.message} ({one.violatingEntity})" for one in result.get_issues()]


def answer(crate: str, context: Path, question: str) -> list[list[str]]:
    """Query the crate's graph with rdflib."""
    document = json.loads((Path(crate) / "ro-crate-metadata.json").read_text(encoding="utf-8"))
    known = json.loads(context.read_text(encoding="utf-8"))["@context"]
    document["@context"] = [known if part == ADDRESS else part for part in document["@context"]]
    graph = Graph().parse(data=json.dumps(document), format="json-ld", base="https://crate.example/")
    return [[str(value) for value in row] for row in graph.query(question)]


if __name__ == "__main__":
    path, folder, *rest = sys.argv[1:]
    print(json.dumps(answer(folder, Path(path), *rest) if rest else find_issues(folder, Path(path))))
