#!/usr/bin/env python3
"""Runs a program of this machine in a virtual machine that has Soft-RoCE (rdma_rxe) devices.

A container's kernel seldom has rdma_rxe, and a build machine has no RDMA NIC. So this takes Debian's kernel
package (unpacked, never installed), boots it in qemu without KVM and gives the guest this machine's root folder,
read-only under an overlay that is thrown away. The guest runs the same files with the same libraries.

  guest.py prepare DIR                          fetches the kernel and builds the initramfs (once)
  guest.py run DIR [options] -- PROGRAM ARG...  exit status and output are the program's

Exit statuses of its own: 77 something that is needed is missing (a line "SKIPPED: why" says what), 124 time is
up, 125 the guest ended without saying how the program did.
"""
import argparse
import fcntl
import glob
import lzma
import os
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile

SKIPPED, TIMED_OUT, NO_STATUS = 77, 124, 125
HERE = os.path.dirname(os.path.realpath(__file__))
# What the guest needs before it has the root folder, and with it all other modules.
BOOT_MODULES = ['virtio_pci', '9pnet_virtio', '9p', 'overlay', 'virtio_console']
TOOLS = {  # program -> Debian package
    'qemu-system-x86_64': 'qemu-system-x86', 'busybox': 'busybox-static', 'modprobe': 'kmod', 'depmod': 'kmod',
    'cpio': 'cpio', 'ip': 'iproute2', 'rdma': 'iproute2', 'dpkg-deb': 'dpkg', 'apt-get': 'apt', 'zstd': 'zstd',
}


class Skip(Exception):
    """Something that this machine does not have."""


def check_machine():
    if os.geteuid() != 0:
        raise Skip('not root: the guest runs on this machine\'s root folder, which root alone can read whole')
    if os.uname().machine != 'x86_64':
        raise Skip(f'this is {os.uname().machine}; the guest is x86_64')
    search = os.environ.get('PATH', '') + ':/usr/sbin:/sbin'
    missing = sorted({package for tool, package in TOOLS.items() if not shutil.which(tool, path=search)})
    if missing:
        raise Skip('missing packages: apt-get install ' + ' '.join(missing))
    os.environ['PATH'] = search


# ---- Preparing ----------------------------------------------------------------------------------------------

def kernel_package():
    """The package behind Debian's metapackage for the present kernel."""
    out = subprocess.run(['apt-cache', 'depends', 'linux-image-amd64'], text=True, capture_output=True).stdout
    for line in out.splitlines():
        kind, _, name = line.strip().partition(': ')
        if kind == 'Depends' and name.startswith('linux-image-'):
            return name
    raise Skip('apt knows no linux-image-amd64: run apt-get update (the guest needs a Debian kernel package)')


def fetch_kernel(kernel_dir):
    """Downloads and unpacks the kernel package; returns its release, e.g. 6.1.0-40-amd64."""
    package = kernel_package()
    shutil.rmtree(kernel_dir, ignore_errors=True)
    with tempfile.TemporaryDirectory() as work:
        os.chmod(work, 0o755)  # apt drops its rights to user _apt for the download
        got = subprocess.run(['apt-get', '-q', '-o', 'Acquire::Retries=3', 'download', package], cwd=work,
                             capture_output=True, text=True)
        debs = glob.glob(work + '/*.deb')
        if got.returncode != 0 or not debs:
            why = (got.stderr.strip().splitlines() or ['no file came'])[-1]
            raise Skip(f'apt-get download {package} failed: {why}')
        subprocess.run(['dpkg-deb', '-x', debs[0], kernel_dir], check=True)
    return package.removeprefix('linux-image-')


def uncompressed_kernel(image_path, out_path):
    """Takes the ELF kernel out of a bzImage. qemu starts an ELF file with a PVH note directly, which spares
    the slow unpacking under emulation, some seconds a boot. Offsets: Linux x86 boot protocol, "The Real-Mode
    Kernel Header" (setup_sects 0x1f1, payload_offset 0x248, payload_length 0x24c)."""
    with open(image_path, 'rb') as file:
        image = file.read()
    setup_sectors = image[0x1f1] or 4
    offset, length = struct.unpack_from('<II', image, 0x248)
    start = (setup_sectors + 1) * 512 + offset
    payload = image[start:start + length - 4]  # the last 4 bytes are the unpacked size
    if payload[:6] == b'\xfd7zXZ\0':
        kernel = lzma.decompress(payload)
    elif payload[:4] == b'\x28\xb5\x2f\xfd':
        kernel = subprocess.run(['zstd', '-qdc'], input=payload, stdout=subprocess.PIPE, check=True).stdout
    else:
        kernel = image  # another compression: qemu boots the bzImage too, only slower
    with open(out_path, 'wb') as file:
        file.write(kernel)


