"""Calls runc for CRI-O on a computer that lacks capabilities, such as a container: a container there
gets the OOM score and the capabilities that it can have, as containerd does by its configuration
(restrict_oom_score_adj) and by itself.

usage: runc_within_rights.py RUNC WORD ...      RUNC: the program; WORD ...: its arguments
"""

import json
import os
import pathlib
import re
import sys

# By their numbers in linux/capability.h.
NAMES = """CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE
NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT
SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE
AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ
PERFMON BPF CHECKPOINT_RESTORE""".split()


def restrict(process):
    lowest = int(pathlib.Path("/proc/self/oom_score_adj").read_text())
    process["oomScoreAdj"] = max(process.get("oomScoreAdj", 0), lowest)
    status = pathlib.Path("/proc/self/status").read_text()
    bits = int(re.search(r"^CapBnd:\s*(\w+)", status, re.MULTILINE)[1], 16)
    have = {f"CAP_{name}" for number, name in enumerate(NAMES) if bits >> number & 1}
    for kind, names in process.get("capabilities", {}).items():
        process["capabilities"][kind] = [name for name in names or [] if name in have]


def main():
    runc, words = sys.argv[1], sys.argv[2:]
    if "create" in words:
        path = pathlib.Path(words[words.index("--bundle") + 1], "config.json")
        config = json.loads(path.read_text())
        restrict(config["process"])
        path.write_text(json.dumps(config))
    os.execv(runc, ["runc", *words])


if __name__ == "__main__":
    main()
