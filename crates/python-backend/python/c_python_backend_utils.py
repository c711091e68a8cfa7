"""The name under which Triton's module in C is known; some models import it."""

from triton_python_backend_utils import (  # noqa: F401
    InferenceRequest,
    InferenceResponse,
    InferenceResponseSender,
    InferenceTrace,
    Logger,
    PreferredMemory,
    Tensor,
    TritonError,
    TritonModelException,
)
