#!/usr/bin/env python3
"""models.py [--readme FILE] [--json FILE] [MODEL ...]: every model of the registry, planned and run.

For each model: `xferctl plan` at its true size, and `xferctl run --tiny --mode p2p --steps 1` with all the ranks and
nodes of its profile on this machine. Prints a Markdown table, a row a model:

  nodes, ranks            of the profile; a node is an agent process of its own, also in the tiny run
  transfers, bytes        of one sync at true size; all engines together
  plan                    time to make the plan, on one core (median of three)
  busiest NIC / bound     what the busiest NIC carries, over the least that any plan could make it carry
  tiny run                preparation, start of all processes, one sync, the check and the end
  memory                  by how much the machine's available memory fell during the tiny run, at most
  result                  "equal": every rollout rank compared every byte with what the checkpoint makes of it

--readme FILE puts the table between the two lines of FILE that mark its place. Exit status 1 where a row is not equal.
"""

import argparse
import json
import os
import statistics
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../integration"))

import tiny_run  # noqa: E402

BEGIN = "<!-- begin: made by tests/bench/models.py -->"
END = "<!-- end: made by tests/bench/models.py -->"
PLANS = 3


def available_bytes():
    with open("/proc/meminfo") as f:
        for line in f:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/meminfo has no MemAvailable")


class MemoryWatch:
    """The most by which available memory has fallen since it was entered."""

    def __enter__(self):
        self.before, self.used = available_bytes(), 0
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()
        return self

    def _watch(self):
        while not self.stop.wait(0.1):
            self.used = max(self.used, self.before - available_bytes())

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()


def plan(model):
    replies = []
    for _ in range(PLANS):
        reply, result = tiny_run.xferctl_json("plan", model, "--transfers", "0")
        if result.returncode != 0:
            raise RuntimeError("plan %s: %s" % (model, result.stderr.strip()))
        replies.append(reply)
    stats = replies[0]["stats"]
    return {"transfers": stats["transfers"], "bytes": stats["bytes"], "ratio": stats["ratio"],
            "plan_ms": statistics.median(r["planning_ns"] for r in replies) / 1e6}


def row(model):
    result = {"model": model["name"], "nodes": model["nodes"], "ranks": model["gpus"]}
    result.update(plan(model["name"]))
    with MemoryWatch() as memory:
        result.update(tiny_run.run_tiny(model))
    result["memory_bytes"] = memory.used
    return result


def table(rows):
    lines = ["| model | nodes | ranks | transfers | bytes | plan | busiest NIC / bound | tiny run | memory | result |",
             "|---|--:|--:|--:|--:|--:|--:|--:|--:|---|"]
    for r in rows:
        lines.append("| %s | %d | %d | %s | %.1f GB | %.0f ms | %.3f | %.1f s | %.1f GB | %s |" % (
            r["model"], r["nodes"], r["ranks"], "{:,}".format(r["transfers"]), r["bytes"] / 1e9, r["plan_ms"],
            r["ratio"], r["run_s"], r["memory_bytes"] / 1e9, "NOT EQUAL" if r["error"] else "equal"))
    return "\n".join(lines)


def put_into(path, text):
    with open(path) as f:
        before, rest = f.read().split(BEGIN)
        after = rest.split(END)[1]
    with open(path, "w") as f:
        f.write(before + BEGIN + "\n" + text + "\n" + END + after)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="by default all")
    parser.add_argument("--readme", metavar="FILE")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    known = tiny_run.registry()
    for name in arguments.models:
        if name not in known:
            parser.error("no model %s; there are %s" % (name, ", ".join(known)))
    if arguments.readme and arguments.models:
        parser.error("--readme needs all models")
    rows = []
    for name in arguments.models or known:
        rows.append(row(known[name]))
        print(table(rows[-1:]).splitlines()[-1], rows[-1]["error"], file=sys.stderr, flush=True)
    print(table(rows))
    if arguments.readme:
        put_into(arguments.readme, table(rows))
    if arguments.json:
        with open(arguments.json, "w") as f:
            json.dump(rows, f, indent=2)
    return 0 if not any(r["error"] for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
