"""deploy/examples: a script a model, which calls `xferctl run` and tells wrong use."""

import glob
import os
import subprocess
import unittest

import tiny_run
from harness import BIN, XferTest, clean_environment

EXAMPLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../deploy/examples")
GLM5 = ("GLM-5_4layer", "GLM-5_20layer", "GLM-5")


class Examples(XferTest):

    def example(self, script, *arguments, env=None, bin_dir=BIN):
        environment = clean_environment()
        environment.update({"XFER_BIN_DIR": os.path.abspath(bin_dir)}, **(env or {}))
        return subprocess.run([os.path.join(EXAMPLES, script), *arguments], capture_output=True, text=True, timeout=120,
                              env=environment, cwd=self.dir)

    def scripts(self):
        """(script, words before MODE, model) of every model of the registry."""
        for model in tiny_run.registry():
            if model in GLM5:
                yield "GLM-5.sh", (model,), model
            else:
                yield model + ".sh", (), model

    def fake_xferctl(self):
        """A directory with an xferctl that shows what it was called with."""
        directory = self.path("bin")
        os.makedirs(directory, exist_ok=True)
        with open(directory + "/xferctl", "w") as f:
            f.write("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
        os.chmod(directory + "/xferctl", 0o755)
        return directory

    def test_there_is_one_for_every_model_and_no_other(self):
        found = {os.path.basename(p) for p in glob.glob(EXAMPLES + "/*.sh")} - {"run_model.sh"}
        self.assertEqual(found, {script for script, _, _ in self.scripts()})

    def test_they_say_run_with_the_words_in_their_places(self):
        bin_dir = self.fake_xferctl()
        for script, prefix, model in self.scripts():
            for words, expected in (((), ["--mode", "p2p"]),
                                    (("broadcast",), ["--mode", "broadcast"]),
                                    (("p2p", "3", "10.0.0.1", "--insecure", "--steps", "5"),
                                     ["--mode", "p2p", "--node-rank", "3", "--head-ip", "10.0.0.1", "--insecure",
                                      "--steps", "5"]),
                                    (("--tiny",), ["--mode", "p2p", "--tiny"])):
                result = self.example(script, *prefix, *words, bin_dir=bin_dir)
                self.assert_exit(result, 0)
                self.assertEqual(result.stdout.splitlines(), ["run", model, *expected])

    def test_wrong_use_is_two_and_named(self):
        bin_dir = self.fake_xferctl()
        for script, prefix, _ in self.scripts():
            for words, text in ((("rdma",), 'MODE is "rdma"'), (("p2p", "first"), 'NODE_RANK is "first"'),
                                (("p2p", "-1x"), None), (("p2p", "0", "10.0.0.1", "more"), '"more" is one word too many')):
                result = self.example(script, *prefix, *words, bin_dir=bin_dir)
                if text is None:  # a word with a dash is an option, which is xferctl's to refuse
                    self.assertEqual(result.stdout.splitlines()[-1], "-1x")
                    continue
                self.assert_exit(result, 2)
                self.assertIn(text, result.stderr)
                self.assertIn("usage: " + script, result.stderr)
            self.assert_exit(self.example(script, *prefix, "--help", bin_dir=bin_dir), 0)
        for words in ((), ("GLM-4",)):
            result = self.example("GLM-5.sh", *words, bin_dir=bin_dir)
            self.assert_exit(result, 2)
            self.assertIn("VARIANT is", result.stderr)
        refused = self.example("Qwen3-4B.sh", "p2p", "7", "10.0.0.1", "--nodes", "2")
        self.assert_exit(refused, 2)  # xferctl's own refusal comes through
        self.assertIn("--node-rank is 7", refused.stderr)

    def test_they_run(self):
        for script, words in (("Qwen3-4B.sh", ()), ("GLM-5.sh", ("GLM-5_4layer", "p2p"))):
            result = self.example(script, *words, "--tiny", "--steps", "1", env={"CKPT_SAVE_DIR": self.path("ckpt")})
            self.assert_exit(result, 0)
            self.assertIn("equal to the checkpoint", result.stdout)


if __name__ == "__main__":
    unittest.main()
