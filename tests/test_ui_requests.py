"""The form of the page at /ui that sends a request to a model."""

import json
import struct
import zlib
from urllib.parse import quote

import numpy as np
import pytest
from onnx import TensorProto, helper

from support import models, python_models
from support.browser import answer_of, fill

pytestmark = pytest.mark.halimede_only("a page of ours")

FP32 = TensorProto.FLOAT


def open_form(browser, server, name):
    browser.open(server, "/ui/#/models/" + quote(json.dumps(["", name, 1], separators=(",", ":"), ensure_ascii=False), safe=""))
    browser.one("#content form button.main")


def tick(browser, label):
    """Ticks the box with that label."""
    script = "[...document.querySelectorAll('label')].find((l) => l.innerText.includes(arguments[0])).querySelector('input').click()"
    browser.run(script, label)


def picture_of(pixels):
    """A PNG of grey pixels."""
    height, width = pixels.shape
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))  # noqa: E731
    lines = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


def test_a_request_is_sent(examples, browser, tmp_path):
    path = "/ui/#/models/" + "%5B%22%22%2C%22identity_int32%22%2C1%5D"
    browser.open(examples, path)
    shape = "fieldset input"
    browser.one(shape)
    fill(browser, shape, "2, 3")
    fill(browser, "fieldset textarea", "1 2 3, -4 5 6")
    assert answer_of(browser) == ["1, 2, 3, -4, 5, 6"]
    fill(browser, "fieldset textarea", "9")
    assert answer_of(browser)[-1].endswith("9, 9, 9, 9, 9, 9")
    fill(browser, "fieldset textarea", "1 2")
    browser.one("#content form button.main").click()
    browser.wait_text("2 elements, but its shape holds 6", ".error")
    for wrong in ["99999999999", "0.5", "many", "[true]"]:
        fill(browser, "fieldset textarea", wrong)
        browser.one("#content form button.main").click()
        browser.wait_text("is no INT32", ".error")

    pixels = np.arange(64, dtype=np.uint8).reshape(8, 8) * 3
    (tmp_path / "digit.png").write_bytes(picture_of(pixels))
    browser.open(examples, "/ui/#/models/" + "%5B%22%22%2C%22digits_preprocess%22%2C1%5D")
    # What the server refuses is said in its words.
    fill(browser, shape, "1, 8, 9")
    browser.one("#content form button.main").click()
    browser.wait_text("unexpected shape for input 'pixels'", ".error")
    fill(browser, shape, "1, 8, 8")
    browser.one("input[type=file]").send_keys(str(tmp_path / "digit.png"))
    shown = answer_of(browser)[0]
    data = {"name": "pixels", "shape": [1, 8, 8], "datatype": "UINT8", "data": pixels.ravel().tolist()}
    expected = examples.http.infer("digits_preprocess", {"inputs": [data]}).json["outputs"][0]["data"]
    np.testing.assert_allclose([float(word) for word in shown.split(",")], expected, atol=0.08)



# A datatype, what is written, and what is shown: no number passes through JSON.
ELEMENTS = [
    ("INT64", "9007199254740993 -9223372036854775808 [9223372036854775807]", "9007199254740993, -9223372036854775808, 9223372036854775807"),
    ("UINT64", "18446744073709551615, 9007199254740993, 0", "18446744073709551615, 9007199254740993, 0"),
    ("INT8", "-128 127 1e1", "-128, 127, 10"),
    ("BOOL", "True FALSE 1", "true, false, true"),
    ("FP16", "0.1 65504 -inf", "0.1, 65504, -Infinity"),
    ("BF16", "0.1 nan 2e-40", "0.1, NaN, 2e-40"),
    ("FP32", "NaN 0.1 Infinity", "NaN, 0.1, Infinity"),
    ("FP64", "0.1 5e-324 -0", "0.1, 5e-324, -0"),
]
REFUSED = [
    ("INT64", "9223372036854775808"), ("INT64", "9007199254740993.5"), ("UINT64", "-1"), ("UINT8", "256"), ("BOOL", "yes"),
    ("BOOL", "constructor"), ("FP16", "65520"), ("BF16", "3.4e38"), ("FP32", "1e39"), ("FP64", "1e400"), ("FP64", "one"),
]  # fmt: skip


