"""The name under which Triton's module in C is known; some models import it."""

from halimede_host.messages import MemoryType, ResponseIterator  # noqa: F401
from triton_python_backend_utils import (  # noqa: F401
    TRITONSERVER_MEMORY_CPU,
    TRITONSERVER_MEMORY_GPU,
    InferenceRequest,
    InferenceResponse,
    InferenceResponseSender,
    InferenceTrace,
    Logger,
    Metric,
    MetricFamily,
    MetricKind,
    PreferredMemory,
    Tensor,
    TritonError,
    TritonModelException,
    is_model_ready,
    load_model,
    unload_model,
)

COUNTER, GAUGE, HISTOGRAM = MetricKind
