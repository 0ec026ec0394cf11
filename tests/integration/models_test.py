"""Every model of the registry, with small widths but all its nodes and ranks: one p2p sync, compared byte for byte."""

import sys
import unittest

import tiny_run


class Models(unittest.TestCase):

    def test_there_are_nine(self):
        self.assertEqual(len(tiny_run.registry()), 9)


def add_test(model):
    def test(self):
        result = tiny_run.run_tiny(model)
        self.assertEqual(result["error"], "")
        print("%s: %d ranks on %d nodes equal after %.1f s" % (model["name"], model["gpus"], model["nodes"],
                                                              result["run_s"]), file=sys.stderr)
    setattr(Models, "test_" + "".join(c if c.isalnum() else "_" for c in model["name"]), test)


for row in tiny_run.registry().values():
    add_test(row)

if __name__ == "__main__":
    unittest.main()
