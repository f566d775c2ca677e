"""Counters and histograms as plain numbers, shown to Prometheus at a scrape.

prometheus_client's own take a lock and several calls for each step, and a dozen steps belong to each exchange. These
are for one thread, the event loop's. Knows no names.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

Labels = tuple[str, ...]


class Count:
    """One cell of a counter."""

    __slots__ = ("created", "value")

    def __init__(self) -> None:
        self.value = 0
        self.created = time.time()


class Spread:
    """One cell of a histogram: how many observations lie in each bucket, the last one without bound, and their sum."""

    __slots__ = ("_bounds", "counts", "created", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.created = time.time()

    def observe(self, value: float) -> None:
        """Take an observation; a bound belongs to the bucket below it."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.sum += value


class Counts(Collector):
    """A counter with labels."""

    def __init__(self, name: str, documentation: str, labels: Sequence[str] = ()) -> None:
        self.name = name
        self._documentation = documentation
        self._labels = labels
        self.cells: dict[Labels, Count] = {}

    def cell(self, *labels: str) -> Count:
        """Return the cell of those labels, which is shown from now on."""
        found = self.cells.get(labels)
        if found is None:
            found = self.cells[labels] = Count()
        return found

    def collect(self) -> Iterable[CounterMetricFamily]:
        """Return what Prometheus is shown."""
        family = CounterMetricFamily(self.name, self._documentation, labels=self._labels)
        for labels, cell in self.cells.items():
            family.add_metric(labels, cell.value, created=cell.created)
        yield family


class Spreads(Collector):
    """A histogram with labels."""

    def __init__(self, name: str, documentation: str, bounds: Sequence[float], labels: Sequence[str] = ()) -> None:
        self.name = name
        self._documentation = documentation
        self._bounds = bounds
        self._shown = [*(str(float(bound)) for bound in bounds), "+Inf"]
        self._labels = labels
        self.cells: dict[Labels, Spread] = {}

    def cell(self, *labels: str) -> Spread:
        """Return the cell of those labels, which is shown from now on."""
        found = self.cells.get(labels)
        if found is None:
            found = self.cells[labels] = Spread(self._bounds)
        return found

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """Return what Prometheus is shown: buckets that hold all below them too."""
        family = HistogramMetricFamily(self.name, self._documentation, labels=self._labels)
        for labels, cell in self.cells.items():
            total, buckets = 0, []
            for shown, count in zip(self._shown, cell.counts, strict=True):
                total += count
                buckets.append((shown, float(total)))
            family.add_metric(labels, buckets, cell.sum)
        for labels, cell in self.cells.items():
            family.add_sample(f"{self.name}_created", dict(zip(self._labels, labels, strict=True)), cell.created)
        yield family
