"""Our `.proto` files against the descriptors inside the tritonclient and onnx wheels."""

import os
import shlex
import subprocess

import pytest
from google.protobuf import descriptor_pb2
from support.server import ROOT, binary

Field = descriptor_pb2.FieldDescriptorProto


@pytest.fixture(scope="module")
def ours():
    """Our files by name, compiled by the compiler of the build."""
    protos = sorted(str(path) for path in ROOT.glob("crates/*/proto/*.proto"))
    # `cargo test` has built it; for itself, cargo would compile all libraries again with other features.
    built = binary().parent / "examples" / "dump_descriptors"
    cargo = shlex.split(os.environ.get("CARGO", "cargo"))
    run = [built] if built.exists() else [*cargo, "run", "-q", "-p", "halimede-serving", "--example", built.name, "--"]
    done = subprocess.run([*run, *protos], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    files = descriptor_pb2.FileDescriptorSet.FromString(done.stdout).file
    return {file.name: file for file in files}


def published(module):
    return descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)


def field_facts(field, message):
    """Everything that decides how a field is written on the wire and in JSON."""
    oneof = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else None
    kind, label = Field.Type.Name(field.type), Field.Label.Name(field.label)
    return (field.number, kind, label, field.type_name, oneof, field.proto3_optional)


def facts(file):
    """A flat description of the file: one entry per field, enumeration value and method."""
    found = {}

    def add_enum(enum, scope):
        for value in enum.value:
            found[f"{scope}.{enum.name}.{value.name}"] = value.number

    def add_message(message, scope):
        name = f"{scope}.{message.name}"
        found[name] = "map entry" if message.options.map_entry else "message"
        for field in message.field:
            found[f"{name}.{field.name}"] = field_facts(field, message)
        for nested in message.nested_type:
            add_message(nested, name)
        for enum in message.enum_type:
            add_enum(enum, name)

    for message in file.message_type:
        add_message(message, f".{file.package}")
    for enum in file.enum_type:
        add_enum(enum, f".{file.package}")
    for service in file.service:
        for method in service.method:
            streams = (method.client_streaming, method.server_streaming)
            found[f".{file.package}.{service.name}.{method.name}"] = (method.input_type, method.output_type, streams)
    return found


def declaration_order(file):
    """The fields of each message in the order of the text, which is the order of keys in JSON."""
    return {message.name: [field.name for field in message.field] for message in file.message_type}


def test_model_config(ours):
    from tritonclient.grpc import model_config_pb2

    mine, theirs = ours["model_config.proto"], published(model_config_pb2)
    assert mine.syntax == theirs.syntax == "proto3"
    assert facts(mine) == facts(theirs)
    assert declaration_order(mine) == declaration_order(theirs)


def test_grpc_service(ours):
    from tritonclient.grpc import service_pb2

    if "grpc_service.proto" not in ours:
        pytest.fail("no crate has a proto/grpc_service.proto")
    mine, theirs = ours["grpc_service.proto"], published(service_pb2)
    assert mine.syntax == theirs.syntax == "proto3"
    assert facts(mine) == facts(theirs)


def test_onnx(ours):
    """ONNX's schema is a subset: what is there has to be equal, what is never read may be missing."""
    import onnx
    from onnx import onnx_ml_pb2

    if "onnx.proto" not in ours:
        pytest.fail("no crate has a proto/onnx.proto")
    mine, theirs = facts(ours["onnx.proto"]), facts(published(onnx_ml_pb2))
    different = {name: (fact, theirs[name]) for name, fact in mine.items() if name in theirs and theirs[name] != fact}
    assert not different
    # The wheel may be older than what we read, never the other way round.
    ir_version_read = 14
    unknown = sorted(set(mine) - set(theirs))
    assert onnx.IR_VERSION < ir_version_read or not unknown, unknown
    assert ".onnx.ModelProto.graph" in mine
