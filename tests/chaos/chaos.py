#!/usr/bin/env python3
"""chaos.py --seed N --minutes M [--faults A,B,...] [--json FILE]: breaks a small cluster at random moments of its syncs,
and checks the promises after each fault.

Two hosts (network namespaces, a link that is slow on purpose) run a coordinator with its state in a file, two agents,
four trainers and two engines of two ranks, which compare every byte. Each round starts a sync, injects one fault at a
random moment of it, takes the fault away, and checks:
  no hang         the sync has ended within its deadline, the grace of its resume phase, and a margin
  no wrong byte   an engine that is reported at a version, and not dirty, holds that version: its ranks say so
  recovery        the next sync is done, and every rank is equal, without anyone's help (processes that were killed are
                  started again, as a supervisor would)
  no leak         descriptors and memory of the coordinator and the agents stay where they were
The same seed makes the same faults in the same order; when each strikes depends on the machine as well. Needs root.
"""

import argparse
import collections
import json
import os
import random
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../integration"))

from harness import Cluster, SyncTest, wait_until  # noqa: E402
from namespaces import TwoHosts  # noqa: E402

DEADLINE_S = 6
RESUME_GRACE_S = 5
MARGIN_S = 6
RATE = "3mbit"
MAX_DESCRIPTORS_MORE = 16
MAX_BYTES_MORE = 64 << 20


class Broken(Exception):
    """A promise was broken."""


def descriptors(pid):
    return len(os.listdir("/proc/%d/fd" % pid))


def anonymous_bytes(pid):
    with open("/proc/%d/status" % pid) as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("RssAnon:"))


