"""The real programs over RDMA, in the guest with the network `rails` (see guest_main.sh): two agents, each on its own
ends of two rails, without local and tcp."""

import json
import os
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "../integration"))

from harness import Cluster, XferTest, wait_until  # noqa: E402

MODEL = ["Qwen3-4B", "--layers", "2"] + ([] if os.environ.get("XFER_TEST_FULL_WIDTH") else ["--tiny"])
VERBS_ONLY = (("--transport", "verbs", "--nics", "rxe0a,rxe1a"), ("--transport", "verbs", "--nics", "rxe0b,rxe1b"))


def packets_sent(device):
    with open("/sys/class/infiniband/%s/ports/1/hw_counters/sent_pkts" % device) as f:
        return int(f.read())


def set_link(netdev, up):
    subprocess.run(["ip", "link", "set", netdev, "up" if up else "down"], check=True)


def slow_down(netdev, rate):
    """So that something can be done while bytes are under way."""
    subprocess.run(["modprobe", "-a", "sch_tbf"], check=True)
    subprocess.run(["tc", "qdisc", "replace", "dev", netdev, "root", "tbf", "rate", rate, "burst", "16kb",
                    "limit", "64mb"], check=True)


def routes(sync):
    """The transports, with their rails, that the ranks' timings name."""
    return {t for rank in sync["ranks"] for t in rank["bytes_by_transport"]}


class EndToEnd(XferTest):

    def tearDown(self):
        for netdev in ("v0a", "v1a"):
            subprocess.run(["tc", "qdisc", "del", "dev", netdev, "root"], stderr=subprocess.DEVNULL)
        for netdev in ("v1a", "v1b"):
            set_link(netdev, True)
        super().tearDown()

    def start_sync_and_wait_for_bytes(self, cluster, *arguments):
        """A sync in the background, some of whose packets are on the second rail."""
        before = packets_sent("rxe1a")
        sync = subprocess.Popen(
            [os.path.join(os.environ["XFER_BIN_DIR"], "xferctl"), "--coordinator", cluster.address, "--output", "json",
             "sync", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.processes.append(sync)
        wait_until(lambda: packets_sent("rxe1a") > before + 10 or sync.poll() is not None, 60,
                   "packets on the second rail")
        self.assertIsNone(sync.poll(), "the sync ended before anything could be done to it")
        return sync

    def test_run_ends_equal_with_tcp_and_local_absent(self):
        result = self.xferctl("run", *MODEL, "--nodes", "2", "--steps", "2", "--transport", "verbs", "--output", "json",
                              timeout=300)
        self.assert_exit(result, 0)
        document = json.loads(result.stdout)
        self.assertTrue(document["ok"] and document["validated"])
        for step in document["steps"]:
            self.assertEqual(step["state"], "done")
            self.assertEqual({route.split()[0] for route in routes(step)}, {"verbs"})

    def test_agents_choose_verbs_and_a_pulled_rail_is_left(self):
        cluster = Cluster(self, layers=36, node_args=(("--nics", "rxe0a,rxe1a"), ("--nics", "rxe0b,rxe1b")))
        # With local and tcp there, verbs is what goes between the nodes; over both rails.
        first = cluster.json("sync")
        self.assertEqual(first["state"], "done")
        self.assertEqual(routes(first), {"verbs", "verbs rxe0a:1", "verbs rxe1a:1"})
        self.assertEqual([n["nics"] for n in cluster.json("nodes")], [2, 2])
        listing = cluster.ctl("timings", str(first["id"]), "--transfers")
        self.assertIn("verbs rxe0a:1", listing.stdout)

        # The way to the peer, as the doctor sees it.
        peer = cluster.json("nodes")[1]["peer_address"]
        seen = cluster.json("doctor", "--peer", peer, "--nics", "rxe0a,rxe1a")
        self.assertTrue(seen["usable"])
        self.assertEqual(len(seen["devices"]), 4)
        self.assertEqual(seen["peer"]["node"], "node1")
        self.assertTrue(seen["peer"]["rails"] and all(rail["ok"] for rail in seen["peer"]["rails"]), seen["peer"])

        # A rail is pulled while bytes are on it.
        self.wait_for_trainers(cluster, 2)
        for netdev in ("v0a", "v1a"):
            slow_down(netdev, "12mbit")
        sync = self.start_sync_and_wait_for_bytes(cluster)
        set_link("v1b", False)
        out, err = sync.communicate(timeout=120)
        self.assertEqual(sync.returncode, 0, err + self.log_of(cluster.agents[0]))
        self.assertEqual(json.loads(out)["state"], "done")
        self.assertIn("is given up", self.log_of(cluster.agents[0]))
        self.wait_for_verdicts(cluster, 2)

    def test_a_killed_peer_ends_the_sync_with_its_name(self):
        cluster = Cluster(self, layers=36, node_args=VERBS_ONLY)
        self.assertEqual(cluster.json("sync")["state"], "done")
        self.wait_for_trainers(cluster, 2)
        for netdev in ("v0a", "v1a"):
            slow_down(netdev, "6mbit")
        sync = self.start_sync_and_wait_for_bytes(cluster, "--timeout", "60")
        os.kill(cluster.agents[1].pid, signal.SIGKILL)
        killed = time.monotonic()
        _, err = sync.communicate(timeout=90)
        self.assertLess(time.monotonic() - killed, 60)
        self.assertEqual(sync.returncode, 1)
        self.assertIn("node1", err)

    def wait_for_trainers(self, cluster, version):
        wait_until(lambda: all(r["ready_version"] == version for r in cluster.json("ranks")
                               if r["id"]["role"] == "trainer"), 60, "trainers at version %d" % version)

    def wait_for_verdicts(self, cluster, version):
        """Every engine rank has compared every byte and says that all are equal."""
        def equal():
            reports = [r["owner_report"] for r in cluster.json("ranks") if r["id"]["role"] == "rollout"]
            return all(r and r["version"] == version and r["outcome"]["code"] == 0 for r in reports)
        wait_until(equal, 60, "every rank equal at version %d" % version)


if __name__ == "__main__":
    unittest.main()
