"""Syncs against a running coordinator: what operators type, and what they are told when things break."""

import os
import re
import signal
import time
import unittest

from harness import Cluster, SyncTest, wait_until


class Sync(SyncTest):
    def test_sync_by_hand_and_every_query(self):
        cluster = Cluster(self)
        first = cluster.json("sync")
        self.assertEqual((first["state"], first["version"]), ("done", 1))
        self.wait_for_version(cluster, 2)
        second = cluster.json("sync", "--verify", "sample", "--transport", "tcp")
        self.assertEqual((second["state"], second["version"], second["plan_cached"]), ("done", 2, True))
        self.wait_for_version(cluster, 3)
        one = cluster.json("sync", "--engines", "1", "--verify", "none", "--version", "3")
        self.assertEqual([e["engine"] for e in one["engines"]], [1])
        self.wait_for_engine_versions(cluster, {0: 2, 1: 3})
        wait_until(lambda: self.verdicts(cluster) == {(0, 0): 0, (0, 1): 0, (1, 0): 0, (1, 1): 0}, 60,
                   "every rank equal")

        nodes = cluster.json("nodes")
        self.assertEqual([(n["name"], n["state"], n["ranks"]) for n in nodes],
                         [("node0", "alive", 4), ("node1", "alive", 4)])
        self.assertEqual([s["id"] for s in cluster.json("syncs")], [one["id"], second["id"], first["id"]])
        self.assertEqual(cluster.json("jobs")[0]["name"], "job")
        for command in (["nodes"], ["ranks"], ["engines"], ["syncs"], ["jobs"], ["plan", "--job", "job"],
                        ["timings", str(first["id"])]):
            result = cluster.ctl(*command)
            self.assert_exit(result, 0)
            self.assertGreater(len(result.stdout.splitlines()), 1, command)

    def test_refusals_name_the_cause(self):
        cluster = Cluster(self)
        for arguments, code, text in (
                (["sync", "--version", "5"], 1, "version 5"),
                (["sync", "--engines", "7"], 1, "7"),
                (["sync", "--engines", "x"], 2, "x"),
                (["sync", "--mode", "broadcast"], 1, "broadcast"),
                (["sync", "--transport", "local"], 1, "local"),
                (["sync", "--transport", "pigeon"], 2, "pigeon"),
                (["sync", "--job", "other"], 1, "other"),
                (["timings", "99"], 1, "99")):
            result = cluster.ctl(*arguments)
            self.assert_exit(result, code)
            self.assertIn(text, result.stderr)
            self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)
        # After all that, an ordinary sync still works.
        self.assertEqual(cluster.json("sync")["state"], "done")

    def test_missing_ranks_are_named(self):
        cluster = Cluster(self)
        os.kill(cluster.trainers.pid, signal.SIGKILL)
        wait_until(lambda: len(cluster.json("ranks")) == 4, 30, "dead trainers are unregistered")
        result = cluster.ctl("sync")
        self.assert_exit(result, 1)
        self.assertIn("trainer 0", result.stderr)
        cluster.trainers = cluster.start_ranks(0, "--trainers", "0-3")
        self.assertEqual(cluster.json("sync")["state"], "done")

    def test_no_coordinator_is_exit_3(self):
        for command in ("nodes", "ranks", "engines", "sync", "syncs", "jobs"):
            result = self.xferctl("--coordinator", "127.0.0.1:1", command)
            self.assert_exit(result, 3)
            self.assertIn("127.0.0.1:1", result.stderr)

    def test_a_stopped_receiver_is_not_reported_done(self):
        cluster = Cluster(self)
        self.assertEqual(cluster.json("sync")["state"], "done")
        self.wait_for_version(cluster, 2)
        begin = time.monotonic()
        sync = self.start_stalled_sync(cluster, 4)
        state = wait_until(lambda: self.ended(cluster, sync), 30, "the sync ended")
        self.assertLess(time.monotonic() - begin, 25)
        self.assertEqual(state["state"], "failed")
        self.assertIn("node1", state["outcome"]["message"])
        self.assertEqual([e["version"] for e in cluster.json("engines")], [1, 1])
        os.kill(cluster.agents[1].pid, signal.SIGCONT)
        self.sync_until_done(cluster, 2)

    def test_cancel(self):
        cluster = Cluster(self)
        sync = self.start_stalled_sync(cluster, 60)
        result = cluster.ctl("cancel", str(sync))
        self.assert_exit(result, 0)
        state = wait_until(lambda: self.ended(cluster, sync), 20, "the cancelled sync ended")
        self.assertEqual(state["state"], "cancelled")
        os.kill(cluster.agents[1].pid, signal.SIGCONT)
        self.sync_until_done(cluster, 1)

    def test_second_sync_of_an_engine_is_refused(self):
        cluster = Cluster(self)
        sync = self.start_stalled_sync(cluster, 30)
        result = cluster.ctl("sync", "--engines", "1")
        self.assert_exit(result, 1)
        self.assertRegex(result.stderr, r"sync %d\b" % sync)
        os.kill(cluster.agents[1].pid, signal.SIGCONT)
        wait_until(lambda: self.ended(cluster, sync), 40, "the first sync ended")

    def test_killed_agent_comes_back(self):
        cluster = Cluster(self)
        self.assertEqual(cluster.json("sync")["state"], "done")
        self.wait_for_version(cluster, 2)
        cluster.agents[1].kill()
        cluster.agents[1].wait(timeout=10)
        # Its ranks end with it; a supervisor would start both again.
        wait_until(lambda: cluster.rollout.poll() is not None, 30, "ranks noticed the loss of their agent")
        result = cluster.ctl("sync", "--timeout", "10")
        self.assert_exit(result, 1)
        self.assertRegex(result.stderr, "node1|engine 0 rank 0")
        cluster.start_agent(1)
        cluster.rollout = cluster.start_ranks(1, "--rollout", "0:0-1,1:0-1")
        self.sync_until_done(cluster, 2)

    def test_clean_end(self):
        cluster = Cluster(self)
        for process in (cluster.trainers, cluster.rollout, *cluster.agents):
            self.end(process)
        wait_until(lambda: {n["state"] for n in cluster.json("nodes")} == {"lost"}, 20, "both nodes gone")
        self.end(cluster.coordinator)

    def test_taken_port_is_named(self):
        cluster = Cluster(self)
        result = self.run_program("xfer-coordinator", "--listen", cluster.address, timeout=20)
        self.assert_exit(result, 1)
        self.assertIn(cluster.address, result.stderr)
        result = self.run_program("xfer-coordinator", "--listen", "0.0.0.0:0", timeout=20)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("--insecure", result.stderr)

    def test_second_agent_under_one_name_is_refused(self):
        cluster = Cluster(self)
        process, _ = self.start("xfer-agent", "--coordinator", cluster.address, "--node", "node0", "--socket",
                                self.path("other.sock"), "--listen", "127.0.0.1:0", ready=False)
        wait_until(lambda: re.search("node0", self.log_of(process)) and
                   re.search("already|taken|another", self.log_of(process)), 20, "the refusal in the log")
        self.assertEqual(cluster.json("sync")["state"], "done")


if __name__ == "__main__":
    unittest.main()
