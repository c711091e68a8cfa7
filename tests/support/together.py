"""Requests that arrive one after the other and wait for each other in a batch."""

import queue

import tritonclient.grpc as triton
from tritonclient.utils import np_to_triton_dtype

# A scheduler that runs a batch that is full, or that the next request does not fit to, and no other within a test.
WAIT = "dynamic_batching { max_queue_delay_microseconds: 100000000 }\n"
PATIENCE_S = 60


def tensors(arrays):
    """Arrays by name as inputs of a request."""
    inputs = []
    for name, array in arrays.items():
        inputs.append(triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
        inputs[-1].set_data_from_numpy(array)
    return inputs


def together(server, model, requests):
    """Pairs of result and error of requests that arrive in this order, without waiting for answers; in that order, as
    long as none is an error."""
    answers = queue.Queue()
    with triton.InferenceServerClient(server.grpc_address) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for number, arrays in enumerate(requests):
            client.async_stream_infer(model, tensors(arrays), request_id=str(number))
        found = [answers.get(timeout=PATIENCE_S) for _ in requests]
        client.stop_stream()
    if all(error is None for _, error in found):
        found.sort(key=lambda answer: int(answer[0].get_response().id))
    return found


def outputs(server, model, requests, name):
    """The output `name` of requests that arrive in this order."""
    found = together(server, model, requests)
    assert all(error is None for _, error in found), found
    return [result.as_numpy(name) for result, _ in found]


def executions(server, model):
    """How often a model ran, and for how many inferences."""
    (stats,) = server.http.get(f"/v2/models/{model}/stats").json["model_stats"]
    return stats["execution_count"], stats["inference_count"]
