"""Calls runc for CRI-O on a computer without CAP_SYS_RESOURCE, where nobody may lower an OOM score:
a container that asks for a lower one gets the one that is there (in containerd's configuration:
restrict_oom_score_adj).

usage: runc_without_oom_score.py RUNC WORD ...      RUNC: the program; WORD ...: its arguments
"""

import json
import os
import pathlib
import sys


def main():
    runc, words = sys.argv[1], sys.argv[2:]
    if "create" in words:
        path = pathlib.Path(words[words.index("--bundle") + 1], "config.json")
        config = json.loads(path.read_text())
        lowest = int(pathlib.Path("/proc/self/oom_score_adj").read_text())
        asked = config["process"].get("oomScoreAdj", 0)
        config["process"]["oomScoreAdj"] = max(asked, lowest)
        path.write_text(json.dumps(config))
    os.execv(runc, ["runc", *words])


if __name__ == "__main__":
    main()
