#!/bin/busybox sh
# First program of the guest, from the initramfs: puts the host's root folder (read-only, by 9p) under a tmpfs
# overlay and goes on with main.sh from the control folder.
b=/bin/busybox
fail() { echo "guest_init: $* failed" >/dev/console; $b reboot -f; }
try() { $b "$@" || fail "$*"; }
try mount -t proc proc /proc
try mount -t sysfs sysfs /sys
try mount -t devtmpfs devtmpfs /dev
for module in $($b cat /modules/order); do try insmod "/modules/$module"; done
via=trans=virtio,version=9p2000.L,msize=512000
try mount -t 9p -o $via,cache=loose,ro hostroot /host
try mount -t tmpfs -o size=75% top /top
try mkdir /top/upper /top/work
try mount -t overlay -o lowerdir=/host,upperdir=/top/upper,workdir=/top/work overlay /new
try mount -t devtmpfs devtmpfs /new/dev
try mount -t tmpfs run /new/run
try mkdir /new/run/control
try mount -t 9p -o $via,cache=none control /new/run/control
try umount /dev
try mount -o move /sys /new/sys
try mount -o move /proc /new/proc
exec $b switch_root /new /bin/bash /run/control/main.sh
fail switch_root
