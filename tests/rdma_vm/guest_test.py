#!/usr/bin/env python3
"""guest_test.py DIR: the guest gives a program's output and exit status, keeps the host's files as they are, and
ends in time when the program does not."""
import os
import subprocess
import sys
import tempfile
import time

GUEST = os.path.join(os.path.dirname(os.path.realpath(__file__)), 'guest.py')
SKIPPED = 77


def guest(directory, *words):
    return subprocess.run([sys.executable, '-B', GUEST, 'run', directory, *words], text=True, capture_output=True)


def expect(what, true, result):
    if not true:
        sys.exit(f'FAILED: {what}\nstatus {result.returncode}\n{result.stdout}\n{result.stderr}')


def main():
    directory = sys.argv[1]
    with tempfile.TemporaryDirectory() as work:
        protected, shared = f'{work}/protected', f'{work}/shared'
        for folder in (protected, shared):
            os.mkdir(folder)
        script = ('set -e; grep -q ACTIVE <(rdma link show rxe0a/1);'
                  f' touch {protected}/file; echo kept >{shared}/file; echo "gave: $WORD"; exit 7')
        result = guest(directory, '--network', 'rails', '--writable', shared, '--env', 'WORD=two words', '--',
                       'bash', '-c', script)
        if result.returncode == SKIPPED:
            print(result.stdout, end='')
            return SKIPPED
        expect('the exit status is the program\'s', result.returncode == 7, result)
        expect('the output is the program\'s', 'gave: two words' in result.stdout, result)
        expect('the root folder is not written to', os.listdir(protected) == [], result)
        with open(f'{shared}/file') as file:
            expect('the writable folder is', file.read() == 'kept\n', result)

    start = time.monotonic()
    result = guest(directory, '--network', 'none', '--timeout', '15', '--', 'tail', '-f', '/dev/null')
    expect('a program that does not end is ended', result.returncode == 124, result)
    expect('in time', time.monotonic() - start < 60, result)
    return 0


if __name__ == '__main__':
    sys.exit(main())
