"""Two hosts, in network namespaces: the run over several machines, and faults in the middle of a transfer."""

import json
import os
import signal
import subprocess
import time
import unittest

from harness import Cluster, XferTest, clean_environment, program, wait_until
from namespaces import TwoHosts, needs_root


@needs_root
class Hosts(XferTest):

    def setUp(self):
        super().setUp()
        self.hosts = TwoHosts()
        self.addCleanup(self.hosts.close)

    def start_node(self, rank, *extra, steps=3):
        process = subprocess.Popen(
            [*self.hosts.prefix(rank), program("xferctl"), "run", "Qwen3-4B", "--tiny", "--layers", "2", "--nodes",
             "2", "--node-rank", str(rank), "--head-ip", self.hosts.addresses[0], "--insecure", "--steps",
             str(steps), "--ckpt-dir", self.path("ckpt%d" % rank), "--output", "json", *extra],
            cwd=self.dir, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.processes.append(process)
        return process

    def test_second_host_takes_part(self):
        # The second host is first, and waits for the head.
        second, head = self.start_node(1), self.start_node(0)
        out, err = head.communicate(timeout=120)
        self.assertEqual(head.returncode, 0, err)
        second_out, second_err = second.communicate(timeout=60)
        self.assertEqual(second.returncode, 0, second_err)
        document = json.loads(out)
        self.assertEqual([s["state"] for s in document["steps"]], ["done"] * 3)
        for rank in document["steps"][-1]["ranks"]:
            self.assertEqual(list(rank["bytes_by_transport"]), ["tcp"])

    def test_lost_second_host_ends_the_head_too(self):
        second, head = self.start_node(1, steps=100000), self.start_node(0, steps=100000)
        time_limit = time.monotonic() + 90
        log = self.path("ckpt1")
        wait_until(lambda: os.path.exists(log), 60, "the second host prepared")
        # Give both the time to be in the middle of their steps: the head's coordinator says so.
        wait_until(lambda: self.head_steps(), 60, "some steps are done")
        second.kill()
        out, err = head.communicate(timeout=max(1, time_limit - time.monotonic()))
        self.assertEqual(head.returncode, 1, err)
        self.assertIn("node-1", err)

    def head_steps(self):
        result = self.xferctl("--coordinator", self.hosts.addresses[0] + ":7300", "--output", "json", "syncs",
                              prefix=self.hosts.prefix(0))
        return result.returncode == 0 and len(json.loads(result.stdout)) >= 2

    def cluster(self, **kwargs):
        return Cluster(self, layers=8, prefixes=(self.hosts.prefix(0), self.hosts.prefix(1)),
                       hosts=self.hosts.addresses, **kwargs)

    def transfer_under_way(self, cluster, sync):
        """The sync is in its transfer phase and part of its bytes is acknowledged or on the wire."""
        (state,) = [s for s in cluster.json("syncs") if s["id"] == sync]
        return state["state"] == "running" and state["phase"] == "transfer"

    def failed_sync(self, cluster, sync, seconds):
        def ended():
            (state,) = [s for s in cluster.json("syncs") if s["id"] == sync]
            return state if state["state"] != "running" else None
        return wait_until(ended, seconds, "the sync ended")

    def test_agent_killed_during_a_transfer(self):
        for victim in (1, 0):
            cluster = self.cluster()
            self.hosts.limit(0, "2mbit")
            sync = cluster.json("sync", "--no-wait", "--timeout", "60")["id"]
            wait_until(lambda: self.transfer_under_way(cluster, sync), 30, "the transfer began")
            begin = time.monotonic()
            os.kill(cluster.agents[victim].pid, signal.SIGKILL)
            state = self.failed_sync(cluster, sync, 40)
            self.assertLess(time.monotonic() - begin, 20)
            self.assertEqual(state["state"], "failed")
            self.assertIn("node%d" % victim, state["outcome"]["message"])
            engines = cluster.json("engines")
            self.assertEqual([(e["version"], e["dirty"]) for e in engines], [(0, True), (0, True)])
            self.tearDownProcesses()

    def tearDownProcesses(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait(timeout=10)

    def test_link_down_during_a_transfer(self):
        cluster = self.cluster()
        self.hosts.limit(0, "2mbit")
        sync = cluster.json("sync", "--no-wait", "--timeout", "8")["id"]
        wait_until(lambda: self.transfer_under_way(cluster, sync), 30, "the transfer began")
        self.hosts.ip("-n", self.hosts.names[1], "link", "set", "veth0", "down")
        state = self.failed_sync(cluster, sync, 30)
        self.assertEqual(state["state"], "failed")
        self.assertIn("node1", state["outcome"]["message"])
        self.hosts.ip("-n", self.hosts.names[1], "link", "set", "veth0", "up")
        self.hosts.limit(0, "1gbit")

        def repaired():
            result = cluster.ctl("sync", "--timeout", "30")
            return result.returncode == 0
        wait_until(repaired, 60, "the next sync repairs the engines")
        self.assertEqual([(e["version"], e["dirty"]) for e in cluster.json("engines")], [(1, False), (1, False)])


if __name__ == "__main__":
    unittest.main()
