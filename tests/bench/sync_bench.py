#!/usr/bin/env python3
"""sync_bench.py [--repeat N] [--layers N] [--json FILE]: times whole syncs through the real programs.

Prints three figures:
  trigger to done   a sync of a cached plan between two agents that moves next to nothing (one tiny layer): what the
                    control plane itself costs; median, of `--repeat`
  payload           GB/s of the transfer phase at real widths (`--layers` of Qwen3-4B, full verification) over tcp on
                    loopback; median of the steady steps
  agent memory      the most anonymous memory (RssAnon: what is the agent's own; mapped weights are not in it) of any
                    agent after those syncs
"""

import argparse
import json
import os
import statistics
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../integration"))

from harness import Cluster, XferTest, wait_until  # noqa: E402


class Bench(XferTest):
    def runTest(self):
        pass


def anonymous_bytes(pid):
    with open("/proc/%d/status" % pid) as f:
        for line in f:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    raise RuntimeError("no RssAnon of process %d" % pid)


def trainers_ready(cluster, version):
    return all(r["ready_version"] >= version for r in cluster.json("ranks") if r["id"]["role"] == "trainer")


def measure(repeat, tiny, layers):
    bench = Bench()
    bench.setUp()
    try:
        cluster = Cluster(bench, layers=layers, tiny=tiny, last_version=repeat + 1, check="none")
        syncs = []
        for version in range(1, repeat + 2):
            wait_until(lambda: trainers_ready(cluster, version), 120, "trainers at version %d" % version)
            syncs.append(cluster.json("sync"))
            assert syncs[-1]["state"] == "done", syncs[-1]
        memory = max(anonymous_bytes(agent.pid) for agent in cluster.agents)
        return syncs[1:], memory  # the first one makes the plan and the connections
    finally:
        bench.tearDown()


def phase(sync, name):
    return next(p["duration_ns"] for p in sync["phases"] if p["phase"] == name)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--json")
    arguments = parser.parse_args()

    empty, _ = measure(arguments.repeat, tiny=True, layers=1)
    latencies = sorted(s["total_ns"] / 1e6 for s in empty)
    full, memory = measure(arguments.repeat, tiny=False, layers=arguments.layers)
    rate = statistics.median(s["bytes_total"] / phase(s, "transfer") for s in full)
    result = {
        "trigger_to_done_ms": {"min": latencies[0], "median": statistics.median(latencies), "max": latencies[-1]},
        "tcp_payload_gb_per_s": rate,
        "payload_bytes": full[0]["bytes_total"],
        "agent_rss_anon_bytes": memory,
    }
    print("trigger to done, cached plan, %d bytes: %.2f ms (min %.2f, max %.2f, %d syncs)" % (
        empty[0]["bytes_total"], result["trigger_to_done_ms"]["median"], latencies[0], latencies[-1], len(empty)))
    print("payload over tcp, fully verified: %.2f GB/s (%d bytes, %d syncs)" % (rate, result["payload_bytes"], len(full)))
    print("agent memory of its own: %.1f MB at most" % (memory / 1e6))
    if arguments.json:
        with open(arguments.json, "w") as f:
            json.dump(result, f, indent=2)


if __name__ == "__main__":
    main()
