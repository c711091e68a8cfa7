"""NVIDIA's client library, all four flavours, over the same calls."""

import asyncio
import queue

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpcaio
import tritonclient.http as httpclient
import tritonclient.http.aio as httpaio
from tritonclient.utils import InferenceServerException

A = np.arange(16, dtype=np.int32)[None]
B = np.ones((1, 16), np.int32)


def simple_inputs(library, binary=True):
    inputs = []
    for name, array in (("INPUT0", A), ("INPUT1", B)):
        tensor = library.InferInput(name, [1, 16], "INT32")
        if library is httpclient:
            tensor.set_data_from_numpy(array, binary_data=binary)
        else:
            tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    return inputs


def check_simple(result):
    assert result.as_numpy("OUTPUT0").tolist() == (A + B).tolist()
    assert result.as_numpy("OUTPUT1").tolist() == (A - B).tolist()


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_http(server, binary_in, binary_out):
    with httpclient.InferenceServerClient(server.http_address) as client:
        outputs = [httpclient.InferRequestedOutput(f"OUTPUT{i}", binary_data=binary_out) for i in range(2)]
        check_simple(client.infer("simple", simple_inputs(httpclient, binary_in), outputs=outputs, request_id="7"))


@pytest.mark.parametrize("request_algorithm", [None, "gzip", "deflate"])
@pytest.mark.parametrize("response_algorithm", [None, "gzip", "deflate"])
def test_http_compressed(server, request_algorithm, response_algorithm):
    with httpclient.InferenceServerClient(server.http_address) as client:
        check_simple(client.infer("simple", simple_inputs(httpclient),
                                  request_compression_algorithm=request_algorithm,
                                  response_compression_algorithm=response_algorithm))  # fmt: skip


def test_http_async(server):
    with httpclient.InferenceServerClient(server.http_address, concurrency=4) as client:
        waiting = [client.async_infer("simple", simple_inputs(httpclient)) for _ in range(8)]
        for one in waiting:
            check_simple(one.get_result())


def test_http_generated_bodies(server):
    inputs = simple_inputs(httpclient)
    body, header = httpclient.InferenceServerClient.generate_request_body(inputs)
    headers = {"Inference-Header-Content-Length": str(header)}
    reply = server.http.post("/v2/models/simple/infer", body, headers)
    size = reply.headers.get("inference-header-content-length")
    parse = httpclient.InferenceServerClient.parse_response_body
    check_simple(parse(reply.body, header_length=int(size) if size else None))


@pytest.mark.parametrize("algorithm", [None, "gzip", "deflate"])
def test_grpc(server, algorithm):
    with grpcclient.InferenceServerClient(server.grpc_address) as client:
        check_simple(client.infer("simple", simple_inputs(grpcclient), compression_algorithm=algorithm))


def test_grpc_async(server):
    answers = queue.Queue()
    with grpcclient.InferenceServerClient(server.grpc_address) as client:
        for _ in range(8):
            client.async_infer("simple", simple_inputs(grpcclient), lambda result, error: answers.put((result, error)))
        for _ in range(8):
            result, error = answers.get(timeout=20)
            assert error is None
            check_simple(result)


def test_grpc_stream(server):
    answers = queue.Queue()
    with grpcclient.InferenceServerClient(server.grpc_address) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for i in range(8):
            client.async_stream_infer("simple", simple_inputs(grpcclient), request_id=str(i))
        for i in range(8):
            result, error = answers.get(timeout=20)
            assert error is None
            check_simple(result)
            assert result.get_response().id == str(i)
        client.stop_stream()


def test_http_aio(server):
    async def run():
        async with httpaio.InferenceServerClient(server.http_address) as client:
            assert await client.is_server_ready()
            results = await asyncio.gather(*[client.infer("simple", simple_inputs(httpclient)) for _ in range(8)])
            for result in results:
                check_simple(result)

    asyncio.run(run())


def test_grpc_aio(server):
    async def run():
        async with grpcaio.InferenceServerClient(server.grpc_address) as client:
            assert await client.is_model_ready("simple")
            results = await asyncio.gather(*[client.infer("simple", simple_inputs(grpcclient)) for _ in range(8)])
            for result in results:
                check_simple(result)

            async def requests():
                for i in range(4):
                    yield {"model_name": "simple", "inputs": simple_inputs(grpcclient), "request_id": str(i)}

            seen = []
            async for result, error in client.stream_infer(requests()):
                assert error is None
                check_simple(result)
                seen.append(result.get_response().id)
            assert seen == ["0", "1", "2", "3"]

    asyncio.run(run())


@pytest.fixture(params=["http", "grpc"])
def client(request, server):
    library = {"http": httpclient, "grpc": grpcclient}[request.param]
    with library.InferenceServerClient(getattr(server, f"{request.param}_address")) as one:
        one.library = library
        yield one


def test_everything_else_a_client_asks(client):
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("simple")
    options = {"as_json": True} if client.library is grpcclient else {}
    assert client.get_server_metadata(**options)["name"] == "triton"
    assert client.get_model_metadata("simple", **options)["name"] == "simple"
    assert client.get_model_config("simple", **options)
    assert client.get_model_repository_index(**options)
    assert client.get_inference_statistics("simple", **options)["model_stats"][0]["name"] == "simple"
    assert client.get_log_settings(**options)
    assert client.get_system_shared_memory_status(**options) is not None
    assert client.get_cuda_shared_memory_status(**options) is not None


def test_reused_inputs(client):
    inputs = simple_inputs(client.library)
    for _ in range(3):
        check_simple(client.infer("simple", inputs))


def test_batch_of_eight(client):
    inputs = []
    for name, array in (("INPUT0", A), ("INPUT1", B)):
        tensor = client.library.InferInput(name, [8, 16], "INT32")
        tensor.set_data_from_numpy(np.repeat(array, 8, 0))
        inputs.append(tensor)
    assert client.infer("simple", inputs).as_numpy("OUTPUT0").shape == (8, 16)


def test_ensemble(client):
    inputs = simple_inputs(client.library)
    for tensor, name in zip(inputs, "AB"):
        tensor._name = name
        if client.library is grpcclient:
            tensor._input.name = name
    assert client.infer("twice", inputs).as_numpy("DOUBLE_A").tolist() == (2 * A).tolist()


def test_classification(client):
    tensor = client.library.InferInput("INPUT0", [2, 4], "FP32")
    tensor.set_data_from_numpy(np.array([[1, 5, 3, 4], [9, 0, 0, 0]], np.float32))
    output = client.library.InferRequestedOutput("OUTPUT0", class_count=2)
    found = client.infer("classes", [tensor], outputs=[output]).as_numpy("OUTPUT0")
    assert found.tolist() == [[b"5.000000:1:bee", b"4.000000:3"], [b"9.000000:0:ant", b"0.000000:1:bee"]]


def test_error_reaches_the_caller(client):
    with pytest.raises(InferenceServerException) as error:
        client.infer("simple", simple_inputs(client.library)[:1])
    assert "missing required input(s) ['INPUT1']" in error.value.message()


def test_client_timeout(client):
    tensor = client.library.InferInput("INPUT0", [1], "FP32")
    tensor.set_data_from_numpy(np.zeros(1, np.float32))
    if client.library is grpcclient:
        # Behind ten others, three seconds, no answer comes before the deadline, however busy the machine.
        others = [client.async_infer("slow", [tensor], lambda result, error: None) for _ in range(10)]
        with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
            client.infer("slow", [tensor], client_timeout=0.1)
        for call in others:
            call.cancel()
    assert client.infer("slow", [tensor]).as_numpy("OUTPUT0").tolist() == [0]
