# Second stage of the guest (bash, in the host's root folder): makes the network that was asked for, runs the
# program, leaves its exit status in the control folder and powers off.
#   one    rxe0 on a device of its own, IPv4; what is sent loops back
#   one6   likewise, with IPv6 addresses only
#   rails  two veth pairs, v0a-v0b and v1a-v1b, with a device on each end: rxe0a, rxe0b, rxe1a, rxe1b
#   link   rxe0 on the device that qemu's --link gave: the other end is another guest
#   none   nothing
set -u
exec </dev/null >/dev/console 2>&1
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb

finish() {
  echo "$1" >/run/control/status.new
  mv /run/control/status.new /run/control/status
  sync
  echo b >/proc/sysrq-trigger  # with -no-reboot, qemu ends
}
must() {
  "$@" && return
  echo "guest_main: failed: $*"
  echo "guest_main: failed: $*" >/dev/hvc0
  finish 125
}
share() { must mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=none "$1" "$2"; }

# A device's GID table is filled by a kernel worker some time after the device is there.
wait_for_gid() {  # DEVICE PATTERN
  local tries=0
  until grep -qs "$2" "/sys/class/infiniband/$1/ports/1/gids/"*; do
    [ $((tries += 1)) -le 100 ] || must false "no GID like $2 at $1"
    read -r -t 0.1 <> <(:)
  done
}
add_device() {  # RXE NETDEV GID-PATTERN
  must rdma link add "$1" type rxe netdev "$2"
  wait_for_gid "$1" "$3"
}

one() {
  must modprobe dummy numdummies=0
  must ip link add net0 type dummy
  must ip link set net0 mtu "$NETDEV_MTU"
  must ip addr add "$ADDRESS" dev net0
  must ip link set net0 up
  add_device rxe0 net0 ':ffff:'
}
one6() {
  must modprobe dummy numdummies=0
  must ip link add net0 type dummy
  must ip link set net0 mtu "$NETDEV_MTU"
  must ip addr add fd00:db8::1/64 dev net0 nodad
  must ip link set net0 up
  add_device rxe0 net0 'fd00:'
}
rails() {
  must modprobe veth
  sysctl -qw net.ipv4.conf.all.rp_filter=0
  local rail end mtu
  for rail in 0 1; do
    must ip link add "v${rail}a" type veth peer name "v${rail}b"
    for end in a b; do
      local dev=v$rail$end host=1
      mtu=$NETDEV_MTU
      [ $end = a ] || { host=2 mtu=$NETDEV_MTU_B; }
      # Both ends are of this host: packets from an own address are to be taken.
      sysctl -qw "net.ipv4.conf.$dev.accept_local=1" "net.ipv4.conf.$dev.rp_filter=0"
      must ip link set "$dev" mtu "$mtu" up
      must ip addr add "192.0.$((2 + rail)).$host/24" dev "$dev"
      add_device "rxe$rail$end" "$dev" ':ffff:'
    done
  done
}
link() {
  must modprobe virtio_net
  local dev
  dev=$(basename "$(ls -d /sys/class/net/*/device | head -n 1 | xargs dirname)")
  must ip link set "$dev" mtu "$NETDEV_MTU"
  must ip addr add "$ADDRESS" dev "$dev"
  must ip link set "$dev" up
  add_device rxe0 "$dev" ':ffff:'
}
none() { :; }

must mkdir -p /lib/modules /dev/pts /dev/shm
. /run/control/settings
must ln -sfn "$MODULES" "/lib/modules/$RELEASE"
must mount -t devpts devpts /dev/pts
must mount -t tmpfs shm /dev/shm
ln -sfn /proc/self/fd /dev/fd
for stream in 0:stdin 1:stdout 2:stderr; do ln -sfn "fd/${stream%:*}" "/dev/${stream#*:}"; done
must ip link set lo up
must modprobe rdma_rxe
"$NETWORK"
echo "guest_main: ready after $(cut -d' ' -f1 /proc/uptime) s"

stty -F /dev/hvc0 raw -echo
setsid bash /run/control/program </dev/null >/dev/hvc0 2>&1
status=$?
echo "guest_main: status $status after $(cut -d' ' -f1 /proc/uptime) s"
stty -F /dev/hvc0 >/dev/null  # opening and closing it waits until the queued output has gone
finish $status
