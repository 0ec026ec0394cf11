"""What xferctl says to wrong use and to broken input: one line that names the thing, and the right exit code."""

import glob
import json
import os
import struct
import subprocess
import unittest

from harness import XferTest


def qwen3_shapes(config):
    hidden, dim, inter = config["hidden_size"], config["head_dim"], config["intermediate_size"]
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    shapes = {"model.embed_tokens.weight": [config["vocab_size"], hidden], "model.norm.weight": [hidden]}
    for i in range(config["num_hidden_layers"]):
        p = "model.layers.%d." % i
        for name, shape in (("input_layernorm", [hidden]), ("post_attention_layernorm", [hidden]),
                            ("self_attn.q_proj", [heads * dim, hidden]), ("self_attn.k_proj", [kv * dim, hidden]),
                            ("self_attn.v_proj", [kv * dim, hidden]), ("self_attn.o_proj", [hidden, heads * dim]),
                            ("self_attn.q_norm", [dim]), ("self_attn.k_norm", [dim]),
                            ("mlp.gate_proj", [inter, hidden]), ("mlp.up_proj", [inter, hidden]),
                            ("mlp.down_proj", [hidden, inter])):
            shapes[p + name + ".weight"] = shape
    return shapes


class Cli(XferTest):

    def assert_refused(self, code, texts, *arguments, **kwargs):
        result = self.xferctl(*arguments, **kwargs)
        self.assert_exit(result, code)
        lines = result.stderr.strip().splitlines()
        self.assertEqual(len(lines), 1, result.stderr)
        self.assertTrue(lines[0].startswith("xferctl: "), result.stderr)
        for text in texts:
            self.assertIn(text, lines[0])

    def test_wrong_use(self):
        self.assert_refused(2, ["Qwen9", "Qwen3-4B"], "run", "Qwen9")
        self.assert_refused(2, ["frobnicate"], "frobnicate")
        self.assert_refused(2, ["--steps", "-1"], "run", "Qwen3-4B", "--steps", "-1")
        self.assert_refused(2, ["--layers"], "run", "Qwen3-4B", "--layers", "0")
        self.assert_refused(2, ["37", "36"], "prepare", "Qwen3-4B", "--synthesize", "--layers", "37")
        self.assert_refused(2, ["SKIP_VALIDATION", "maybe"], "run", "Qwen3-4B", env={"SKIP_VALIDATION": "maybe"})
        self.assert_refused(2, ["BUCKET_SIZE_GB", "-3"], "run", "Qwen3-4B", env={"BUCKET_SIZE_GB": "-3"})
        self.assert_refused(2, ["--bucket-size-gb", "0"], "run", "Qwen3-4B", "--bucket-size-gb", "0")
        self.assert_refused(2, ["--verify", "some"], "run", "Qwen3-4B", "--verify", "some")
        self.assert_refused(2, ["--insecure"], "run", "Qwen3-4B", "--tiny", "--layers", "1", "--nodes", "2",
                            "--node-rank", "0", "--head-ip", "192.0.2.1")

    def test_doctor_says_what_a_node_without_rdma_lacks(self):
        if os.path.isdir("/sys/class/infiniband") and os.listdir("/sys/class/infiniband"):
            self.skipTest("this machine has an RDMA device")
        result = self.xferctl("doctor", "--output", "json")
        self.assert_exit(result, 1)
        document = json.loads(result.stdout)
        self.assertFalse(document["usable"])
        self.assertEqual(document["devices"], [])
        self.assertIn("the kernel has no RDMA device", document["findings"][0]["what"])
        self.assertIn("modprobe", document["findings"][0]["remedy"])
        result = self.xferctl("doctor")
        self.assert_exit(result, 1)
        self.assertIn("no GPU" if "GPU " not in result.stdout else "GPU ", result.stdout)
        self.assertIn("to mend it", result.stdout)
        result = self.xferctl("doctor", "--peer", "127.0.0.1:1", "--timeout", "1")
        self.assert_exit(result, 1)
        self.assertIn("no agent answers at 127.0.0.1:1", result.stdout)

    def test_an_agent_that_must_use_rdma_says_what_is_missing(self):
        if os.path.isdir("/sys/class/infiniband") and os.listdir("/sys/class/infiniband"):
            self.skipTest("this machine has an RDMA device")
        common = ["xfer-agent", "--coordinator", "127.0.0.1:1", "--node", "n", "--socket", self.path("a.sock")]
        for arguments, code, texts in (
                (["--transport", "verbs"], 1, ["no RDMA device", "xferctl doctor"]),
                (["--nics", "mlx5_0"], 1, ["no RDMA device", "--nics"]),
                (["--transport", "pigeon"], 2, ["pigeon", "verbs"]),
                (["--nics", "0"], 2, ["--nics 0"]),
                (["--nics", "mlx5_0:x"], 2, ["mlx5_0:x"])):
            result = self.run_program(*common, *arguments)
            self.assert_exit(result, code)
            for text in texts:
                self.assertIn(text, result.stderr)

    def test_list_is_sorted_and_complete(self):
        result = self.xferctl("list", "--output", "json")
        self.assert_exit(result, 0)
        names = [m["name"] for m in json.loads(result.stdout)]
        self.assertEqual(names, sorted(names))
        self.assertEqual(len(names), 9)
        self.assertIn("Qwen3-4B", names)

    def prepare(self, *extra):
        return self.xferctl("prepare", "Qwen3-4B", "--tiny", "--layers", "1", "--output", "json", *extra)

    def test_prepare_is_done_once(self):
        first = self.prepare("--synthesize")
        self.assert_exit(first, 0)
        self.assertFalse(json.loads(first.stdout)["already_done"])
        second = self.prepare("--synthesize")
        self.assert_exit(second, 0)
        self.assertTrue(json.loads(second.stdout)["already_done"])
        shard = json.loads(first.stdout)["dir"] + "/train/rank-00001.safetensors"
        shard = shard if os.path.isabs(shard) else self.path(shard)
        os.truncate(shard, os.path.getsize(shard) - 1)
        third = self.prepare("--synthesize")
        self.assert_exit(third, 0)
        self.assertFalse(json.loads(third.stdout)["already_done"])

    def checkpoint(self, name, change=lambda header: None, truncate=0):
        """A Hugging Face directory of the full Qwen3-4B whose data is a hole in the file, so that it costs nothing;
        `change(header)` breaks its header, `truncate` cuts bytes off its end."""
        directory = self.path(name)
        os.mkdir(directory)
        result = self.xferctl("models", "show", "Qwen3-4B", "--output", "json")
        self.assert_exit(result, 0)
        config = json.loads(result.stdout)["config"]
        with open(directory + "/config.json", "w") as f:
            json.dump(config, f)
        shapes = qwen3_shapes(config)
        header, end = {}, 0
        for tensor, shape in shapes.items():
            size = 2
            for n in shape:
                size *= n
            header[tensor] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
            end += size
        change(header)
        text = json.dumps(header).encode()
        with open(directory + "/model.safetensors", "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            f.truncate(8 + len(text) + end - truncate)
        return directory

    def test_broken_checkpoints(self):
        norm, q = "model.layers.0.input_layernorm.weight", "model.layers.0.self_attn.q_proj.weight"

        def missing(header):
            header["model.other.weight"] = header.pop(norm)

        def wrong_shape(header):
            header[q]["shape"].reverse()

        def lying(header):
            header[norm]["data_offsets"][1] += 1 << 40

        for directory, texts in ((self.checkpoint("missing", missing), [norm]),
                                 (self.checkpoint("shape", wrong_shape), [q, "4096", "2560"]),
                                 (self.checkpoint("lying", lying), [norm, "model.safetensors"]),
                                 (self.checkpoint("short", truncate=10), ["model.safetensors"])):
            self.assert_refused(1, texts, "prepare", "Qwen3-4B", "--hf-dir", directory)
            self.assertEqual(glob.glob(self.path("ckpt") + "/**/rank-*.safetensors", recursive=True), [])
        other = self.checkpoint("other")
        with open(other + "/config.json") as f:
            config = json.load(f)
        config["hidden_size"] = 4096
        with open(other + "/config.json", "w") as f:
            json.dump(config, f)
        self.assert_refused(1, ["hidden_size", "4096", "2560"], "prepare", "Qwen3-4B", "--hf-dir", other)
        self.assert_refused(1, ["nowhere"], "prepare", "Qwen3-4B", "--hf-dir", self.path("nowhere"))

    def model_file(self, change=lambda spec: None):
        """A file with a model of one's own: what `models show` prints of a preset, under another name."""
        result = self.xferctl("models", "show", "Qwen3-4B", "--output", "json")
        self.assert_exit(result, 0)
        spec = json.loads(result.stdout)
        spec["name"] = "mine"
        change(spec)
        with open(self.path("mine.json"), "w") as f:
            json.dump(spec, f)
        return self.path("mine.json")

    def test_models_of_ones_own(self):
        state = self.path("state.db")
        coordinator, (address,) = self.start("xfer-coordinator", "--listen", "127.0.0.1:0", "--state", state)

        def models(*arguments, code=0):
            result = self.xferctl("--coordinator", address, *arguments)
            self.assert_exit(result, code)
            return result

        def refused(texts, change):
            self.assert_refused(1, texts, "--coordinator", address, "models", "add", self.model_file(change))

        refused(["mine.json", "train.tp = 3 must divide"], lambda s: s["train"].update(tp=3, world=12))
        refused(["MambaForCausalLM", "known are Qwen3ForCausalLM"],
                lambda s: s["config"].update(architectures=["MambaForCausalLM"]))
        refused(["pipeline parallelism in the rollout"], lambda s: s["rollout"].update(pp=2))
        self.assert_refused(1, ["nothing.json"], "--coordinator", address, "models", "add", "nothing.json")
        self.assert_refused(2, ["mine", "Qwen3-4B"], "--coordinator", address, "models", "show", "mine")

        models("models", "add", self.model_file())
        models("models", "add", self.model_file())  # just so already
        refused(["mine", "transfer_timeout_s is 300 there and 7 here", "--replace"],
                lambda s: s.update(transfer_timeout_s=7))
        models("models", "add", "--replace", self.model_file(lambda s: s.update(transfer_timeout_s=7)))
        self.end(coordinator)
        _, (address,) = self.start("xfer-coordinator", "--listen", "127.0.0.1:0", "--state", state)
        self.assertIn("mine", models("list").stdout)
        shown = json.loads(models("models", "show", "mine", "--output", "json").stdout)
        self.assertEqual(shown["transfer_timeout_s"], 7)
        models("jobs", "create", "job", "--model", "mine", "--tiny")

    def test_a_model_file_stands_for_a_model(self):
        path = self.model_file()
        self.assertIn("TP 2, CP 2", self.xferctl("models", "show", path).stdout)
        self.assert_exit(self.xferctl("plan", path, "--transfers", "0"), 0)
        result = self.xferctl("run", path, "--tiny", "--layers", "1", "--steps", "1")
        self.assert_exit(result, 0)
        self.assertIn("mine-layers1-tiny", result.stdout)
        self.assert_refused(2, ["mine.json", "rollout: redundant_experts is 1"], "plan",
                            self.model_file(lambda s: s["rollout"].update(redundant_experts=1)))

    def test_models_show_says_what_follows(self):
        result = self.xferctl("models", "show", "Kimi-K2-Instruct")
        self.assert_exit(result, 0)
        for text in ("8 + 8 + 8 + 8 + 8 + 8 + 8 + 5 layers, 32 ranks each", "163840", "4, 16 query heads a rank",
                     "12, each cut in 1", "a rank of stage 7"):
            self.assertIn(text, result.stdout)
        derived = json.loads(self.xferctl("models", "show", "Qwen3-235B-A22B-Instruct-2507", "--output",
                                          "json").stdout)["derived"]
        self.assertEqual([s["layers"] for s in derived["train"]["stages"]], [24, 24, 24, 22])
        self.assertEqual(derived["train"]["padded_vocab"], 152064)
        self.assertEqual(derived["rollout"]["kv_head_copies"], 8)

    @unittest.skipUnless(os.geteuid() == 0, "needs root to mount a small tmpfs")
    def test_full_disk(self):
        mount = self.path("small")
        os.mkdir(mount)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", mount], check=True)
        try:
            result = self.prepare("--synthesize", "--ckpt-dir", mount)
            self.assert_exit(result, 1)
            self.assertIn(mount, result.stderr)
            self.assertEqual(glob.glob(mount + "/**/prepared.json", recursive=True), [])
            self.assertEqual(glob.glob(mount + "/**/*.safetensors", recursive=True), [])
        finally:
            subprocess.run(["umount", mount], check=True)


if __name__ == "__main__":
    unittest.main()
