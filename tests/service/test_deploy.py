"""`deploy/` and `compose.yaml`, checked by linters and with a real service."""

import http.client
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from service.app import MAX_WORKERS, memory_of
from service.settings import Settings
from tests.project import REPOSITORY
from tests.service.conftest import keys_file
from tests.service.running import Running, running

pytestmark = pytest.mark.slow

UNIT = REPOSITORY / "deploy" / "claimcheck.service"
MANIFEST = REPOSITORY / "deploy" / "kubernetes.yaml"
OBJECTS = {item["kind"]: item for item in yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8"))}
POD = OBJECTS["Deployment"]["spec"]["template"]["spec"]
CONTAINER = POD["containers"][0]
MOST_EXPOSED = 20  # tenths; an unconfined unit has 96


def lint(*command: str) -> str:
    program = Path(sys.executable).parent / command[0]
    done = subprocess.run(
        [str(program) if program.is_file() else command[0], *command[1:]], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def unit_here(folder: Path) -> Path:
    """Write the unit with this clone as its installation folder."""
    text = UNIT.read_text(encoding="utf-8")
    assert "/opt/claimcheck/.venv/bin/python -m service" in text
    place = folder / UNIT.name
    place.write_text(
        text.replace("/opt/claimcheck/.venv/bin/python", sys.executable).replace("/opt/claimcheck", str(REPOSITORY)),
        encoding="utf-8",
    )
    return place


def test_systemd_unit_is_valid_and_confines_the_service(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here; on Debian: apt install systemd")
    assert lint("systemd-analyze", "verify", str(unit_here(tmp_path))).strip() == ""
    found = lint(
        "systemd-analyze", "security", "--offline=yes", f"--threshold={MOST_EXPOSED}", str(unit_here(tmp_path))
    )
    assert re.search(r"Overall exposure level for claimcheck.service: [01]\.\d", found), found


def test_manifest_matches_kubernetes_schemas() -> None:
    lint("kubernetes-validate", "--strict", str(MANIFEST))


def test_compose_file_matches_its_schema_and_restarts() -> None:
    compose = REPOSITORY / "compose.yaml"
    lint("check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(compose))
    services = yaml.safe_load(compose.read_text(encoding="utf-8"))["services"]
    assert {name: services[name]["restart"] for name in services} == {
        "database": "unless-stopped",
        "record": "on-failure:3",
        "service": "unless-stopped",
    }


def test_pod_has_minimal_rights() -> None:
    dockerfile = (REPOSITORY / "Dockerfile").read_text(encoding="utf-8")
    assert POD["securityContext"]["runAsNonRoot"] and f"USER {POD['securityContext']['runAsUser']}" in dockerfile
    assert not POD["automountServiceAccountToken"]
    security = CONTAINER["securityContext"]
    assert security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert set(CONTAINER["resources"]["limits"]) == {"cpu", "memory", "ephemeral-storage"}
    assert OBJECTS["ConfigMap"]["data"]["CLAIMCHECK_WORKERS"] == CONTAINER["resources"]["limits"]["cpu"]
    ends = POD["terminationGracePeriodSeconds"]
    assert ends > 30 + float(OBJECTS["ConfigMap"]["data"]["CLAIMCHECK_DRAIN_SECONDS"]), "requests end within 30 s"


def test_memory_limits_cover_all_that_the_service_may_use() -> None:
    compose = yaml.safe_load((REPOSITORY / "compose.yaml").read_text(encoding="utf-8"))["services"]["service"][
        "mem_limit"
    ]
    for written, workers in ((CONTAINER["resources"]["limits"]["memory"], 2), (compose, MAX_WORKERS)):
        limit = int(re.fullmatch(r"(\d+)[Gg]i?", written)[1]) << 30  # type: ignore[index]
        parts = memory_of(Settings(), workers, limit)
        assert sum(parts.values()) <= limit and parts["weights"] >= 512 << 20, parts
    assert memory_of(Settings(model_memory_bytes=1), 2, limit)["weights"] == 1


def test_every_setting_mentioned_exists() -> None:
    known = {f"CLAIMCHECK_{name.upper()}" for name in Settings.model_fields}
    known |= {"CLAIMCHECK_DATABASE_PASSWORD", "CLAIMCHECK_READER_PASSWORD"}
    for path in (UNIT, MANIFEST, REPOSITORY / "compose.yaml", REPOSITORY / "Dockerfile"):
        assert set(re.findall(r"CLAIMCHECK_[A-Z_]+", path.read_text(encoding="utf-8"))) - {"CLAIMCHECK_"} <= known, (
            path.name
        )


def test_service_with_these_settings_answers_probes(root: Path, tmp_path: Path) -> None:
    """Sent like a node does: to the pod's address instead of a host name."""
    settings: dict[str, Any] = OBJECTS["ConfigMap"]["data"] | {"CLAIMCHECK_KEYS": str(keys_file(tmp_path, ann="key"))}
    settings["CLAIMCHECK_ALLOWED_HOSTS"] += ",127.0.0.1"  # this test waits for the public port
    stall = float(re.findall(r"WatchdogSec=(\d+)", UNIT.read_text(encoding="utf-8"))[0])
    assert stall > Settings().stall_seconds, "a stall is logged with stacks if possible"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(10)
        settings["NOTIFY_SOCKET"] = str(tmp_path / "notify")
        with running(root, tmp_path, **settings) as service:
            assert [systemd.recv(100), systemd.recv(100)] == [b"READY=1\nWATCHDOG=1"] * 2
            processes = [server := psutil.Process(service.process.pid), *server.children(recursive=True)]
            parts = memory_of(Settings(), 2, 0)
            assert sum(one.memory_full_info().pss for one in processes) < parts["server"] + parts["workers"]
            ask_as_the_node_does(service)


def ask_as_the_node_does(service: Running) -> None:
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = CONTAINER[name]["httpGet"]
        connection = http.client.HTTPConnection(service.host, service.port, timeout=CONTAINER[name]["timeoutSeconds"])
        connection.request("GET", probe["path"], headers={"User-Agent": "kube-probe/1.31", "Host": "10.1.2.3:8000"})
        response = connection.getresponse()
        assert (response.status, name) == (200, name), response.read()
        response.read()
        connection.request("GET", "/compare", headers={"Host": "10.1.2.3:8000"})
        assert connection.getresponse().status == 421
        connection.close()
