"""deploy/examples/request-queue.yaml as processes: queue_test.py MANIFEST APP BROKER

Goal: killing a worker loses no request. Its request is delivered again, with a higher delivery count,
and no request is answered twice without one. Method: the real broker and application on the simulated
driver. One worker is killed while it works on a request, its successors at random moments.
"""

import random
import sys
import time

import programs

REQUESTS = 1500
KILLS = 5
SAYS = (r"requests: {asked} asked, {answered} answered, {again} delivered again, "
        r"\d+ answered twice, 0 wrong, 0 lost")


def main():
    with programs.example(*sys.argv[1:]) as start:
        gateway = start("gateway", "--requests", str(REQUESTS), "--per-second", "500")
        workers = [start("worker-a", "--busy-ms", "1000")]
        gateway.expect(SAYS.format(asked=r"\d+", answered=r"[1-9]\d*", again=0))
        workers[0].kill()  # It always holds a request, and answers one each second.
        gateway.expect("answers-a: its writer has gone")
        workers.append(start("worker-b", "--busy-ms", "1"))
        for _ in range(KILLS):
            killed = start("worker-a", "--busy-ms", "1")
            time.sleep(random.uniform(0.05, 0.3))
            killed.kill()
            workers.append(killed)
        workers.append(start("worker-a", "--busy-ms", "1"))
        gateway.expect(SAYS.format(asked=REQUESTS, answered=REQUESTS, again=r"[1-9]\d*"))
        gateway.expect_end(0)
        print(gateway.said[-1])
        workers[1].stop()
        workers[-1].stop()
        said = [line for each in workers for line in (*each.said, *each.lines.queue) if line]
        if not any("delivery 2" in line for line in said):
            sys.exit("FAILED: no worker reported a second delivery")
    print("ok")


if __name__ == "__main__":
    main()
