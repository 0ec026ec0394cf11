"""xferctl run: one command moves, checks and reports; and leaves nothing behind, however it ends."""

import glob
import json
import os
import signal
import subprocess
import unittest

import reference
from harness import XferTest, alive, clean_environment, descendants, program, wait_until

TINY = ["run", "Qwen3-4B", "--tiny", "--layers", "2"]


class Run(XferTest):

    def test_every_rank_is_equal_after_each_step(self):
        result = self.xferctl(*TINY, "--steps", "3", "--output", "json", "--nodes", "2")
        self.assert_exit(result, 0)
        document = json.loads(result.stdout)
        self.assertTrue(document["ok"])
        self.assertTrue(document["validated"])
        self.assertEqual([s["version"] for s in document["steps"]], [1, 2, 3])
        for step in document["steps"]:
            self.assertEqual(step["state"], "done")
            self.assertEqual([e["committed"] for e in step["engines"]], [True, True])
            self.assertEqual([p["phase"] for p in step["phases"]],
                             ["plan", "connect", "pause", "transfer", "verify", "commit", "resume"])
            self.assertEqual(step["bytes_done"], step["bytes_total"])
            transports = set()
            for rank in step["ranks"]:
                transports.update(rank["bytes_by_transport"])
            self.assertEqual(transports, {"tcp"})
        self.assertFalse(document["steps"][0]["plan_cached"])
        self.assertTrue(document["steps"][1]["plan_cached"])

    def test_one_node_uses_local_copies(self):
        result = self.xferctl(*TINY, "--steps", "1", "--output", "json")
        self.assert_exit(result, 0)
        ranks = json.loads(result.stdout)["steps"][0]["ranks"]
        self.assertEqual({t for r in ranks for t in r["bytes_by_transport"]}, {"local"})

    def test_table_says_what_happened(self):
        result = self.xferctl(*TINY, "--steps", "2")
        self.assert_exit(result, 0)
        for word in ("transfer", "verify", "commit", "GB/S", "rollout ranks are equal", "MEDIAN MS"):
            self.assertIn(word, result.stdout)
        self.assertNotIn("\x1b", result.stdout)

    def test_dumps_match_a_plain_reference(self):
        result = self.xferctl(*TINY, "--steps", "1", "--dump-dir", self.path("dump"), "--output", "json")
        self.assert_exit(result, 0)
        hf_dir = self.path(json.loads(result.stdout)["prepared_dir"], "hf")
        hf = reference.load_checkpoint(hf_dir)
        with open(os.path.join(hf_dir, "config.json")) as f:
            config = json.load(f)
        for engine in range(2):
            for rank in range(2):
                path = self.path("dump", "rollout", "engine-%04d-rank-%04d.safetensors" % (engine, rank))
                dumped = {k: v[2] for k, v in reference.Safetensors(path).tensors.items()}
                self.assertEqual(dumped, reference.sglang_qwen3(hf, config, 2, rank))
        for rank in range(4):
            path = self.path("dump", "train", "rank-%05d.safetensors" % rank)
            dumped = {k: v[2] for k, v in reference.Safetensors(path).tensors.items()}
            expected = reference.megatron_qwen3(hf, config, 2, rank % 2)
            embedding = "embedding.word_embeddings.weight"
            self.assertEqual(dumped[embedding][:len(expected[embedding])], expected[embedding])
            self.assertEqual({k: v for k, v in dumped.items() if k != embedding},
                             {k: v for k, v in expected.items() if k != embedding})

    def test_one_changed_byte_is_found_and_named(self):
        self.assert_exit(self.xferctl("prepare", "Qwen3-4B", "--tiny", "--layers", "2", "--synthesize"), 0)
        (shard,) = glob.glob(self.path("ckpt", "*", "train", "rank-00000.safetensors"))
        name = "decoder.layers.1.mlp.linear_fc2.weight"
        with open(shard, "r+b") as f:
            length = int.from_bytes(f.read(8), "little")
            begin = json.loads(f.read(length))[name]["data_offsets"][0]
            f.seek(8 + length + begin + 101)
            byte = f.read(1)
            f.seek(-1, os.SEEK_CUR)
            f.write(bytes([byte[0] ^ 1]))
        result = self.xferctl(*TINY, "--steps", "3")
        self.assert_exit(result, 1)
        self.assertIn("model.layers.1.mlp.down_proj.weight", result.stderr)
        self.assertRegex(result.stderr, r"engine \d rank \d")
        skipped = self.xferctl(*TINY, "--steps", "1", env={"SKIP_VALIDATION": "1"})
        self.assert_exit(skipped, 0)

    def start_long_run(self):
        process = subprocess.Popen([program("xferctl"), *TINY, "--steps", "100000"], cwd=self.dir,
                                   env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True)
        self.processes.append(process)
        while "step 2 of" not in process.stdout.readline():
            self.assertIsNone(process.poll())
        children = descendants(process.pid)
        self.assertGreaterEqual(len(children), 3)
        return process, children

    def test_nothing_is_left_after_interrupt(self):
        for sign in (signal.SIGINT, signal.SIGTERM):
            process, children = self.start_long_run()
            process.send_signal(sign)
            process.communicate(timeout=30)
            self.assertEqual(process.returncode, 1)
            self.assertEqual([c for c in children if alive(c)], [])

    def test_nothing_is_left_after_kill(self):
        process, children = self.start_long_run()
        process.kill()
        process.communicate(timeout=30)
        wait_until(lambda: not any(alive(c) for c in children), 15, "all children of a killed run ended")

    def test_a_killed_child_ends_the_run_and_is_named(self):
        for name in ("xfer-agent", "xfer-rank", "xfer-coordinator"):
            process, children = self.start_long_run()
            for child in children:
                with open("/proc/%d/comm" % child) as f:
                    if f.read().strip() == name[:15]:
                        os.kill(child, signal.SIGKILL)
                        break
            else:
                self.fail("no %s among the children" % name)
            _, stderr = process.communicate(timeout=90)
            self.assertEqual(process.returncode, 1, stderr)
            self.assertIn(name, stderr)
            self.assertEqual([c for c in children if alive(c)], [])


if __name__ == "__main__":
    unittest.main()