def test_every_datatype_keeps_its_values(examples, browser):
    for datatype, text, expected in ELEMENTS:
        open_form(browser, examples, f"identity_{datatype.lower()}")
        fill(browser, "fieldset input", "1, 3")
        fill(browser, "fieldset textarea", text)
        assert answer_of(browser) == [expected], datatype
    for datatype, text in REFUSED:
        open_form(browser, examples, f"identity_{datatype.lower()}")
        fill(browser, "fieldset textarea", text)
        assert f"'{text}' is no {datatype}" in answer_of(browser)[0]


def test_narrow_floats_are_rounded_as_numpy_does(examples, browser):
    random = np.random.default_rng(7)
    values = np.concatenate([random.standard_normal(300) * scale for scale in (1e-7, 1e-3, 1.0, 1e4)] + [np.arange(2040, 2060) + 0.5])
    browser.open(examples)
    script = """const [values, datatype, done] = arguments;
        import("./tensors.js").then(({ encode }) => done([...new Uint16Array(encode(values, datatype, values.length).buffer)]))"""
    browser.driver.set_script_timeout(30)
    bits = lambda datatype: np.array(browser.driver.execute_async_script(script, values.tolist(), datatype), np.uint16)  # noqa: E731
    np.testing.assert_array_equal(bits("FP16"), values.astype(np.float16).view(np.uint16))
    # The nearest one is at most half a step away.
    brain = (bits("BF16").astype(np.uint32) << 16).view(np.float32)
    assert (np.abs(brain - values) <= np.abs(values) * 2.0**-8).all()


def test_texts_are_sent_as_they_are(examples, browser):
    open_form(browser, examples, "identity_bytes")
    for text in ["[INST] hi", '["a"]', "a, b", "é\nü"]:
        fill(browser, "fieldset textarea", text)
        assert answer_of(browser) == [text]
    fill(browser, "fieldset textarea", "")
    assert answer_of(browser) == [""]
    fill(browser, "fieldset input", "1, 2")
    fill(browser, "fieldset textarea", "[one]\ntwo\n")
    assert answer_of(browser) == ["[one]\ntwo"]
    tick(browser, "it is JSON")
    fill(browser, "fieldset textarea", '["line\\nline", [""]]')
    assert answer_of(browser) == ["line\nline"]
    for text, said in [("[1, 2]", "1 is no string"), ("[INST] hi", "is no JSON")]:
        fill(browser, "fieldset textarea", text)
        assert said in answer_of(browser)[0]


NAMES = """
class TritonPythonModel:
    def execute(self, requests):
        names = [np.array([tensor.name().encode() for tensor in request.inputs()], dtype=object) for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]) for array in names]
"""


def test_an_optional_input_can_be_left_out(repository, serve, browser):
    inputs = models.io("input", "A", "FP32", [-1]) + models.io("input", "B", "FP32", [-1], "optional: true")
    config = 'backend: "python"\n' + python_models.CPU + inputs + models.io("output", "OUT", "BYTES".replace("BYTES", "STRING"), [-1])
    server = serve(python_models.add(repository, "names", NAMES, config), python_models.INTERPRETER)
    open_form(browser, server, "names")
    assert answer_of(browser) == ["A\nB"]
    tick(browser, "leave it out")
    assert answer_of(browser) == ["A"]
    assert len(browser.find("fieldset input[type=checkbox]")) == 1, "A must be there"


def test_sequences_have_numbers_of_64_bits_or_texts(repository, serve, browser):
    config = (
        'backend: "python"\nmax_batch_size: 1\n' + models.io("input", "A", "FP32", [1]) + models.io("output", "OUT", "STRING", [1])
        + "sequence_batching { }\n" + python_models.CPU
    )  # fmt: skip
    code = """
class TritonPythonModel:
    def execute(self, requests):
        said = [np.array([[repr(request.correlation_id()).encode()]], dtype=object) for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]) for array in said]
"""
    server = serve(python_models.add(repository, "who", code, config), python_models.INTERPRETER)
    open_form(browser, server, "who")
    for text, expected in [("18446744073709551615", "18446744073709551615"), ("9007199254740993", "9007199254740993"), ("a b", "'a b'")]:
        fill(browser, "[name=sequence]", text)
        assert answer_of(browser) == [expected]


