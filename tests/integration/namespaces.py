"""Two hosts on one machine: network namespaces joined by a pair of virtual links. Needs root."""

import os
import subprocess
import unittest

needs_root = unittest.skipUnless(os.geteuid() == 0, "needs root to make network namespaces")


class TwoHosts:
    """Namespaces with addresses 10.77.0.1 and .2; removed by close(). `prefix(i)` runs a program in one."""

    def __init__(self):
        self.names = ["xfer-%d-%d" % (os.getpid(), i) for i in (0, 1)]
        self.addresses = ["10.77.0.1", "10.77.0.2"]
        for name in self.names:
            self.ip("netns", "add", name)
        self.ip("link", "add", "veth0", "netns", self.names[0], "type", "veth", "peer", "name", "veth0", "netns",
                self.names[1])
        for name, address in zip(self.names, self.addresses):
            self.ip("-n", name, "link", "set", "lo", "up")
            self.ip("-n", name, "addr", "add", address + "/24", "dev", "veth0")
            self.ip("-n", name, "link", "set", "veth0", "up")

    @staticmethod
    def ip(*arguments):
        subprocess.run(["ip", *arguments], check=True, timeout=20)

    def prefix(self, i):
        return ("ip", "netns", "exec", self.names[i])

    def limit(self, i, rate):
        """Limits what leaves host `i`, e.g. to "80mbit"."""
        subprocess.run([*self.prefix(i), "tc", "qdisc", "replace", "dev", "veth0", "root", "tbf", "rate", rate,
                        "burst", "64kb", "latency", "50ms"], check=True, timeout=20)

    def close(self):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], timeout=20)
