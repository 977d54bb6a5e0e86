#!/usr/bin/env python3
"""How often pods go to a node on which no GPU has room: with the sum over GPUs alone, with the label
gpushm.io/largest-free preferred, and with dynamic resource allocation, where the scheduler knows
each GPU. docs/design/placement.md has the results.

The model: the scheduler sees of a node its sum of free units, its number of pods and its label,
which is late. It chooses the node with the fewest pods among those it prefers. A pod that comes to
a node without room waits there, holds its units of the sum, and gets the first GPU with room. With
dynamic resource allocation it takes the first GPU of the node with room, as Kubernetes does, not the
one with the least.
"""

import argparse
import collections
import heapq
import itertools
import random
import statistics

GPUS, UNITS = 8, 79
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

    def first(self, need):
        return next((gpu for gpu in range(GPUS) if self.free[gpu] >= need), None)


class Cluster:
    def __init__(self, policy, load, late_s, pods, seed, nodes):
        self.random = random.Random(seed)
        self.policy, self.late_s, self.left = policy, late_s, pods
        self.nodes = [Node() for _ in range(nodes)]
        self.phase = [self.random.uniform(0, late_s) for _ in self.nodes]
        rate = load * nodes * GPUS * UNITS / (statistics.mean(SIZES) * LIFE_S)
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
        if self.policy == "dra":
            fits = [i for i, node in enumerate(self.nodes) if max(node.free) >= need]
        else:
            fits = [i for i, node in enumerate(self.nodes) if node.sum_free >= need]
        roomy = [i for i in fits if self.nodes[i].label >= need]
        if self.policy == "prefer" and roomy:
            fits = roomy
        if not fits:
            return False
        index = min(fits, key=lambda i: (self.nodes[i].pods, self.random.random()))
        node = self.nodes[index]
        gpu = node.first(need) if self.policy == "dra" else node.best(need)
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
        tried, left = set(), collections.deque()
        for pod in self.queue:
            # What has no place now has none for the next pod of its size.
            if pod[0] in tried or not self.place(pod):
                tried.add(pod[0])
                left.append(pod)
        self.queue = left

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
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--seed", type=int, default=24)
    parser.add_argument("--loads", type=float, nargs="+", default=[0.6, 0.7, 0.8, 0.9])
    given = parser.parse_args()
    print("| load | policy | label late by | wrong | of them avoidable | mean wait in lives | longest |")
    for load in given.loads:
        for policy, late_s in (("sum", 2), ("prefer", 2), ("prefer", 60), ("dra", 0)):
            done = Cluster(policy, load, late_s or 1, given.pods, given.seed, given.nodes).run()
            print(f"| {load:.0%} | {policy} | {late_s} s | {done.wrong} | {done.avoidable} | "
                  f"{statistics.mean(done.waits) / LIFE_S:.4f} | {max(done.waits) / LIFE_S:.2f} |", flush=True)


if __name__ == "__main__":
    main()
