"""Leases: one owner at a time, taken over only from the dead, and a late riser can't publish."""

import os
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from stages.scheduling.engine import lease as lease_module
from stages.scheduling.engine.lease import LeaseTable
from stages.scheduling.engine.leases import EXPIRY_SECONDS, LeaseLost, process_identity
from tests.project import environment


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "leases.db"


def test_a_process_of_another_container_is_believed_by_its_heartbeat(path: Path) -> None:
    """It may have our host name, and a process id that doesn't exist here."""
    host, boot, namespace, *_ = process_identity(os.getpid()).split(":")
    assert host == socket.gethostname() and boot and namespace
    neighbour = LeaseTable(path, owner=f"{host}:{boot}:1{namespace}:4194304:1")
    assert neighbour.claim("g") is not None
    assert LeaseTable(path).claim("g") is None
    dead = LeaseTable(path, owner=f"{host}:{boot}:{namespace}:4194304:1")
    assert dead.claim("h") is not None
    assert LeaseTable(path).claim("h") is not None, "of our own namespace the process table tells"


HOLD = """
import sys, time
from pathlib import Path
from stages.scheduling.engine.lease import LeaseTable
table = LeaseTable(Path(sys.argv[1]))
lease = table.claim("g")
with table.kept_alive(lease):
    print("held", flush=True)
    sys.stdin.readline()
"""
CLAIM = """
import sys, time
from pathlib import Path
from stages.scheduling.engine.lease import LeaseTable
print(sum(LeaseTable(Path(sys.argv[1])).claim("g") is not None for _ in range(40)))
"""


def test_two_containers_with_one_host_name_take_nothing_over(path: Path) -> None:
    """Real namespaces of process ids, as containers have them."""
    apart = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not make a namespace of process ids")
    holder = subprocess.Popen(
        [*apart, sys.executable, "-c", HOLD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
    )
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    claim = [*apart, sys.executable, "-c", CLAIM, str(path)]
    taken = subprocess.run(claim, capture_output=True, text=True, check=True, env=environment())
    holder.communicate(b"\n", timeout=30)
    assert taken.stdout == "0\n"


def test_a_heartbeat_from_the_future_is_not_believed(path: Path) -> None:
    assert LeaseTable(path, owner="another-host:1:2").claim("g") is not None
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE run_leases SET heartbeat = ?", (time.time() + 3600,))
        connection.commit()
    assert LeaseTable(path).claim("g") is not None


def test_who_holds_a_run_and_since_when_is_told(path: Path) -> None:
    table = LeaseTable(path)
    assert table.holder("g") is None
    lease = table.claim("g")
    assert lease is not None
    holder = str(table.holder("f", "g"))
    assert holder.startswith(f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-')}")
    table.release(lease)
    assert table.holder("g") is None


@pytest.mark.parametrize("damage", ["not a database", "half of it", "a page of noise"])
def test_a_damaged_file_makes_way_and_tokens_still_grow(
    path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    old = LeaseTable(path)
    lease = old.claim("g")
    assert lease is not None
    content = path.read_bytes()
    path.write_bytes(
        {
            "not a database": b"no database at all " * 99,
            "half of it": content[: len(content) // 2],
            "a page of noise": content[:100] + bytes(range(256)) * 16 + content[4196:],
        }[damage]
    )
    healed = LeaseTable(path).claim("g")
    assert healed is not None and healed.tokens[0][1] > lease.tokens[0][1]
    assert "is damaged" in capsys.readouterr().err
    assert len(list(path.parent.glob("leases.db.damaged-*"))) == 1, "nothing is thrown away"
    with pytest.raises(LeaseLost), old.held(lease):
        pytest.fail("the lease of the damaged file is worth nothing")


def test_a_file_of_an_older_version_is_taken_up(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "CREATE TABLE run_leases (run_key TEXT PRIMARY KEY, owner TEXT, token INTEGER, heartbeat REAL)"
        )
        connection.execute("INSERT INTO run_leases VALUES ('g', 'another-host:1:2', 7, ?)", (time.time(),))
        connection.commit()
    table = LeaseTable(path)
    assert table.claim("g") is None
    assert str(table.holder("g")) == "process 1 on another-host"


def test_each_attempt_and_its_end_are_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = LeaseTable(path, owner="another-host:1:2")
    lease = first.claim("g", "h")
    assert lease is not None
    first.close(lease, "failed", "ValueError: no such thing", ["h"])
    later = time.time() + EXPIRY_SECONDS + 1
    monkeypatch.setattr(lease_module.time, "time", lambda: later)
    second = LeaseTable(path)
    lease = second.claim("g")
    assert lease is not None
    second.release(lease)
    lease = second.claim("g")
    assert lease is not None
    second.publish(lease, "g", {"result.json": b"{}"})
    second.release(lease)
    lease = second.claim("g")
    assert lease is not None
    second.close(lease, None)
    assert [(one.owner, one.end, one.reason) for one in second.attempts("g")] == [
        ("another-host:1:2", "lost", "was not heard of for 61 s"),
        (second.owner, "stopped", ""),
        (second.owner, "published", ""),
    ]
    (failed,) = second.attempts("h")
    assert (failed.end, failed.reason, failed.ended is not None) == ("failed", "ValueError: no such thing", True)
