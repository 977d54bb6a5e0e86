"""A FUSE file system that shows a folder read-only, as gcsfuse and its like show a bucket: the program of
the native sidecar that serves a volume in test_loading.py. It runs as root in a container of the image
`python`, without a library: it speaks the kernel's raw protocol (linux/fuse.h).

usage: mirror.py FOLDER MOUNTPOINT      MOUNTPOINT: below a volume, because no container that mounts a
                                        volume starts while a dead file system is on the volume itself

Steps. While FOLDER has a file `.hold-NAME` with a number N, requests for the file NAME get no answer once
N of its bytes have been read since it was opened; 0: not even the first look-up. `.held` has the names
for which requests wait. They end when whoever asked is killed; if this program is stopped, they do not.

SIGTERM unmounts it. A mount that a killed predecessor left is replaced.
"""

import ctypes
import errno
import os
import pathlib
import select
import signal
import stat
import struct
import sys

# linux/fuse.h
LOOKUP, FORGET, GETATTR, OPEN, READ, RELEASE, FLUSH, INIT = 1, 2, 3, 14, 15, 18, 25, 26
OPENDIR, READDIR, RELEASEDIR, INTERRUPT, BATCH_FORGET = 27, 28, 29, 36, 42
FOPEN_DIRECT_IO = 1
FUSE_PARALLEL_DIROPS = 1 << 18  # A look-up that waits holds up no other one.
LARGEST = 1 << 20
# linux/mount.h
MS_NOSUID, MS_NODEV, MNT_DETACH = 2, 4, 2
LOOK_S = 0.05

libc = ctypes.CDLL(None, use_errno=True)


