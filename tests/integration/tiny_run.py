"""Runs a model of the registry with small widths and all of its ranks and nodes, and says whether all were equal."""

import json
import shutil
import subprocess
import tempfile
import time

from harness import clean_environment, program

RUN_SECONDS = 900


def xferctl_json(*arguments, directory=None, timeout=120):
    """What `xferctl ARGUMENTS --output json` prints, and the finished process."""
    result = subprocess.run([program("xferctl"), *arguments, "--output", "json"], capture_output=True, text=True,
                            timeout=timeout, env=clean_environment(), cwd=directory)
    return (json.loads(result.stdout) if result.stdout else None), result


def registry():
    """The rows of `xferctl list`, by name."""
    models, result = xferctl_json("list")
    if result.returncode != 0:
        raise RuntimeError("xferctl list: " + result.stderr)
    return {m["name"]: m for m in models}


def run_tiny(model, mode="p2p"):
    """One sync of `model` (a row of `xferctl list`). `error` is empty where every rank of the profile took part, every
    byte of the plan was moved, and every rollout rank was equal to the checkpoint."""
    directory = tempfile.mkdtemp(prefix="xfer-tiny-")
    begin = time.monotonic()
    try:
        report, result = xferctl_json("run", model["name"], "--tiny", "--mode", mode, "--steps", "1", "--ckpt-dir",
                                      directory, directory=directory, timeout=RUN_SECONDS)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return {"error": error_of(model, report or {}, result), "run_s": time.monotonic() - begin}


def error_of(model, report, result):
    if result.returncode != 0 or not report.get("ok"):
        return "exit %d: %s" % (result.returncode, result.stderr.strip() or report.get("error", ""))
    if not report["validated"]:
        return "nothing was compared"
    step, = report["steps"]
    ranks = len(step["ranks"])
    nodes = len({r["node"] for r in step["ranks"]})
    if report["ranks"] != model["gpus"] or nodes != model["nodes"]:
        return "%d ranks on %d nodes, not %d on %d" % (report["ranks"], nodes, model["gpus"], model["nodes"])
    if step["state"] != "done" or step["bytes_done"] != step["bytes_total"] or not step["bytes_total"]:
        return "%s with %d of %d bytes" % (step["state"], step["bytes_done"], step["bytes_total"])
    if not all(e["committed"] for e in step["engines"]) or ranks == 0:
        return "not every engine was committed"
    return ""
