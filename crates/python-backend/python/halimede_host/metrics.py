"""Metrics that a model makes for itself; the server's metrics service tells them."""

import enum
import json

from . import channel
from .arguments import text
from .channel import CallFailed
from .tensor import TritonModelException, failed


class MetricKind(enum.IntEnum):
    """What a metric counts."""

    COUNTER, GAUGE, HISTOGRAM = range(3)


def ask(failure, call, **arguments):
    """Asks the server to do something with a metric."""
    try:
        return channel.server().call("metric", metric_call=call, **arguments)["value"]
    except CallFailed as error:
        raise failed(failure, channel.server(), error) from None


def forget(number):
    """Tells the server that a metric or a family is not used any more."""
    if channel.is_forked():
        return  # they are the parent's
    try:
        channel.server().send("forget_metric", number=number)
    except OSError:
        pass  # the server is gone


def number_text(value):
    """A number as a text that also holds what JSON does not: infinities, and what is no number."""
    if isinstance(value, (str, bytes)):
        raise TypeError(f"a number is expected, found type {type(value)}")
    return repr(float(value))


class Metric:
    """One metric of a family, by its labels."""

    def __init__(self, number):
        self._number, self._is_cleared = number, False

    def increment(self, value):
        """Adds to a counter or a gauge."""
        self._do("Failed to increment metric value", "increment", by=number_text(value))

    def set(self, value):
        """Sets a gauge."""
        self._do("Failed to set metric value", "set", to=number_text(value))

    def observe(self, value):
        """Counts an observation in a histogram."""
        self._do("Failed to observe metric value", "observe", value=number_text(value))

    def value(self):
        """The value of a counter or a gauge."""
        return float(self._do("Failed to get metric value", "value"))

    def _do(self, failure, call, **arguments):
        if self._is_cleared:
            raise TritonModelException(
                f"{failure}: Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The "
                "'MetricFamily' object should be deleted AFTER its corresponding 'Metric' objects have been deleted."
            )
        return ask(failure, call, metric=self._number, **arguments)

    def _clear(self):
        if not self._is_cleared:
            self._is_cleared = True
            forget(self._number)


class MetricFamily:
    """Metrics of one name. They are there as long as the family is."""

    COUNTER, GAUGE, HISTOGRAM = MetricKind

    def __init__(self, name, description, kind):
        self._number = None
        if not isinstance(name, (str, bytes)) or not isinstance(description, (str, bytes)) or not isinstance(kind, MetricKind):
            raise TypeError("MetricFamily(name: str, description: str, kind: MetricKind)")
        name, description = text("name", name), text("description", description)
        self._kind, self._metrics = kind, []
        self._number = ask(
            "Error when creating MetricFamily", "new_family", name=name, description=description, kind=int(kind)
        )

    def Metric(self, labels=None, buckets=None):
        """The metric with these labels; a histogram has the upper bounds of its buckets."""
        if labels is not None and not isinstance(labels, dict):
            raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
        if buckets is None and self._kind == MetricKind.HISTOGRAM:
            raise TritonModelException("Failed to create metric. Missing required buckets.")
        if buckets is not None:
            if not isinstance(buckets, list):
                raise TritonModelException("Failed to create metric. Buckets must be a list.")
            if self._kind != MetricKind.HISTOGRAM:
                raise TritonModelException("Failed to create metric. Unexpected buckets found.")
            buckets = [number_text(bound) for bound in buckets]
        labels = json.loads(json.dumps(labels))
        number = ask("Error when creating Metric", "new_metric", family=self._number, labels=labels, bounds=buckets)
        self._metrics.append(Metric(number))
        return self._metrics[-1]

    def __del__(self):
        if self._number is not None:
            for metric in self._metrics:
                metric._clear()
            forget(self._number)