class Mirror:

    def __init__(self, folder, device):
        self.folder, self.device = pathlib.Path(folder), device
        self.nodes = [None, ""]  # Its path below the folder, by number; 1 is the root.
        self.read = {}  # Of each path: how many of its bytes since it was opened.
        self.waiting = {}  # Requests without an answer, by number.

    def node_of(self, path):
        if path not in self.nodes:
            self.nodes.append(path)
        return self.nodes.index(path)

    def subject(self, operation, node, body):
        """The path that the request is for."""
        if operation == LOOKUP:
            return os.path.join(self.nodes[node], body.rstrip(b"\0").decode())
        return self.nodes[node]

    def hold(self, path):
        """After how many bytes; None: never."""
        try:
            return int((self.folder / f".hold-{os.path.basename(path)}").read_text())
        except OSError:
            return None

    def holds(self, operation, node, body):
        if operation not in (LOOKUP, GETATTR, OPEN, READ):
            return False
        path = self.subject(operation, node, body)
        after = self.hold(path)
        if after is None:
            return False
        if operation == READ:
            offset, size = struct.unpack_from("QI", body, 8)
            return min(offset + size, (self.folder / path).stat().st_size) > after
        return self.read.get(path, 0) >= after

    def tell_held(self):
        part = self.folder / ".held.part"
        part.write_text("".join(f"{name}\n" for name in sorted({
            os.path.basename(self.subject(*fields)) for fields in map(parts, self.waiting.values())})))
        part.rename(self.folder / ".held")

    def attributes(self, path):
        info = (self.folder / path).lstat()
        mode = stat.S_IFMT(info.st_mode) | (0o555 if stat.S_ISDIR(info.st_mode) else 0o444)
        times = (info.st_atime_ns, info.st_mtime_ns, info.st_ctime_ns)
        return struct.pack("6Q10I", self.node_of(path), info.st_size, info.st_blocks,
                           *(t // 10**9 for t in times), *(t % 10**9 for t in times), mode,
                           1, 0, 0, 0, 4096, 0)

    def answer(self, operation, node, body):
        path = self.subject(operation, node, body)
        if operation == INIT:
            _, minor, readahead = struct.unpack_from("3I", body)
            return struct.pack("4I2H2I2HI28x", 7, min(minor, 31), readahead,
                               FUSE_PARALLEL_DIROPS, 16, 12, LARGEST, 1, 0, 0, 0)
        if operation == LOOKUP:  # Nothing is kept: each look at a path is a request.
            return struct.pack("QQQQII", self.node_of(path), 0, 0, 0, 0, 0) + self.attributes(path)
        if operation == GETATTR:
            return struct.pack("QII", 0, 0, 0) + self.attributes(path)
        if operation == OPEN:
            self.read[path] = 0
            # Pages for which somebody waits would hold up the next one who opens the file.
            return struct.pack("QII", 0, 0 if self.hold(path) is None else FOPEN_DIRECT_IO, 0)
        if operation == OPENDIR:
            return struct.pack("QII", 0, 0, 0)
        if operation == READ:
            offset, size = struct.unpack_from("QI", body, 8)
            with open(self.folder / path, "rb") as file:
                data = os.pread(file.fileno(), size, offset)
            self.read[path] = max(self.read.get(path, 0), offset + len(data))
            return data
        if operation == READDIR:
            offset, size = struct.unpack_from("QI", body, 8)
            data = b""
            names = sorted(n for n in os.listdir(self.folder / path) if not n.startswith(".h"))
            for number, name in enumerate(names[offset:], offset + 1):
                encoded = name.encode()
                entry = struct.pack("QQII", self.node_of(os.path.join(path, name)), number, len(encoded), 0)
                entry += encoded + b"\0" * (-len(encoded) % 8)
                if len(data) + len(entry) > size:
                    break
                data += entry
            return data
        if operation in (FLUSH, RELEASE, RELEASEDIR):
            return b""
        raise OSError(errno.ENOSYS, "")

    def reply(self, unique, error, data=b""):
        try:
            os.write(self.device, struct.pack("IiQ", 16 + len(data), -error, unique) + data)
        except FileNotFoundError:
            pass  # Whoever asked was killed.

    def take(self, request):
        operation, node, body = parts(request)
        unique, = struct.unpack_from("Q", request, 8)
        if operation in (FORGET, BATCH_FORGET):
            return
        if operation == INTERRUPT:
            interrupted, = struct.unpack("Q", body[:8])
            if self.waiting.pop(interrupted, None):
                self.reply(interrupted, errno.EINTR)
        elif self.holds(operation, node, body):
            self.waiting[unique] = request
        else:
            self.waiting.pop(unique, None)
            try:
                self.reply(unique, 0, self.answer(operation, node, body))
            except OSError as failure:
                self.reply(unique, failure.errno)

    def run(self):
        told = None
        while True:
            if select.select([self.device], [], [], LOOK_S)[0]:
                try:
                    self.take(os.read(self.device, LARGEST + 4096))
                except (FileNotFoundError, BlockingIOError):
                    pass  # Whoever asked was killed.
            for request in list(self.waiting.values()):
                self.take(request)
            if told != (told := set(self.waiting)):
                self.tell_held()


def parts(request):
    operation, = struct.unpack_from("I", request, 4)
    node, = struct.unpack_from("Q", request, 16)
    return operation, node, request[40:]


def main():
    folder, mountpoint = sys.argv[1:]
    while any(line.split()[4] == mountpoint for line in pathlib.Path("/proc/self/mountinfo").open()):
        libc.umount2(mountpoint.encode(), MNT_DETACH)
    os.makedirs(mountpoint, exist_ok=True)
    device = os.open("/dev/fuse", os.O_RDWR | os.O_NONBLOCK)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
    if libc.mount(b"mirror", mountpoint.encode(), b"fuse", MS_NOSUID | MS_NODEV, options.encode()) != 0:
        raise OSError(ctypes.get_errno(), f"mount FUSE at {mountpoint}")

    def end(*_):
        libc.umount2(mountpoint.encode(), MNT_DETACH)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    Mirror(folder, device).run()


if __name__ == "__main__":
    main()
