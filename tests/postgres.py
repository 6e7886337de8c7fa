"""A temporary PostgreSQL cluster on a free local port, removed after the tests."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.server import free_port

USER = "claimcheck"


def find_programs() -> Path | None:
    """Return the folder of `initdb` and `pg_ctl`, which Debian keeps off the PATH."""
    found = [Path(path).parent for path in [shutil.which("initdb")] if path]
    return next(iter(found + sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None)


@dataclass(frozen=True)
class Cluster:
    """A local server; its URL has no database name."""

    programs: Path
    folder: Path
    owner: str | None
    port: int

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}"

    def run(self, program: str, *arguments: str) -> None:
        command = [str(self.programs / program), "-D", str(self.folder / "data"), *arguments]
        # Output goes to a file because the server would keep a pipe open.
        with (self.folder / "log").open("a", encoding="utf-8") as log:
            done = subprocess.run(command, cwd=self.folder, user=self.owner, stdout=log, stderr=log, check=False)
        assert done.returncode == 0, (self.folder / "log").read_text(encoding="utf-8")

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off"
        self.run("pg_ctl", "-w", "-o", options, "start")

    def stop(self) -> None:
        self.run("pg_ctl", "-w", "-m", "immediate", "stop")


@contextmanager
def cluster(programs: Path) -> Iterator[Cluster]:
    """Run a server that sorts text by locale rules, unlike SQLite."""
    owner = unprivileged_user()
    folder = Path(tempfile.mkdtemp(prefix="claimcheck-postgres-"))
    if owner is not None:
        os.chown(folder, pwd.getpwnam(owner).pw_uid, -1)
    server = Cluster(programs, folder, owner, free_port())
    try:
        locale = ("--locale=C.UTF-8", "--locale-provider=icu", "--icu-locale=en")
        server.run("initdb", "-U", USER, "--auth=trust", "--encoding=UTF8", "--no-sync", *locale)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def unprivileged_user() -> str | None:
    """Return a user for the server, because PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"
