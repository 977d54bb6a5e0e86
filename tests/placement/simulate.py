#!/usr/bin/env python3
"""How often pods go to a node on which no GPU has room: with the sum over GPUs alone, and with the
label gpushm.io/largest-free preferred or required. docs/design/placement.md has the results.

The model: the scheduler sees of a node its sum of free units, its number of pods and its label,
which is late. It chooses the node with the fewest pods among those it prefers. A pod that comes to
a node without room waits there, holds its units of the sum, and gets the first GPU with room.
"""

import argparse
import collections
import heapq
import itertools
import random
import statistics

NODES, GPUS, UNITS = 16, 8, 79
SIZES = [4, 8, 12, 16, 24, 32, 48, 64]
LIFE_S = 600


class Node:
    def __init__(self):
        self.free = [UNITS] * GPUS
        self.sum_free = GPUS * UNITS
        self.pods = 0
        self.label = UNITS
        self.label_due = False
        self.waiting = collections.deque()

    def best(self, need):
        fits = [gpu for gpu in range(GPUS) if self.free[gpu] >= need]
        return min(fits, key=lambda gpu: self.free[gpu], default=None)


class Cluster:
    def __init__(self, policy, load, late_s, pods, seed):
        self.random = random.Random(seed)
        self.policy, self.late_s, self.left = policy, late_s, pods
        self.nodes = [Node() for _ in range(NODES)]
        self.phase = [self.random.uniform(0, late_s) for _ in self.nodes]
        rate = load * NODES * GPUS * UNITS / (statistics.mean(SIZES) * LIFE_S)
        self.between_s = 1 / rate
        self.events, self.order = [], itertools.count()
        self.queue = collections.deque()
        self.wrong = self.avoidable = 0
        self.waits = []
        self.now = 0.0

    def at(self, time, what, *rest):
        heapq.heappush(self.events, (time, next(self.order), what, rest))

    def changed(self, index):
        node = self.nodes[index]
        if node.label_due:
            return
        node.label_due = True
        passed = (self.now - self.phase[index]) // self.late_s
        self.at(self.phase[index] + (passed + 1) * self.late_s, self.label, index)

    def label(self, index):
        node = self.nodes[index]
        node.label_due = False
        node.label = max(node.free)
        self.schedule()

    def start(self, index, gpu, pod):
        need, created = pod
        self.nodes[index].free[gpu] -= need
        self.waits.append(self.now - created)
        self.at(self.now + self.random.expovariate(1 / LIFE_S), self.end, index, gpu, need)
        self.changed(index)

    def end(self, index, gpu, need):
        node = self.nodes[index]
        node.free[gpu] += need
        node.sum_free += need
        node.pods -= 1
        self.changed(index)
        for pod in list(node.waiting):
            room = node.best(pod[0])
            if room is not None:
                node.waiting.remove(pod)
                self.start(index, room, pod)
        self.schedule()

    def place(self, pod):
        need = pod[0]
        fits = [i for i, node in enumerate(self.nodes) if node.sum_free >= need]
        roomy = [i for i in fits if self.nodes[i].label >= need]
        if self.policy == "require" or self.policy == "prefer" and roomy:
            fits = roomy
        if not fits:
            return False
        index = min(fits, key=lambda i: (self.nodes[i].pods, self.random.random()))
        node = self.nodes[index]
        gpu = node.best(need)
        node.sum_free -= need
        node.pods += 1
        if gpu is not None:
            self.start(index, gpu, pod)
            return True
        self.wrong += 1
        self.avoidable += any(other.best(need) is not None and other.sum_free >= need
                              for other in self.nodes)
        node.waiting.append(pod)
        return True

    def schedule(self):
        self.queue = collections.deque(pod for pod in self.queue if not self.place(pod))

    def arrive(self):
        pod = (self.random.choice(SIZES), self.now)
        if not self.place(pod):
            self.queue.append(pod)
        self.left -= 1
        if self.left > 0:
            self.at(self.now + self.random.expovariate(1 / self.between_s), self.arrive)

    def run(self):
        self.at(0, self.arrive)
        while self.events:
            self.now, _, what, rest = heapq.heappop(self.events)
            what(*rest)
        return self


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pods", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=24)
    given = parser.parse_args()
    print("| load | policy | label late by | wrong | of them avoidable | mean wait in lives |")
    for load in (0.6, 0.7, 0.8, 0.9):
        for policy, late_s in (("sum", 2), ("prefer", 2), ("prefer", 60),
                               ("require", 2), ("require", 60)):
            done = Cluster(policy, load, late_s, given.pods, given.seed).run()
            print(f"| {load:.0%} | {policy} | {late_s} s | {done.wrong} | {done.avoidable} | "
                  f"{statistics.mean(done.waits) / LIFE_S:.4f} |", flush=True)


if __name__ == "__main__":
    main()
