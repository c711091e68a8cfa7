"""System shared memory through the client library's own helpers, over both protocols."""

import os

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

SIZE = 4 * 4
PAGE = 16384
# Names of regions hold for the whole machine, on which others may run these tests too.
KEY = f"/halimede_test_{os.getpid()}"


@pytest.fixture(params=["http", "grpc"])
def kit(request, server):
    """The client library and a client of one protocol."""
    library = {"http": httpclient, "grpc": grpcclient}[request.param]
    with library.InferenceServerClient(getattr(server, f"{request.param}_address")) as client:
        client.unregister_system_shared_memory()
        yield library, client
        client.unregister_system_shared_memory()


@pytest.fixture
def region():
    """Two pages; two inputs and two outputs of `add_sub` need 64 bytes."""
    handle = shm.create_shared_memory_region("test", KEY, 2 * PAGE)
    yield handle
    shm.destroy_shared_memory_region(handle)


def regions(client):
    status = client.get_system_shared_memory_status()
    if isinstance(status, list):
        return {r["name"]: (r["key"], r["offset"], r["byte_size"]) for r in status}
    return {r.name: (r.key, r.offset, r.byte_size) for r in status.regions.values()}


def test_inputs_and_outputs_in_a_region(kit, region):
    library, client = kit
    a, b = np.array([1, 2, 3, 4], np.float32), np.array([10, 20, 30, 40], np.float32)
    shm.set_shared_memory_region(region, [a, b])
    client.register_system_shared_memory("test", KEY, 4 * SIZE)
    inputs = [library.InferInput(f"INPUT{i}", [4], "FP32") for i in range(2)]
    outputs = [library.InferRequestedOutput(f"OUTPUT{i}") for i in range(2)]
    for i in range(2):
        inputs[i].set_shared_memory("test", SIZE, i * SIZE)
        outputs[i].set_shared_memory("test", SIZE, (2 + i) * SIZE)
    result = client.infer("add_sub", inputs, outputs=outputs)
    assert "OUTPUT0" in str(result.get_response())
    assert shm.get_contents_as_numpy(region, np.float32, [4], 2 * SIZE).tolist() == (a + b).tolist()
    assert shm.get_contents_as_numpy(region, np.float32, [4], 3 * SIZE).tolist() == (a - b).tolist()


def test_only_the_inputs_in_a_region(kit, region):
    library, client = kit
    a = np.array([1, 2, 3, 4], np.float32)
    shm.set_shared_memory_region(region, [a])
    client.register_system_shared_memory("test", KEY, 4 * SIZE)
    inputs = [library.InferInput(f"INPUT{i}", [4], "FP32") for i in range(2)]
    inputs[0].set_shared_memory("test", SIZE)
    inputs[1].set_data_from_numpy(a)
    assert client.infer("add_sub", inputs).as_numpy("OUTPUT0").tolist() == (a + a).tolist()


def test_bytes_in_a_region(kit):
    library, client = kit
    words = np.array([[b"ab", b"", b"x\0y"]], dtype=object)
    size = 3 * 4 + 5
    handle = shm.create_shared_memory_region("words", f"{KEY}_words", 2 * size)
    try:
        shm.set_shared_memory_region(handle, [serialize_byte_tensor(words)])
        client.register_system_shared_memory("words", f"{KEY}_words", 2 * size)
        source, target = library.InferInput("INPUT0", [1, 3], "BYTES"), library.InferRequestedOutput("OUTPUT0")
        source.set_shared_memory("words", size)
        target.set_shared_memory("words", size, size)
        client.infer("text", [source], outputs=[target])
        got = shm.get_contents_as_numpy(handle, np.object_, [1, 3], size)
        assert got.tolist() == words.tolist()
    finally:
        client.unregister_system_shared_memory("words")
        shm.destroy_shared_memory_region(handle)


@pytest.fixture
def other_region():
    handle = shm.create_shared_memory_region("other", KEY + "_other", 2 * PAGE)
    yield KEY + "_other"
    shm.destroy_shared_memory_region(handle)


def test_status_and_unregister(kit, region, other_region):
    _, client = kit
    client.register_system_shared_memory("one", KEY, SIZE)
    client.register_system_shared_memory("two", other_region, SIZE, offset=PAGE)
    assert regions(client) == {"one": (KEY, 0, SIZE), "two": (other_region, PAGE, SIZE)}
    client.unregister_system_shared_memory("one")
    assert list(regions(client)) == ["two"]
    client.unregister_system_shared_memory("one")
    client.unregister_system_shared_memory()
    assert regions(client) == {}


@pytest.mark.halimede_only("2.51.0 closes the object that the second registration needs; mended in later versions")
def test_one_object_under_two_names(kit, region):
    _, client = kit
    client.register_system_shared_memory("one", KEY, SIZE)
    client.register_system_shared_memory("two", KEY, SIZE, offset=PAGE)
    assert regions(client) == {"one": (KEY, 0, SIZE), "two": (KEY, PAGE, SIZE)}


def fails(call, *arguments, **options):
    with pytest.raises(InferenceServerException) as error:
        call(*arguments, **options)
    return error.value.message()


def test_name_taken(kit, region):
    _, client = kit
    client.register_system_shared_memory("test", KEY, SIZE)
    text = fails(client.register_system_shared_memory, "test", KEY, SIZE)
    assert text == "shared memory region 'test' already in manager"


def test_region_beyond_the_object(kit, region):
    _, client = kit
    text = fails(client.register_system_shared_memory, "test", KEY, 10 * PAGE)
    assert text.startswith("failed to register shared memory region 'test': invalid args"), text


def test_tensor_beyond_the_region(kit, region):
    library, client = kit
    client.register_system_shared_memory("test", KEY, 2 * SIZE)
    source = library.InferInput("INPUT0", [4], "FP32")
    source.set_shared_memory("test", SIZE, 100)
    other = library.InferInput("INPUT1", [4], "FP32")
    other.set_shared_memory("test", SIZE)
    text = fails(client.infer, "add_sub", [source, other])
    assert "Invalid offset" in text, text


def test_output_larger_than_its_place(kit, region):
    library, client = kit
    client.register_system_shared_memory("test", KEY, 4 * SIZE)
    inputs = [library.InferInput(f"INPUT{i}", [4], "FP32") for i in range(2)]
    for one in inputs:
        one.set_shared_memory("test", SIZE)
    target = library.InferRequestedOutput("OUTPUT0")
    target.set_shared_memory("test", 8)
    text = fails(client.infer, "add_sub", inputs, outputs=[target])
    assert "shared memory size specified with the request for output 'OUTPUT0' (8 bytes) should be at least 16 bytes" in text


@pytest.mark.halimede_only("2.51.0 has no such flag")
def test_flag_is_accepted(serve, repository):
    from support import models

    repository.add("add_sub", models.add_sub(1, [4]))
    server = serve(repository, "--allow-client-shm=true")
    assert server.http.get("/v2/systemsharedmemory/status").json == []