def build_initramfs(modules_root, release, out_path):
    """busybox, the modules that mount the root folder, and the script that does it."""
    with tempfile.TemporaryDirectory() as root:
        for folder in ('bin', 'dev', 'proc', 'sys', 'modules', 'host', 'top', 'new'):
            os.mkdir(f'{root}/{folder}')
        shutil.copy(shutil.which('busybox'), f'{root}/bin/busybox')
        shutil.copy(f'{HERE}/guest_init.sh', f'{root}/init')
        os.chmod(f'{root}/init', 0o755)
        os.mknod(f'{root}/dev/console', 0o600 | 0o020000, os.makedev(5, 1))
        order = []
        for module in BOOT_MODULES:
            shown = subprocess.run(['modprobe', '-d', modules_root, '-S', release, '--show-depends', module],
                                   check=True, text=True, capture_output=True).stdout
            for line in shown.splitlines():
                words = line.split()
                if words[0] == 'insmod' and words[1] not in order:
                    order.append(words[1])
        with open(f'{root}/modules/order', 'w') as names:
            for path in order:
                name = os.path.basename(path)
                with open(path, 'rb') as file:
                    data = file.read()
                if name.endswith('.xz'):
                    name, data = name.removesuffix('.xz'), lzma.decompress(data)
                with open(f'{root}/modules/{name}', 'wb') as file:
                    file.write(data)
                names.write(name + '\n')
        files = subprocess.run(['find', '.'], cwd=root, check=True, stdout=subprocess.PIPE).stdout
        with open(out_path, 'wb') as out:
            subprocess.run(['cpio', '--quiet', '-o', '-H', 'newc'], cwd=root, input=files, stdout=out, check=True)


