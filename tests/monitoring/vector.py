"""Instant vectors computed from a load: {labels: value}, as Prometheus would answer."""

import copy
import math


def key(labels):
    return frozenset((k, v) for k, v in labels.items() if v and k != "__name__")


class View:
    """A load at one time, restricted to what a dashboard's variables select."""

    def __init__(self, load, now, extra, selected=None, window=12):
        self.now, self.window = now, window
        self.seconds = now - load.start
        every = [(s, {**extra[s.job, s.instance], **s.labels}) for s in load.samples]

        def chosen(labels, but=()):
            return all(labels.get(k, "") == v for k, v in (selected or {}).items() if k not in but)
        self.samples = [(s, labels) for s, labels in every if chosen(labels)]
        # What pods have once is with their first GPU. It counts if the pod has any selected one.
        self.pods = {self.pod(labels) for s, labels in self.samples
                     if s.name == "gpushm_pool_size_bytes"}
        self.of_pods = [(s, labels) for s, labels in every
                        if self.pod(labels) in self.pods and chosen(labels, but=("gpu_uuid",))]

    @staticmethod
    def pod(labels):
        return tuple(labels.get(k, "") for k in ("instance", "namespace", "pod"))

    def once(self):
        """The same view, for what pods have once."""
        view = copy.copy(self)
        view.samples = self.of_pods
        return view

    def vector(self, name, value, where):
        return {key(labels): value(sample) for sample, labels in self.samples
                if sample.name == name and all(test(labels.get(k, "")) if callable(test)
                                               else labels.get(k, "") == test
                                               for k, test in where.items())}

    def each(self, name, **where):
        return self.vector(name, lambda sample: sample.at(self.seconds), where)

    def rate(self, name, **where):
        return self.vector(name, lambda sample: sample.rate, where)

    def increase(self, name, **where):
        return self.vector(name, lambda sample: sample.rate * self.window, where)

    def sum(self, name, *by, **where):
        return total(self.each(name, **where), *by)

    def sum_rate(self, name, *by, **where):
        return total(self.rate(name, **where), *by)

    def quantile(self, q, name, *by, **where):
        """Like histogram_quantile, from the buckets' rates."""
        groups = {}
        for labels, rate in total(self.rate(name + "_bucket", **where), "le", *by).items():
            rest = frozenset(pair for pair in labels if pair[0] != "le")
            groups.setdefault(rest, []).append((float(dict(labels)["le"]), rate))
        return {labels: quantile(q, sorted(buckets)) for labels, buckets in groups.items()}


def quantile(q, buckets):
    count = buckets[-1][1]
    if not count:
        return math.nan
    rank, below, start = q * count, 0.0, 0.0
    for bound, cumulated in buckets:
        if cumulated >= rank:
            if math.isinf(bound):
                return start
            return start + (bound - start) * (rank - below) / (cumulated - below)
        below, start = cumulated, bound
    return start


def fold(function, vector, by):
    groups = {}
    for labels, value in vector.items():
        groups.setdefault(frozenset(pair for pair in labels if pair[0] in by), []).append(value)
    return {labels: function(values) for labels, values in groups.items()}


def total(vector, *by):
    return fold(math.fsum, vector, by)


def count(vector, *by):
    return fold(len, vector, by)


def largest(vector, *by):
    return fold(max, vector, by)


def smallest(vector, *by):
    return fold(min, vector, by)


def mean(vector, *by):
    return fold(lambda values: math.fsum(values) / len(values), vector, by)


def quotient(a, b):
    """Divides like PromQL: 0 / 0 is NaN, anything else / 0 is infinite."""
    if b:
        return a / b
    return math.copysign(math.inf, a) if a else math.nan


def ratio(a, b):
    return {labels: quotient(a[labels], b[labels]) for labels in a.keys() & b.keys()}


def plus(a, b):
    return {labels: a[labels] + b[labels] for labels in a.keys() & b.keys()}


def minus(a, b):
    return {labels: a[labels] - b[labels] for labels in a.keys() & b.keys()}


def map_values(function, vector):
    return {labels: function(value) for labels, value in vector.items()}


def zeros(vector):
    """Elements that are 0: `== 0`."""
    return {labels: value for labels, value in vector.items() if value == 0}


def or_zero(vector):
    return vector or {frozenset(): 0.0}


def differences(expected, got, *, relative=0.02, absolute=1e-9):
    """What is wrong, as text; `got` is a list of (labels, value)."""
    answer = {key(labels): value for labels, value in got}
    wrong = [f"missing {dict(labels)}" for labels in expected.keys() - answer.keys()]
    wrong += [f"unexpected {dict(labels)} {answer[labels]}" for labels in
              answer.keys() - expected.keys()]
    for labels in expected.keys() & answer.keys():
        a, b = expected[labels], answer[labels]
        if not (math.isnan(a) and math.isnan(b)) and not math.isclose(
                a, b, rel_tol=relative, abs_tol=absolute):
            wrong.append(f"{dict(labels)} is {b}, should be {a}")
    return wrong