def test_a_form_follows_its_model(repository, serve, browser):
    repository.add("m", models.identity(FP32, ["n", 2]))
    server = serve(repository, "--model-control-mode=explicit", "--load-model=m")
    open_form(browser, server, "m")
    fill(browser, "fieldset textarea", "5")
    # What is written stays when the same model is loaded again.
    assert server.http.post("/v2/repository/models/m/load", b"{}").status == 200
    browser.run("window.before = document.querySelector('#content form'); window.looks = performance.getEntriesByName(new URL('state', location)).length")
    looks = "return performance.getEntriesByName(new URL('state', location)).length > window.looks + 2"
    browser.wait(lambda: browser.run(looks), "no look")
    assert browser.run("return document.querySelector('#content form') === window.before && document.querySelector('fieldset textarea').value") == "5"
    repository.add("m", models.add_sub(TensorProto.INT32, ["n", 4]))
    assert server.http.post("/v2/repository/models/m/load", b"{}").status == 200
    browser.wait(lambda: len(browser.find("fieldset textarea")) == 2, "the inputs of before")
    assert answer_of(browser) == ["0, 0, 0, 0"] * 2


def test_an_image_brings_its_size(repository, serve, browser, tmp_path):
    node = helper.make_node("Shape", ["x"], ["y"])
    for name, shape in [("first", ["b", 3, "h", "w"]), ("last", [1, "h", "w", 3]), ("fixed", [1, 3, 4, 5])]:
        info = models.info("x", FP32, shape), models.info("y", TensorProto.INT64, [4])
        repository.add(name, models.onnx_model([node], info[:1], info[1:]), "max_batch_size: 0")
    server = serve(repository)
    (tmp_path / "wide.png").write_bytes(picture_of(np.zeros((6, 9), np.uint8)))
    for name, expected in [("first", "1, 3, 6, 9"), ("last", "1, 6, 9, 3"), ("fixed", "1, 3, 4, 5")]:
        open_form(browser, server, name)
        browser.one("input[type=file]").send_keys(str(tmp_path / "wide.png"))
        assert answer_of(browser) == [expected]
        assert browser.one("fieldset input").get_attribute("value") == expected
    # What somebody has written stays.
    open_form(browser, server, "first")
    fill(browser, "fieldset input", "1, 3, 7, 1")
    browser.one("input[type=file]").send_keys(str(tmp_path / "wide.png"))
    assert answer_of(browser) == ["1, 3, 7, 9"]
    (tmp_path / "none.png").write_bytes(b"no image")
    browser.one("input[type=file]").send_keys(str(tmp_path / "none.png"))
    assert "cannot read 'none.png' as an image" in answer_of(browser)[0]


def test_what_is_too_large_is_said_before_it_is_made(serve, browser, example_copy):
    server = serve(example_copy, "--http-max-input-size=2000")
    open_form(browser, server, "identity_fp32")
    fill(browser, "fieldset input", "1, 99999999999")
    assert "the server takes requests of 1.95 KiB at most (--http-max-input-size)" in answer_of(browser)[0]
    fill(browser, "fieldset input", "1, 490")
    assert "The request would have" in answer_of(browser)[0]
    fill(browser, "fieldset input", "1, 2")
    assert answer_of(browser) == ["0, 0"]


@pytest.mark.parametrize("name", ["a&b=c", "semi;colon", "per%cent", "per%41cent"])
def test_names_that_paths_may_hold_are_asked(repository, serve, browser, name):
    server = serve(repository.add(name, models.identity(FP32, ["n", 2])))
    open_form(browser, server, name)
    assert answer_of(browser) == ["0, 0"]
