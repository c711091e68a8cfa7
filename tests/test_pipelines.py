"""scikit-learn pipelines, converted by skl2onnx, agree with scikit-learn itself."""

import numpy as np
import pytest
import tritonclient.http as httpclient
from onnx import TensorProto
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_diabetes, load_digits, load_iris
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, SGDClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Binarizer, MinMaxScaler, Normalizer, OneHotEncoder, PolynomialFeatures, StandardScaler
from sklearn.svm import SVC, SVR, LinearSVC
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from tritonclient.utils import np_to_triton_dtype

from support import models
from support.server import Server

OPSET = {"": 17, "ai.onnx.ml": 3}
TEXTS = np.array(
    ["a small dog runs", "the big cat sleeps", "dogs and cats", "the dog sees the cat", "a cat runs to the big dog", "sleep"]
)
KINDS = np.array([0, 1, 2, 2, 2, 1])


def iris():
    data = load_iris()
    return data.data.astype(np.float32), data.target


def diabetes():
    data = load_diabetes()
    return data.data.astype(np.float32), data.target


def digits():
    data = load_digits()
    return data.data[:300].astype(np.float32), data.target[:300]


CLASSIFIERS = {
    "logistic": (iris, make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))),
    "tree": (iris, DecisionTreeClassifier(random_state=1)),
    "forest": (digits, RandomForestClassifier(20, random_state=1)),
    "boosting": (iris, GradientBoostingClassifier(n_estimators=20, random_state=1)),
    "histogram_boosting": (iris, HistGradientBoostingClassifier(max_iter=20, random_state=1)),
    "svm_rbf": (iris, make_pipeline(MinMaxScaler(), SVC(probability=True, random_state=1))),
    "svm_poly": (iris, SVC(kernel="poly", degree=2, probability=True, random_state=1)),
    "svm_linear": (iris, LinearSVC(random_state=1, max_iter=5000)),
    "sgd": (iris, make_pipeline(Normalizer(), SGDClassifier(loss="log_loss", random_state=1))),
    "bayes": (iris, GaussianNB()),
    "neighbours": (iris, KNeighborsClassifier(3)),
    "mlp": (digits, make_pipeline(StandardScaler(), MLPClassifier((20,), max_iter=100, random_state=1))),
    "polynomial": (iris, make_pipeline(PolynomialFeatures(2), StandardScaler(), LogisticRegression(max_iter=500))),
    "components": (digits, make_pipeline(PCA(10), LogisticRegression(max_iter=2000))),
    "binary": (lambda: (iris()[0][:100], iris()[1][:100]), make_pipeline(Binarizer(threshold=2), LogisticRegression())),
}
REGRESSORS = {
    "linear": (diabetes, make_pipeline(StandardScaler(), LinearRegression())),
    "tree_regression": (diabetes, DecisionTreeRegressor(max_depth=5, random_state=1)),
    "forest_regression": (diabetes, RandomForestRegressor(20, max_depth=6, random_state=1)),
    "boosting_regression": (diabetes, GradientBoostingRegressor(n_estimators=20, random_state=1)),
    "svm_regression": (diabetes, SVR(C=10.0)),
    "gaussian_process": (diabetes, GaussianProcessRegressor(random_state=1, alpha=1.0)),
}


TYPES = {TensorProto.FLOAT: "FP32", TensorProto.INT64: "INT64", TensorProto.STRING: "STRING"}


def unbatched(model):
    """A configuration that takes rows as they come: all dimensions written out, no batch dimension."""

    def tensor(kind, value):
        dims = [d.dim_value if d.HasField("dim_value") else -1 for d in value.type.tensor_type.shape.dim]
        return f'{kind} [{{ name: "{value.name}" data_type: TYPE_{TYPES[value.type.tensor_type.elem_type]} dims: {dims} }}]'

    tensors = [tensor("input", v) for v in model.graph.input] + [tensor("output", v) for v in model.graph.output]
    return "\n".join(['backend: "onnxruntime"', *tensors, ""])


def fitted(builders):
    """Name, fitted estimator and inputs; fitting is part of what the seed fixes."""
    for name, (data, estimator) in builders.items():
        x, y = data()
        yield name, estimator.fit(x, y), x


def convert(estimator, x, **options):
    found = to_onnx(estimator, initial_types=[("X", FloatTensorType([None, x.shape[1]]))], target_opset=OPSET, **options)
    found.ir_version = 8
    return found


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory, repository_for):
    """A client, and by name the estimators with their inputs; all models in one server."""
    repository = models.Repository(tmp_path_factory.mktemp("pipelines"))
    known = {}
    for name, estimator, x in fitted(CLASSIFIERS):
        options = {} if name == "svm_linear" else {"options": {id(estimator): {"zipmap": False}}}
        model = convert(estimator, x, **options)
        repository.add(name, model, unbatched(model))
        known[name] = estimator, x
    for name, estimator, x in fitted(REGRESSORS):
        model = convert(estimator, x)
        repository.add(name, model, unbatched(model))
        known[name] = estimator, x
    for name, vectorizer in (("tfidf", TfidfVectorizer(ngram_range=(1, 2))), ("counts", CountVectorizer())):
        estimator = make_pipeline(vectorizer, LogisticRegression()).fit(TEXTS, KINDS)
        found = to_onnx(estimator, initial_types=[("X", StringTensorType([None]))], target_opset=OPSET,
                        options={id(estimator): {"zipmap": False}})  # fmt: skip
        found.ir_version = 8
        repository.add(name, found, unbatched(found))
        known[name] = estimator, TEXTS
    known["columns"] = columns(repository)
    known["clusters"] = KMeans(3, n_init=2, random_state=1).fit(iris()[0]), iris()[0]
    model = convert(*known["clusters"])
    repository.add("clusters", model, unbatched(model))
    known["outliers"] = IsolationForest(n_estimators=20, random_state=1).fit(iris()[0]), iris()[0]
    model = convert(*known["outliers"])
    repository.add("outliers", model, unbatched(model))
    estimator = LogisticRegression().fit(*iris())
    repository.add("maps", convert(estimator, iris()[0]))
    with Server([repository_for(repository.path)], "--exit-on-error=false", "--strict-readiness=false") as server:
        with httpclient.InferenceServerClient(server.http_address, network_timeout=300) as client:
            yield client, known


