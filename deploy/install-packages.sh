#!/usr/bin/env bash
# install-packages.sh FILE...: installs the Debian packages listed in the files that are not installed yet.
# Does nothing, and needs neither root nor network, where all are there.
set -euo pipefail

missing=()
for package in $(sed 's/#.*//' "$@"); do
  dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

sudo=()
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || {
    echo "install-packages: missing packages: ${missing[*]}; run as root, or install them and run again" >&2
    exit 1
  }
  sudo=(sudo)
fi
echo "installing: ${missing[*]}"
"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive sh -c '
  apt-get -q -o Acquire::Retries=3 update >/tmp/xfer-apt.log 2>&1 &&
  apt-get -q -y -o Acquire::Retries=3 -o DPkg::Lock::Timeout=120 install --no-install-recommends "$@" >>/tmp/xfer-apt.log 2>&1
' sh "${missing[@]}" || {
  echo "install-packages: apt-get failed; the end of /tmp/xfer-apt.log:" >&2
  tail -n 20 /tmp/xfer-apt.log >&2
  exit 1
}
