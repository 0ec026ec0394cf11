#!/usr/bin/env python3
"""A coordinator that is killed and started again has what it acknowledged, and the cluster goes on by itself."""

import os
import signal
import unittest

from harness import Cluster, SyncTest, wait_until


class RestartTest(SyncTest):
    def setUp(self):
        super().setUp()
        self.state = self.path("coordinator.db")

    def cluster(self):
        return Cluster(self, coordinator_args=("--state", self.state))

    def kill_coordinator(self, cluster):
        cluster.coordinator.kill()
        cluster.coordinator.wait(timeout=10)

    def test_nothing_acknowledged_is_lost(self):
        cluster = self.cluster()
        done = cluster.json("sync")
        self.assertEqual(done["state"], "done")
        self.wait_for_version(cluster, 2)
        self.kill_coordinator(cluster)
        cluster.start_coordinator(cluster.address)
        # At once, whether or not the agents are back.
        self.assertEqual([(s["id"], s["state"]) for s in cluster.json("syncs")], [(done["id"], "done")])
        self.assertEqual([(e["version"], e["dirty"]) for e in cluster.json("engines")], [(1, False), (1, False)])
        # Agents and ranks come back by themselves, and the versions still hold for their memory.
        wait_until(lambda: len(cluster.json("ranks")) == 8, 30, "all ranks registered again")
        self.assertEqual([e["version"] for e in cluster.json("engines")], [1, 1])
        self.sync_until_done(cluster, 2)

    def test_killed_in_the_middle_of_a_sync(self):
        cluster = self.cluster()
        self.assertEqual(cluster.json("sync")["state"], "done")
        self.wait_for_version(cluster, 2)
        sync = self.start_stalled_sync(cluster, 60)
        self.kill_coordinator(cluster)
        os.kill(cluster.agents[1].pid, signal.SIGCONT)
        cluster.start_coordinator(cluster.address)
        cut = self.ended(cluster, sync)
        self.assertEqual(cut["state"], "failed")
        self.assertIn("the coordinator ended while it ran", cut["outcome"]["message"])
        self.sync_until_done(cluster, 2)

    def test_state_that_cannot_be_used_is_named(self):
        cluster = self.cluster()
        second = self.run_program("xfer-coordinator", "--listen", "127.0.0.1:0", "--state", self.state)
        self.assert_exit(second, 1)
        self.assertIn(self.state, second.stderr)
        self.assertIn("another process", second.stderr)
        self.end(cluster.coordinator)
        with open(self.state, "r+b") as f:
            f.write(b"not a database any more")
        damaged = self.run_program("xfer-coordinator", "--listen", "127.0.0.1:0", "--state", self.state)
        self.assert_exit(damaged, 1)
        self.assertIn(self.state, damaged.stderr)
        self.assertIn("left as it is", damaged.stderr)


if __name__ == "__main__":
    unittest.main()
