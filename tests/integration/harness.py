"""Starts xfer's real programs for the integration tests, and ends them again whatever happens.

Every process is started by the test itself and ended by pid. Every wait has a deadline.
"""

import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

BIN = os.environ.get("XFER_BIN_DIR", os.path.join(os.path.dirname(__file__), "../../build/release/bin"))


def program(name):
    return os.path.join(os.path.abspath(BIN), name)


def clean_environment():
    return {k: v for k, v in os.environ.items()
            if not k.startswith("XFER_") and k not in ("CKPT_SAVE_DIR", "SKIP_VALIDATION", "BUCKET_SIZE_GB")}


def wait_until(condition, seconds, what):
    """Polls `condition` (the only way to watch another process's state); fails the test after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError("not within %g s: %s" % (seconds, what))
        time.sleep(0.02)


def alive(pid):
    try:
        with open("/proc/%d/stat" % pid) as f:
            return f.read().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False


def descendants(pid):
    """All processes below `pid`, whatever their depth."""
    children = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open("/proc/%s/stat" % entry) as f:
                    parent = int(f.read().rsplit(")", 1)[1].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            children.setdefault(parent, []).append(int(entry))
    found, queue = [], [pid]
    while queue:
        for child in children.get(queue.pop(), []):
            found.append(child)
            queue.append(child)
    return found


class XferTest(unittest.TestCase):
    """A temporary directory, and processes that are ended with the test."""

    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="xfer-test-")
        self.processes = []

    def tearDown(self):
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait(timeout=10)
            for stream in (process.stdout, process.stderr):
                if stream:
                    stream.close()
        shutil.rmtree(self.dir, ignore_errors=True)

    def path(self, *parts):
        return os.path.join(self.dir, *parts)

    def run_program(self, *args, timeout=120, env=None, prefix=()):
        """Runs to the end; returns the CompletedProcess with text output."""
        environment = clean_environment()
        environment.update(env or {})
        return subprocess.run([*prefix, program(args[0]), *args[1:]], capture_output=True, text=True,
                              timeout=timeout, env=environment, cwd=self.dir)

    def xferctl(self, *args, **kwargs):
        return self.run_program("xferctl", *args, **kwargs)

    def start(self, *args, prefix=(), log=None, ready=True, env=None):
        """Starts a daemon; with `ready`, waits for its line on --ready-fd and returns (process, words)."""
        environment = clean_environment()
        environment.update(env or {})
        command = [*prefix, program(args[0]), *args[1:]]
        read_end = write_end = None
        if ready:
            read_end, write_end = os.pipe()
            command += ["--ready-fd", str(write_end)]
        log_file = open(log or self.path(args[0] + "-%d.log" % len(self.processes)), "w")
        process = subprocess.Popen(command, stdout=log_file, stderr=subprocess.STDOUT, env=environment,
                                   cwd=self.dir, stdin=subprocess.DEVNULL,
                                   pass_fds=[write_end] if ready else [])
        process.log_path = log_file.name
        log_file.close()
        self.processes.append(process)
        if not ready:
            return process, []
        os.close(write_end)
        try:
            line = b""
            while not line.endswith(b"\n"):
                if not select.select([read_end], [], [], 60)[0]:
                    raise AssertionError("%s not ready within 60 s: %s" % (args[0], self.log_of(process)))
                part = os.read(read_end, 4096)
                if not part:
                    raise AssertionError("%s ended early: %s" % (args[0], self.log_of(process)))
                line += part
        finally:
            os.close(read_end)
        words = line.decode().split()
        self.assertEqual(words[0], "ready")
        return process, words[1:]

    def log_of(self, process):
        with open(process.log_path) as f:
            return f.read()[-4000:]

    def assert_exit(self, result, code):
        self.assertEqual(result.returncode, code,
                         "exit %d\nstdout: %s\nstderr: %s" % (result.returncode, result.stdout[-4000:],
                                                              result.stderr[-4000:]))

    def end(self, process, seconds=15):
        """SIGTERM; the process must end by itself with status 0."""
        process.terminate()
        self.assertEqual(process.wait(timeout=seconds), 0, self.log_of(process))


class Cluster:
    """A coordinator, agents and emulated ranks, each a process of its own, for one job."""

    def __init__(self, test, model="Qwen3-4B", layers=2, tiny=True, last_version=9, prefixes=(),
                 hosts=("127.0.0.1", "127.0.0.1"), check="full", coordinator_args=(), agent_args=(),
                 node_args=((), ())):
        self.test = test
        self.prefixes = prefixes or ((), ())
        self.hosts = hosts
        self.agent_args = list(agent_args)
        self.node_args = node_args  # of each node's agent
        self.insecure = [] if all(h.startswith("127.") for h in hosts) else ["--insecure"]
        arguments = ["prepare", model, "--synthesize", "--ckpt-dir", test.path("ckpt"), "--layers",
                     str(layers), "--output", "json"] + (["--tiny"] if tiny else [])
        result = test.xferctl(*arguments, timeout=300)
        test.assert_exit(result, 0)
        self.prepared = json.loads(result.stdout)["dir"]
        self.coordinator_args = list(coordinator_args)
        self.start_coordinator(hosts[0] + ":0")
        self.agents = [None, None]
        for node in (0, 1):
            self.start_agent(node)
        self.job = "job"
        with open(os.path.join(self.prepared, "prepared.json")) as f:
            self.spec = json.load(f)["spec"]
        result = self.ctl("jobs", "create", self.job, "--prepared", self.prepared)
        test.assert_exit(result, 0)
        self.check = check
        self.last_version = last_version
        self.trainers = self.start_ranks(0, "--trainers", "0-%d" % (self.spec["train"]["world"] - 1))
        engine = self.spec["rollout"]["gpus_per_engine"]
        engines = self.spec["rollout"]["world"] // engine
        self.rollout = self.start_ranks(
            1, "--rollout", ",".join("%d:0-%d" % (e, engine - 1) for e in range(engines)))

    def start_coordinator(self, listen):
        self.coordinator, words = self.test.start(
            "xfer-coordinator", "--listen", listen, *self.insecure, *self.coordinator_args, prefix=self.prefixes[0])
        self.address = words[0]

    def start_agent(self, node):
        self.agents[node], _ = self.test.start(
            "xfer-agent", "--coordinator", self.address, "--node", "node%d" % node, "--socket",
            self.test.path("agent%d.sock" % node), "--listen", self.hosts[node] + ":0", *self.insecure,
            *self.agent_args, *self.node_args[node], prefix=self.prefixes[node])

    def start_ranks(self, node, *which):
        process, _ = self.test.start(
            "xfer-rank", "--agent-socket", self.test.path("agent%d.sock" % node), "--job", self.job,
            "--prepared", self.prepared, "--last-version", str(self.last_version), "--check", self.check,
            *which, prefix=self.prefixes[node])
        return process

    def ctl(self, *args, **kwargs):
        return self.test.xferctl("--coordinator", self.address, *args, prefix=self.prefixes[0], **kwargs)

    def json(self, *args, code=0, **kwargs):
        result = self.ctl("--output", "json", *args, **kwargs)
        self.test.assert_exit(result, code)
        return json.loads(result.stdout)


class SyncTest(XferTest):
    """What tests of syncs wait for."""

    def wait_for_version(self, cluster, version):
        """All trainers at `version`, and every rollout rank's verdict on the one before."""
        def ready():
            ranks = cluster.json("ranks")
            return all(r["ready_version"] == version for r in ranks if r["id"]["role"] == "trainer") and all(
                r["owner_report"] and r["owner_report"]["version"] == version - 1
                for r in ranks if r["id"]["role"] == "rollout")
        wait_until(ready, 60, "trainers at version %d" % version)

    def verdicts(self, cluster):
        return {(r["id"]["engine"], r["id"]["rank"]): r["owner_report"]["outcome"]["code"]
                for r in cluster.json("ranks") if r["id"]["role"] == "rollout"}

    def wait_for_engine_versions(self, cluster, versions):
        wait_until(lambda: {e["engine"]: e["version"] for e in cluster.json("engines")} == versions, 30,
                   "engines at %s" % versions)

    def start_stalled_sync(self, cluster, timeout):
        """Stops the receiving agent, so that a sync begins and cannot end; returns the sync's id."""
        os.kill(cluster.agents[1].pid, signal.SIGSTOP)
        return cluster.json("sync", "--no-wait", "--timeout", str(timeout))["id"]

    def ended(self, cluster, sync_id):
        (sync,) = [s for s in cluster.json("syncs") if s["id"] == sync_id]
        return sync if sync["state"] != "running" else None

    def sync_until_done(self, cluster, version):
        """The next sync that is accepted (all ranks are registered again) must succeed."""
        def attempt():
            result = cluster.ctl("sync", "--version", str(version), "--timeout", "60")
            if result.returncode != 0:
                self.assertRegex(result.stderr, "registered|running|node")
            return result.returncode == 0
        wait_until(attempt, 60, "a sync after the fault")
        self.wait_for_engine_versions(cluster, {0: version, 1: version})
        wait_until(lambda: set(self.verdicts(cluster).values()) == {0}, 60, "every rank equal")