def columns(repository):
    """Numbers with holes beside words."""
    rng = np.random.default_rng(1)
    numbers = rng.normal(size=(60, 3)).astype(np.float32)
    numbers[rng.random((60, 3)) < 0.2] = np.nan
    words = rng.choice(["red", "green", "blue"], (60, 1))
    import pandas

    table = pandas.DataFrame(numbers, columns=["a", "b", "c"]).assign(colour=words[:, 0])
    target = (np.nan_to_num(numbers).sum(1) + (words[:, 0] == "red") > 0).astype(np.int64)
    prepare = ColumnTransformer(
        [
            ("number", make_pipeline(SimpleImputer(), StandardScaler()), ["a", "b", "c"]),
            ("word", OneHotEncoder(handle_unknown="ignore"), ["colour"]),
        ]
    )
    estimator = make_pipeline(prepare, LogisticRegression()).fit(table, target)
    types = [(n, FloatTensorType([None, 1])) for n in "abc"] + [("colour", StringTensorType([None, 1]))]
    found = to_onnx(estimator, initial_types=types, target_opset=OPSET, options={id(estimator): {"zipmap": False}})
    found.ir_version = 8
    repository.add("columns", found, unbatched(found))
    return estimator, table


def infer(client, name, **inputs):
    tensors = []
    for key, array in inputs.items():
        text = array.dtype.kind in "UO"
        tensor = httpclient.InferInput(key, list(array.shape), "BYTES" if text else np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(np.char.encode(array.astype(str)).astype(object) if text else array)
        tensors.append(tensor)
    return client.infer(name, tensors)


def close(found, expected):
    """scikit-learn computes in double precision, the model in single."""
    assert found.reshape(expected.shape) == pytest.approx(expected, rel=2e-3, abs=2e-4)


@pytest.mark.parametrize("name", [*CLASSIFIERS, "tfidf", "counts"])
def test_classifier(pipelines, name, on_peer):
    if on_peer and name in ("tfidf", "counts"):
        pytest.skip("ONNX Runtime needs the locale en_US.UTF-8 for StringNormalizer")
    client, known = pipelines
    estimator, x = known[name]
    reply = infer(client, name, X=x)
    outputs = [o["name"] for o in reply.get_response()["outputs"]]
    # A point on the border between two classes may fall to either side in single precision.
    assert (reply.as_numpy(outputs[0]) == estimator.predict(x)).mean() > 0.99
    if hasattr(estimator, "predict_proba"):
        close(reply.as_numpy(outputs[1]), estimator.predict_proba(x))


@pytest.mark.parametrize("name", REGRESSORS)
def test_regressor(pipelines, name):
    client, known = pipelines
    estimator, x = known[name]
    reply = infer(client, name, X=x)
    expected = estimator.predict(x)
    found = reply.as_numpy(reply.get_response()["outputs"][0]["name"]).reshape(-1)
    assert abs(found - expected).max() / abs(expected).max() < 1e-3


def test_columns_of_numbers_and_words(pipelines):
    client, known = pipelines
    estimator, table = known["columns"]
    inputs = {name: table[name].to_numpy()[:, None] for name in ("a", "b", "c", "colour")}
    reply = infer(client, "columns", **inputs)
    outputs = [o["name"] for o in reply.get_response()["outputs"]]
    close(reply.as_numpy(outputs[1]), estimator.predict_proba(table))


def test_clusters(pipelines):
    client, known = pipelines
    estimator, x = known["clusters"]
    reply = infer(client, "clusters", X=x)
    assert (reply.as_numpy("label") == estimator.predict(x)).all()
    close(reply.as_numpy("scores"), estimator.transform(x))


def test_outliers(pipelines):
    client, known = pipelines
    estimator, x = known["outliers"]
    reply = infer(client, "outliers", X=x)
    assert (reply.as_numpy("label").reshape(-1) == estimator.predict(x)).mean() > 0.99
    close(reply.as_numpy("scores").reshape(-1), estimator.decision_function(x))


def test_a_sequence_of_maps_is_refused_with_the_way_out(pipelines, on_peer):
    """What skl2onnx's classifiers give unless told otherwise; ONNX Runtime's backend refuses it too."""
    client, _ = pipelines
    entry = next(entry for entry in client.get_model_repository_index() if entry["name"] == "maps")
    assert entry["state"] == "UNAVAILABLE"
    assert "Unsupported ONNX Type 'ONNX_TYPE_SEQUENCE' for I/O 'output_probability'" in entry["reason"]
    if not on_peer:
        assert "options={'zipmap': False}" in entry["reason"]