def prepare(directory):
    """Makes DIRECTORY/{kernel,initramfs,release,tree} unless they are there and newer than these scripts."""
    check_machine()
    os.makedirs(directory, exist_ok=True)
    with open(f'{directory}/lock', 'w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two tests may start at once
        tree, release_file = f'{directory}/tree', f'{directory}/release'
        if not os.path.exists(release_file):
            release = fetch_kernel(tree)
            subprocess.run(['depmod', '-b', tree, release], check=True)
            uncompressed_kernel(f'{tree}/boot/vmlinuz-{release}', f'{directory}/kernel')
            with open(release_file, 'w') as file:
                file.write(release)
        with open(release_file) as file:
            release = file.read()
        initramfs, source = f'{directory}/initramfs', f'{HERE}/guest_init.sh'
        if not os.path.exists(initramfs) or os.path.getmtime(initramfs) < os.path.getmtime(source):
            build_initramfs(tree, release, initramfs + '.new')
            os.rename(initramfs + '.new', initramfs)
    return release


# ---- Running ------------------------------------------------------------------------------------------------

def write_control_files(control, directory, release, options, command):
    shutil.copy(f'{HERE}/guest_main.sh', f'{control}/main.sh')
    settings = {
        'MODULES': f'{os.path.realpath(directory)}/tree/lib/modules/{release}', 'RELEASE': release,
        'NETWORK': options.network, 'NETDEV_MTU': options.mtu, 'NETDEV_MTU_B': options.mtu_b or options.mtu,
        'ADDRESS': options.address,
    }
    with open(f'{control}/settings', 'w') as file:
        for name, value in settings.items():
            file.write(f'{name}={shlex.quote(str(value))}\n')
        for index, folder in enumerate(options.writable):
            file.write(f'share rw{index} {shlex.quote(os.path.realpath(folder))}\n')
    with open(f'{control}/program', 'w') as file:
        file.write(f'cd {shlex.quote(os.getcwd())}\n')
        for setting in options.env:
            file.write(f'export {shlex.quote(setting)}\n')
        file.write('exec ' + ' '.join(shlex.quote(word) for word in command) + '\n')


def qemu_command(directory, control, console, options):
    def folder(tag, path, extra=''):
        return ['-fsdev', f'local,id={tag},path={path},security_model=none,multidevs=remap{extra}',
                '-device', f'virtio-9p-pci,fsdev={tag},mount_tag={tag}']
    command = [
        'qemu-system-x86_64', '-M', 'q35', '-accel', 'tcg,thread=multi,tb-size=256', '-cpu', 'max',
        '-smp', str(options.cpus), '-m', str(options.memory),
        '-nodefaults', '-no-user-config', '-display', 'none', '-no-reboot', '-monitor', 'none',
        '-kernel', f'{directory}/kernel', '-initrd', f'{directory}/initramfs',
        '-append', 'console=ttyS0 quiet panic=-1 oops=panic nokaslr mitigations=off tsc=unstable '
                   'random.trust_cpu=on edd=off',
        '-chardev', f'file,id=console,path={console}', '-serial', 'chardev:console',
        '-device', 'virtio-serial-pci', '-chardev', 'stdio,id=out,signal=off', '-device', 'virtconsole,chardev=out']
    command += folder('hostroot', '/', ',readonly=on') + folder('control', control)
    for index, path in enumerate(options.writable):
        command += folder(f'rw{index}', os.path.realpath(path))
    if options.link:
        kind, _, rest = options.link.partition(',')
        last = int(options.address.split('/')[0].split('.')[-1])  # two guests of a link need different MACs
        command += ['-netdev', f'{kind},id=link,{rest}',
                    '-device', f'virtio-net-pci,netdev=link,romfile=,mac=52:54:00:00:00:{last:02x}']
    return command


def run(options):
    release = prepare(options.dir)
    with tempfile.TemporaryDirectory(prefix='xfer-guest.') as control:
        write_control_files(control, options.dir, release, options, options.command)
        console = options.console or f'{control}/console'
        guest = subprocess.Popen(qemu_command(options.dir, control, console, options), stdin=subprocess.DEVNULL)

        def stop(*_):
            guest.kill()
            guest.wait()
            sys.exit(128 + signal.SIGTERM)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, stop)
        timed_out = False
        try:
            guest.wait(options.timeout)
        except subprocess.TimeoutExpired:
            timed_out = True
            guest.kill()
            guest.wait()
        if os.path.exists(f'{control}/status'):
            with open(f'{control}/status') as file:
                return int(file.read())
        sys.stdout.flush()
        print(f'guest.py: no status from the guest after {options.timeout} s' if timed_out else
              f'guest.py: the guest ended without a status (qemu: {guest.returncode})', 'its console ends with:',
              sep='; ', file=sys.stderr)
        with open(console, errors='replace') as file:
            sys.stderr.writelines(file.readlines()[-30:])
        return TIMED_OUT if timed_out else NO_STATUS


def main():
    parser = argparse.ArgumentParser(description='Runs a program in a virtual machine with Soft-RoCE devices.')
    sub = parser.add_subparsers(dest='action', required=True)
    for action in ('prepare', 'run'):
        sub.add_parser(action).add_argument('dir', help='where kernel and initramfs are kept')
    runner = sub.choices['run']
    runner.add_argument('--network', default='one', choices=['one', 'one6', 'rails', 'link', 'none'],
                        help='see guest_main.sh')
    runner.add_argument('--mtu', type=int, default=4200, help='of the network devices; 4200 makes IB MTU 4096')
    runner.add_argument('--mtu-b', type=int, default=0, help='rails: of the b ends (default: as --mtu)')
    runner.add_argument('--address', default='192.0.2.1/24', help='one, link: IPv4 address of rxe0')
    runner.add_argument('--link', default='', help='link: qemu -netdev without its id')
    runner.add_argument('--memory', type=int, default=1024, help='MiB')
    runner.add_argument('--cpus', type=int, default=2)
    runner.add_argument('--timeout', type=float, default=85, help='seconds from power-on')
    runner.add_argument('--writable', action='append', default=[], help='folder that the guest may write to')
    runner.add_argument('--env', action='append', default=[], help='NAME=VALUE')
    runner.add_argument('--console', default='', help='file for the kernel\'s messages')
    runner.add_argument('command', nargs='+')
    options = parser.parse_args()
    try:
        if options.action == 'prepare':
            print(prepare(options.dir))
            return 0
        return run(options)
    except Skip as reason:
        print(f'SKIPPED: {reason}')
        return SKIPPED


if __name__ == '__main__':
    sys.exit(main())
