"""A local Slurm cluster of one node in its own folder: munged, slurmctld and slurmd from Debian."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.polling import wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "sinfo")


def missing() -> list[str]:
    """List missing programs, or `root` without its rights."""
    return [name for name in PROGRAMS if shutil.which(name) is None] or ([] if os.geteuid() == 0 else ["root"])


def ports() -> list[int]:
    bound = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    try:
        return [one.getsockname()[1] for one in bound]
    finally:
        for one in bound:
            one.close()


@contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """Return the environment in which commands reach the cluster."""
    host, (controller, node) = socket.gethostname().split(".")[0], ports()
    for name in ("state", "spool", "munge"):
        (folder / name).mkdir(mode=0o700)
    (folder / "munge" / "key").write_bytes(os.urandom(1024))
    (folder / "munge" / "key").chmod(0o400)
    munge = folder / "munge"
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n", encoding="utf-8")
    (folder / "slurm.conf").write_text(
        f"ClusterName=test\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser=root\n"
        f"SlurmctldPort={controller}\nSlurmdPort={node}\n"
        f"AuthType=auth/munge\nAuthInfo=socket={munge / 'socket'}\nCredType=cred/munge\n"
        f"StateSaveLocation={folder / 'state'}\nSlurmdSpoolDir={folder / 'spool'}\n"
        f"SlurmctldPidFile={folder / 'ctld.pid'}\nSlurmdPidFile={folder / 'd.pid'}\n"
        "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSelectType=select/cons_tres\n"
        "SelectTypeParameters=CR_Core\nReturnToService=2\nMpiDefault=none\n"
        f"NodeName={host} NodeAddr=127.0.0.1 CPUs={os.cpu_count()} State=UNKNOWN\n"
        f"PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES\n",
        encoding="utf-8",
    )
    configuration = str(folder / "slurm.conf")
    environment = os.environ | {"SLURM_CONF": configuration}
    files = {name: f"--{name}={munge / name.removesuffix('-file')}" for name in ("socket", "key-file", "pid-file")}
    commands = [
        ["munged", "-F", "--force", *files.values(), f"--log-file={munge / 'log'}", f"--seed-file={munge / 'seed'}"],
        ["slurmctld", "-D", "-f", configuration],
        ["slurmd", "-D", "-f", configuration],
    ]
    running: list[subprocess.Popen[bytes]] = []
    try:
        with (folder / "log").open("wb") as log:
            for command in commands:
                running.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
                if command[0] == "munged":
                    wait_until((munge / "socket").exists, 30)
        wait_until(lambda: "idle" in _answer(["sinfo", "-h", "-o", "%T"], environment), 60)
        yield environment
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait(30)


def _answer(command: list[str], environment: dict[str, str]) -> str:
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=30).stdout