class Chaos(SyncTest):
    """One cluster; the faults are its methods, named fault_*. Each returns what takes it away again, or None."""

    def runTest(self):
        pass

    def begin(self, seed):
        self.random = random.Random(seed)
        self.hosts = TwoHosts()
        self.addCleanup(self.hosts.close)
        self.cluster = Cluster(self, layers=8, last_version=10 ** 6,
                               prefixes=(self.hosts.prefix(0), self.hosts.prefix(1)), hosts=self.hosts.addresses,
                               coordinator_args=("--state", self.path("coordinator.db")))
        self.hosts.limit(0, RATE)
        self.baseline = {}
        self.stats = collections.Counter()
        self.phases = collections.Counter()
        self.faults = collections.Counter()
        self.times = {"fault_to_error_s": [], "recovery_s": []}
        self.recover()
        begin = time.monotonic()
        self.recover()
        self.usual_s = max(0.2, time.monotonic() - begin)

    # --- faults

    def fault_kill_coordinator(self):
        self.cluster.coordinator.kill()
        self.cluster.coordinator.wait(timeout=10)
        return lambda: None  # revive() starts it

    def fault_stop_coordinator(self):
        return self.stop(self.cluster.coordinator)

    def fault_kill_receiving_agent(self):
        self.cluster.agents[1].kill()

    def fault_kill_sending_agent(self):
        self.cluster.agents[0].kill()

    def fault_stop_receiving_agent(self):
        return self.stop(self.cluster.agents[1])

    def fault_stop_sending_agent(self):
        return self.stop(self.cluster.agents[0])

    def fault_kill_engines(self):
        self.cluster.rollout.kill()

    def fault_kill_trainers(self):
        self.cluster.trainers.kill()

    def fault_stop_engines(self):
        return self.stop(self.cluster.rollout)

    def fault_stop_trainers(self):
        return self.stop(self.cluster.trainers)

    def fault_link_down(self):
        link = ("-n", self.hosts.names[1], "link", "set", "veth0")
        self.hosts.ip(*link, "down")
        return lambda: self.hosts.ip(*link, "up")

    def fault_packets_dropped(self):
        rule = ["INPUT", "-i", "veth0", "-p", "tcp", "-m", "statistic", "--mode", "random", "--probability", "0.5",
                "-j", "DROP"]
        table = [*self.hosts.prefix(1), "iptables", "-w", "5"]
        subprocess.run([*table, "-A", *rule], check=True, timeout=20)
        return lambda: subprocess.run([*table, "-D", *rule], check=True, timeout=20)

    def fault_link_crawls(self):
        self.hosts.limit(0, "100kbit")
        return lambda: self.hosts.limit(0, RATE)

    def fault_cancel(self):
        self.cluster.ctl("cancel", str(self.sync))

    def fault_none(self):
        pass

    @staticmethod
    def stop(process):
        os.kill(process.pid, signal.SIGSTOP)
        return lambda: os.kill(process.pid, signal.SIGCONT)

    # --- a round

    def round(self, name):
        try:
            self.sync = self.cluster.json("sync", "--no-wait", "--timeout", str(DEADLINE_S))["id"]
        except AssertionError as refused:
            raise Broken("a sync of a healthy cluster was refused: %s" % refused)
        begin = time.monotonic()
        time.sleep(self.random.uniform(0, 1.2) * self.usual_s)  # the moment of the fault, nothing waits for it
        self.phases[self.phase()] += 1
        undo = getattr(self, "fault_" + name)()
        struck = time.monotonic()
        self.faults[name] += 1
        self.stats["faults"] += 1
        hold = self.random.choice((0.1, 0.5, 2.0, DEADLINE_S + 2.0)) if undo else 0.0
        if name != "kill_coordinator":
            self.watch_until(struck + hold)
        else:
            time.sleep(min(hold, 2.0))  # how long nobody coordinates
        if undo:
            undo()
        self.revive()
        limit = max(begin + DEADLINE_S + RESUME_GRACE_S, struck + hold) + MARGIN_S
        state = self.await_end(limit)
        if state["state"] not in ("done",):
            self.times["fault_to_error_s"].append(self.ended_at - struck)
        self.stats["sync_" + state["state"]] += 1
        self.check_versions()
        repair = time.monotonic()
        self.recover()
        self.times["recovery_s"].append(time.monotonic() - repair)
        self.check_leaks()

    def phase(self):
        state = self.find_sync()
        if state is None:
            return "unknown"
        return state["phase"] if state["state"] == "running" else "after"

    def find_sync(self):
        result = self.cluster.ctl("--output", "json", "syncs")
        if result.returncode != 0:
            return None
        return next((s for s in json.loads(result.stdout) if s["id"] == self.sync), None)

    def watch_until(self, moment):
        """Waits for `moment`, and notes when the sync ended if that is earlier."""
        self.ended_at = None
        while True:
            if self.ended_at is None and self.cluster_answers():
                state = self.find_sync()
                if state and state["state"] != "running":
                    self.ended_at = time.monotonic()
            left = moment - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(0.1, left))

    def cluster_answers(self):
        with open("/proc/%d/stat" % self.cluster.coordinator.pid) as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "T"  # a stopped one would hold up the query

    def await_end(self, limit):
        while True:
            state = self.find_sync()
            if state and state["state"] != "running":
                if self.ended_at is None:
                    self.ended_at = time.monotonic()
                return state
            if time.monotonic() > limit:
                raise Broken("hang: sync %d has not ended: %s" % (self.sync, state))
            time.sleep(0.05)

    def revive(self):
        """What a supervisor does: starts again what has died, in order, ranks of a lost agent too."""
        cluster = self.cluster
        self.ended_at = getattr(self, "ended_at", None)
        if cluster.coordinator.poll() is not None:
            self.ended_at = None
            cluster.start_coordinator(cluster.address)
        for node in (0, 1):
            ranks = cluster.trainers if node == 0 else cluster.rollout
            if cluster.agents[node].poll() is not None:
                wait_until(lambda: ranks.poll() is not None, 30, "ranks noticed the loss of their agent")
                cluster.start_agent(node)
            if ranks.poll() is None:
                continue
            if node == 0:
                cluster.trainers = cluster.start_ranks(0, "--trainers", "0-3")
            else:
                cluster.rollout = cluster.start_ranks(1, "--rollout", "0:0-1,1:0-1")

    def recover(self):
        """The next sync that is accepted must be done, and every rank equal."""
        def attempt():
            self.revive()  # a rank may have noticed only now
            result = self.cluster.ctl("--output", "json", "sync", "--timeout", "30")
            return json.loads(result.stdout) if result.returncode == 0 else None
        sync = wait_until(attempt, 90, "a sync after the fault")
        self.stats["syncs"] += 1
        wait_until(lambda: self.held(sync["version"]) == 4, 60, "four ranks equal at version %d" % sync["version"])

    def held(self, version):
        """Rollout ranks that say that they hold `version`; a rank that says otherwise is a broken promise."""
        count = 0
        for rank in self.cluster.json("ranks"):
            report = rank["owner_report"]
            if rank["id"]["role"] != "rollout" or not report or report["version"] != version:
                continue
            if report["outcome"]["code"] != 0:
                raise Broken("wrong bytes: engine %d rank %d: %s" % (
                    rank["id"]["engine"], rank["id"]["rank"], report["outcome"]["message"]))
            count += 1
        return count

    def check_versions(self):
        for engine in self.cluster.json("engines"):
            if engine["version"] > 0 and not engine["dirty"]:
                self.held(engine["version"])
                self.stats["versions_checked"] += 1

    def check_leaks(self):
        for process in (self.cluster.coordinator, *self.cluster.agents):
            now = (descriptors(process.pid), anonymous_bytes(process.pid))
            # Connections of the rounds at its start belong to it.
            seen, rounds = self.baseline.get(process.pid, (now, 0))
            if rounds < 3:
                seen = max(seen[0], now[0]), max(seen[1], now[1])
            self.baseline[process.pid] = (seen, rounds + 1)
            if now[0] > seen[0] + MAX_DESCRIPTORS_MORE or now[1] > seen[1] + MAX_BYTES_MORE:
                raise Broken("leak: pid %d had %d descriptors and %d bytes, and now has %d and %d" % (
                    process.pid, *seen, *now))

    def report(self, seed):
        def worst(values):
            return round(max(values), 2) if values else 0
        return {
            "seed": seed, "rounds": self.stats["faults"], "faults": dict(sorted(self.faults.items())),
            "phases_at_the_fault": dict(sorted(self.phases.items())),
            "syncs": {k[5:]: v for k, v in sorted(self.stats.items()) if k.startswith("sync_")},
            "repairing_syncs": self.stats["syncs"], "versions_checked": self.stats["versions_checked"],
            "longest_fault_to_error_s": worst(self.times["fault_to_error_s"]),
            "longest_recovery_s": worst(self.times["recovery_s"]),
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=2)
    parser.add_argument("--faults", help="only these, separated by commas")
    parser.add_argument("--json", help="file for the report")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        print("skipped: needs root to make network namespaces")
        return 77
    known = sorted(name[6:] for name in dir(Chaos) if name.startswith("fault_"))
    faults = arguments.faults.split(",") if arguments.faults else known
    for name in faults:
        if name not in known:
            parser.error("no fault %s; known: %s" % (name, ", ".join(known)))
    chaos = Chaos()
    chaos.setUp()
    status = 0
    try:
        chaos.begin(arguments.seed)
        end = time.monotonic() + 60 * arguments.minutes
        pending = []
        while time.monotonic() < end:
            if not pending:  # each once before any comes again
                pending = chaos.random.sample(faults, len(faults))
            name = pending.pop()
            begin = time.monotonic()
            chaos.round(name)
            print("%-22s %5.1f s" % (name, time.monotonic() - begin), flush=True)
    except (Broken, AssertionError, subprocess.SubprocessError) as e:
        status = 1
        print("broken: %s" % e)
        for process in chaos.processes:
            print("--- %s\n%s" % (process.log_path, chaos.log_of(process)[-2000:]))
    report = chaos.report(arguments.seed)
    chaos.tearDown()
    chaos.doCleanups()
    text = json.dumps(report, indent=2)
    print(text)
    if arguments.json:
        with open(arguments.json, "w") as f:
            f.write(text + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
