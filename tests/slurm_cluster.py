"""A Slurm of two nodes on this machine, from Debian's packages unpacked into a folder: nothing is installed."""

import os
import platform
import pwd
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "munge", "libmunge2",
            "libhwloc15")
FILES = Path(__file__).parent / "slurm"


def unpacked(folder):
    """Debian's packages in `folder`; the test is skipped, with the reason, where they cannot be had."""
    if not all(map(shutil.which, ("apt-get", "dpkg"))):
        pytest.skip("Slurm's packages are Debian's: apt-get and dpkg are not here")
    (folder / "deb").mkdir(parents=True)
    got = subprocess.run(["apt-get", "download", *PACKAGES], cwd=folder / "deb", capture_output=True, text=True)
    if got.returncode:
        pytest.skip(f"Slurm's packages cannot be downloaded: {got.stderr.strip().splitlines()[-1:]}")
    for package in (folder / "deb").glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, folder], check=True)
    for daemon in (folder / "usr" / "sbin").glob("*-wlm"):
        daemon.with_name(daemon.name.removesuffix("-wlm")).symlink_to(daemon.name)
    return folder


class Cluster:
    """Daemons of one cluster; a context manager that ends each of them. environment: what its clients need."""

    def __init__(self, folder):
        self.folder, self.running, self.stack = folder, {}, ExitStack()
        self.root = unpacked(folder / "root")
        libraries = next(self.root.glob("usr/lib/*/slurm-wlm"))
        for name in ("state", "munge", "spool-n1", "spool-n2"):
            (folder / name).mkdir(mode=0o700)
        (folder / "munge" / "key").write_bytes(os.urandom(128))
        (folder / "munge" / "key").chmod(0o600)
        text = (FILES / "slurm.conf").read_text()
        for word, value in {"HOST": platform.node(), "USER": pwd.getpwuid(os.getuid()).pw_name, "FOLDER": str(folder),
                            "PLUGINS": str(libraries)}.items():
            text = text.replace(word, value)
        (folder / "slurm.conf").write_text(text)
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (folder / "bin").mkdir()  # a step of a job does not get SLURM_CONF; a site has its file in /etc
        step = f'SLURM_CONF={folder}/slurm.conf exec {self.root}/usr/bin/srun "$@"'
        (folder / "bin" / "srun").write_text(f"#!/bin/sh\n{step}\n")
        (folder / "bin" / "srun").chmod(0o755)
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf"),
                            "LD_LIBRARY_PATH": f"{libraries.parent}:{libraries}",
                            "PATH": f"{folder}/bin:{self.root}/usr/bin:{os.environ['PATH']}"}

    def start(self, name):
        """Start munged, slurmctld or a node (n1, n2), with a log of its own."""
        munge = self.folder / "munge"
        sbin = self.root / "usr" / "sbin"
        command = {
            "munged": [sbin / "munged", "-F", "--force", f"--socket={munge}/socket", f"--key-file={munge}/key",
                       f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed"],
            "slurmctld": [sbin / "slurmctld", "-D"]}
        command = command.get(name) or [sbin / "slurmd", "-D", "-N", name, "-d", sbin / "slurmstepd"]
        log = self.stack.enter_context(open(self.folder / f"{name}.out", "ab"))
        environment = os.environ | self.environment | {"LOOPBACK_NODE": name}
        self.running[name] = subprocess.Popen(list(map(str, command)), env=environment, stdout=log, stderr=log,
                                              start_new_session=True)

    def run(self, *command):
        """What a client of Slurm prints."""
        return subprocess.run(command, env=os.environ | self.environment, capture_output=True, text=True,
                              timeout=60).stdout

    def jobs_of(self, node):
        """The processes that a node has started: all that know its name, or the variable of its daemon."""
        found, words = [], (f"SLURMD_NODENAME={node}\0".encode(), f"LOOPBACK_NODE={node}\0".encode())
        for process in Path("/proc").glob("[0-9]*"):
            try:
                text = (process / "environ").read_bytes()
            except OSError:
                continue
            if any(word in text for word in words) and str(self.folder).encode() in text:
                found.append(int(process.name))
        return found

    def kill(self, name):
        """kill -9 a daemon and, of a node, all that runs on it."""
        for pid in [self.running[name].pid, *self.jobs_of(name)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.running.pop(name).wait(10)

    def wait(self, what, seconds):
        """Wait until `what()` holds; fails with the controller's last words."""
        for _ in range(seconds * 2):
            if what():
                return
            time.sleep(0.5)
        pytest.fail(f"{self.run('sinfo', '-N')}\n{self.run('squeue')}\n" + "\n".join(
            (self.folder / name).read_text(errors="replace")[-1500:] for name in ("slurmctld.out", "n1.out")
            if (self.folder / name).is_file()))

    def __enter__(self):
        for name in ("munged", "slurmctld", "n1", "n2"):
            self.start(name)
            time.sleep(1)
        try:
            self.wait(lambda: self.run("sinfo", "-h", "-o", "%D %t").split() == ["2", "idle"], 60)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.run("scancel", "--state=running", "--me")
        for process in reversed(self.running.values()):
            process.terminate()
        for process in self.running.values():
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
        for pid in [*self.jobs_of("n1"), *self.jobs_of("n2")]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.stack.close()
