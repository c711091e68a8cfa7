//! Models written by hand: what must be read, and what must be refused without harm.

use super::{ImportError, Model, Options, from_bytes, load};
use crate::onnx::proto::attribute_proto::AttributeType;
use crate::onnx::proto::tensor_shape_proto::{Dimension, dimension};
use crate::onnx::proto::*;
use crate::reference::run;
use halimede_tensor::{DType, Tensor, Value};
use proptest::prelude::*;
use prost::Message;

fn value(name: &str, code: i32, shape: &[i64]) -> ValueInfoProto {
    let dims = shape.iter().map(|&size| Dimension {
        value: (size != -1).then_some(dimension::Value::DimValue(size)),
        ..Dimension::default()
    });
    let tensor = type_proto::Tensor { elem_type: Some(code), shape: Some(TensorShapeProto { dim: dims.collect() }) };
    let r#type = TypeProto { value: Some(type_proto::Value::TensorType(tensor)), denotation: None };
    ValueInfoProto { name: Some(name.to_owned()), r#type: Some(r#type), doc_string: None }
}

fn node(operator: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    let owned = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
    NodeProto {
        op_type: Some(operator.to_owned()),
        input: owned(inputs),
        output: owned(outputs),
        ..NodeProto::default()
    }
}

fn with(mut node: NodeProto, attribute: AttributeProto) -> NodeProto {
    node.attribute.push(attribute);
    node
}

fn body(name: &str, graph: GraphProto) -> AttributeProto {
    AttributeProto {
        name: Some(name.to_owned()),
        g: Some(graph),
        r#type: Some(AttributeType::Graph as i32),
        ..AttributeProto::default()
    }
}

fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto {
        name: Some(name.to_owned()),
        i: Some(value),
        r#type: Some(AttributeType::Int as i32),
        ..AttributeProto::default()
    }
}

fn floats(name: &str, dims: &[i64], elements: &[f32]) -> TensorProto {
    TensorProto {
        name: Some(name.to_owned()),
        dims: dims.to_vec(),
        data_type: Some(1),
        float_data: elements.to_vec(),
        ..TensorProto::default()
    }
}

fn graph(inputs: &[ValueInfoProto], nodes: Vec<NodeProto>, outputs: &[&str]) -> GraphProto {
    let output = outputs.iter().map(|name| ValueInfoProto { name: Some(name.to_string()), ..Default::default() });
    GraphProto { input: inputs.to_vec(), node: nodes, output: output.collect(), ..GraphProto::default() }
}

fn model(graph: GraphProto) -> ModelProto {
    let opset = |domain: &str, version| OperatorSetIdProto { domain: Some(domain.to_owned()), version: Some(version) };
    ModelProto {
        ir_version: Some(10),
        graph: Some(graph),
        opset_import: vec![opset("", 21), opset("own", 1)],
        ..ModelProto::default()
    }
}

fn read(model: &ModelProto) -> Result<Model, ImportError> {
    from_bytes(model.encode_to_vec(), None, &Options::default())
}

fn refused(model: &ModelProto, because: &str) {
    let error = read(model).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains(because), "expected '{because}' in: {error}");
}

fn vector(elements: &[f32]) -> Value {
    Tensor::from_slice(&[elements.len()], elements).unwrap().into()
}

#[test]
fn nodes_out_of_order_are_sorted_and_names_kept() {
    let nodes = vec![node("Identity", &["b"], &["y"]), node("Add", &["x", "x"], &["b"])];
    let read = read(&model(graph(&[value("x", 1, &[-1])], nodes, &["y"]))).unwrap();
    assert_eq!(read.inputs[0].name, "x");
    assert_eq!(read.outputs[0].name, "y");
    assert_eq!(read.inputs[0].fact.shape.as_ref().unwrap()[0].to_string(), "x.0");
    assert_eq!(run(&read.graph, &[vector(&[1.0, 2.0])]).unwrap(), [vector(&[2.0, 4.0])]);
}

#[test]
fn initializers_are_constants_unless_asked_for() {
    let mut proto = graph(&[value("x", 1, &[1]), value("w", 1, &[1])], vec![node("Add", &["x", "w"], &["y"])], &["y"]);
    proto.initializer.push(floats("w", &[1], &[10.0]));
    let proto = model(proto);
    let plain = read(&proto).unwrap();
    assert_eq!((plain.inputs.len(), plain.overridable.len()), (1, 1));
    assert_eq!(run(&plain.graph, &[vector(&[1.0])]).unwrap(), [vector(&[11.0])]);
    let options = Options { overridable: ["w".to_owned()].into() };
    let asked = from_bytes(proto.encode_to_vec(), None, &options).unwrap();
    assert_eq!(asked.inputs[1].default.clone().map(Value::from), Some(vector(&[10.0])));
    assert_eq!(run(&asked.graph, &[vector(&[1.0]), vector(&[5.0])]).unwrap(), [vector(&[6.0])]);
    // Below IR version 4 the listing means nothing.
    let old = ModelProto { ir_version: Some(3), ..proto };
    assert!(read(&old).unwrap().overridable.is_empty());
}

#[test]
fn functions_are_written_out_with_their_attributes() {
    let scale = with(
        node("Constant", &[], &["s"]),
        AttributeProto {
            name: Some("value_float".to_owned()),
            ref_attr_name: Some("factor".to_owned()),
            r#type: Some(AttributeType::Float as i32),
            ..AttributeProto::default()
        },
    );
    let factor = AttributeProto {
        name: Some("factor".to_owned()),
        f: Some(3.0),
        r#type: Some(AttributeType::Float as i32),
        ..AttributeProto::default()
    };
    let function = FunctionProto {
        name: Some("Scale".to_owned()),
        domain: Some("own".to_owned()),
        input: vec!["v".to_owned(), "never".to_owned()],
        output: vec!["r".to_owned()],
        attribute_proto: vec![factor.clone()],
        node: vec![scale, node("Mul", &["v", "s"], &["r"])],
        ..FunctionProto::default()
    };
    let mut call = node("Scale", &["x"], &["y"]);
    call.domain = Some("own".to_owned());
    let mut twice = with(node("Scale", &["y"], &["z"]), AttributeProto { f: Some(2.0), ..factor });
    twice.domain = Some("own".to_owned());
    let mut proto = model(graph(&[value("x", 1, &[2])], vec![call, twice], &["z"]));
    proto.functions.push(function);
    let read = read(&proto).unwrap();
    assert_eq!(run(&read.graph, &[vector(&[1.0, -1.0])]).unwrap(), [vector(&[6.0, -6.0])]);
}

#[test]
fn a_graph_is_handed_to_a_function() {
    // Choose(c, v; @g): g where c, else v; g reads x of the caller, not the function's own x.
    let by_reference = |name: &str| AttributeProto {
        name: Some(name.to_owned()),
        ref_attr_name: Some("g".to_owned()),
        r#type: Some(AttributeType::Graph as i32),
        ..AttributeProto::default()
    };
    let other = graph(&[], vec![node("Identity", &["v"], &["same"])], &["same"]);
    let choice = with(with(node("If", &["c"], &["r"]), by_reference("then_branch")), body("else_branch", other));
    let function = FunctionProto {
        name: Some("Choose".to_owned()),
        domain: Some("own".to_owned()),
        input: vec!["c".to_owned(), "v".to_owned()],
        output: vec!["r".to_owned()],
        attribute: vec!["g".to_owned()],
        node: vec![node("Neg", &["v"], &["x"]), choice],
        ..FunctionProto::default()
    };
    let given = graph(&[], vec![node("Add", &["x", "x"], &["twice"])], &["twice"]);
    let mut call = with(node("Choose", &["c", "x"], &["y"]), body("g", given));
    call.domain = Some("own".to_owned());
    let mut proto = model(graph(&[value("c", 9, &[]), value("x", 1, &[2])], vec![call], &["y"]));
    proto.functions.push(function.clone());
    let read_model = read(&proto).unwrap();
    for (condition, expected) in [(true, [2.0, -4.0]), (false, [1.0, -2.0])] {
        let condition = Value::Tensor(Tensor::from_bools(&[], &[condition]).unwrap());
        assert_eq!(run(&read_model.graph, &[condition, vector(&[1.0, -2.0])]).unwrap(), [vector(&expected)]);
    }
    // Inside another body of the function there is no way in for what the graph takes from the caller.
    let inner = graph(
        &[],
        vec![with(with(node("If", &["c"], &["r"]), by_reference("then_branch")), by_reference("else_branch"))],
        &["r"],
    );
    let outer = with(with(node("If", &["c"], &["r"]), body("then_branch", inner)), by_reference("else_branch"));
    proto.functions[0].node = vec![outer];
    assert!(read(&proto).unwrap_err().to_string().contains("handed to a function"), "{:?}", read(&proto).err());
}

/// `acc` grows by what comes from outside in each iteration; `rows` collects it.
fn growing() -> GraphProto {
    let body_graph = graph(
        &[value("i", 7, &[]), value("go", 9, &[]), value("acc", 1, &[1])],
        vec![
            node("Identity", &["go"], &["go_on"]),
            with(node("Concat", &["acc", "x"], &["longer"]), int("axis", 0)),
            node("Add", &["x", "x"], &["row"]),
        ],
        &["go_on", "longer", "row"],
    );
    let nodes = vec![with(node("Loop", &["trips", "", "x"], &["acc_last", "rows"]), body("body", body_graph))];
    graph(&[value("trips", 7, &[]), value("x", 1, &[1])], nodes, &["acc_last", "rows"])
}

#[test]
fn loops_take_from_outside_and_may_grow() {
    let read = read(&model(growing())).unwrap();
    let shape = |output: usize| read.graph.fact(read.graph.outputs[output]).shape.clone().unwrap();
    assert_eq!((shape(0).len(), shape(0)[0].known()), (1, None));
    assert_eq!(shape(1)[1].known(), Some(1));
    let outputs = run(&read.graph, &[Tensor::scalar(3i64).into(), vector(&[2.0])]).unwrap();
    assert_eq!(outputs[0], vector(&[2.0; 4]));
    assert_eq!(outputs[1], Tensor::from_slice(&[3, 1], &[4.0f32; 3]).unwrap().into());
}

#[test]
fn branches_share_what_they_take_from_outside() {
    let branch = |operator: &str, other: &str| graph(&[], vec![node(operator, &["x", other], &["out"])], &["out"]);
    let choose = with(
        with(node("If", &["c"], &["y"]), body("then_branch", branch("Add", "p"))),
        body("else_branch", branch("Mul", "q")),
    );
    let inputs = [value("c", 9, &[]), value("x", 1, &[1]), value("p", 1, &[1]), value("q", 1, &[1])];
    let read = read(&model(graph(&inputs, vec![choose], &["y"]))).unwrap();
    for (condition, expected) in [(true, 5.0), (false, 8.0)] {
        let condition = Tensor::from_bools(&[], &[condition]).unwrap().into();
        let given = [condition, vector(&[2.0]), vector(&[3.0]), vector(&[4.0])];
        assert_eq!(run(&read.graph, &given).unwrap(), [vector(&[expected])]);
    }
}

#[test]
fn narrow_types_are_unpacked() {
    let packed = |code: i32, raw: &'static [u8]| TensorProto {
        dims: vec![3],
        data_type: Some(code),
        raw_data: Some(raw.into()),
        ..TensorProto::default()
    };
    let unpacked = |proto: &TensorProto| super::read_tensor(proto.encode_to_vec().into()).unwrap();
    let int4 = unpacked(&packed(22, &[0x8f, 0x07]));
    assert_eq!((int4.dtype(), int4.slice::<i8>().unwrap()), (DType::I4, &[-1i8, -8, 7][..]));
    let uint2 = unpacked(&packed(25, &[0b11_10_01]));
    assert_eq!(uint2.slice::<u8>().unwrap(), [1, 2, 3]);
    // In the typed field each entry is one byte of packed elements.
    let typed = TensorProto { dims: vec![3], data_type: Some(21), int32_data: vec![0x21, 0x03], ..Default::default() };
    assert_eq!(unpacked(&typed).slice::<u8>().unwrap(), [1, 2, 3]);
}

#[test]
fn sparse_constants_are_written_out() {
    let indices = |dims: &[i64], elements: &[i64]| TensorProto {
        dims: dims.to_vec(),
        data_type: Some(7),
        int64_data: elements.to_vec(),
        ..TensorProto::default()
    };
    for (at, fits) in [
        (indices(&[2], &[1, 3]), true),
        (indices(&[2, 2], &[0, 1, 1, 1]), true),
        (indices(&[2], &[1, 4]), false),
        (indices(&[2, 2], &[0, 1, 1, -1]), false),
        (indices(&[3], &[0, 1, 2]), false),
    ] {
        let mut proto = graph(&[], vec![node("Identity", &["w"], &["y"])], &["y"]);
        let values = Some(floats("w", &[2], &[5.0, 7.0]));
        proto.sparse_initializer.push(SparseTensorProto { values, indices: Some(at), dims: vec![2, 2] });
        match read(&model(proto)) {
            Ok(read) if fits => {
                let dense = Tensor::from_slice(&[2, 2], &[0.0f32, 5.0, 0.0, 7.0]).unwrap();
                assert_eq!(run(&read.graph, &[]).unwrap(), [dense.into()]);
            }
            result => assert!(result.is_err() && !fits),
        }
    }
}

#[test]
fn external_data_stays_inside_the_directory() {
    let folder = std::env::temp_dir().join(format!("halimede-external-{}", std::process::id()));
    let inside = folder.join("model.onnx");
    std::fs::create_dir_all(&inside).unwrap();
    std::fs::write(inside.join("weights"), [1.0f32, 2.0, 3.0].map(f32::to_le_bytes).concat()).unwrap();
    std::fs::write(folder.join("secret"), [0u8; 8]).unwrap();
    #[cfg(unix)]
    let _ = std::os::unix::fs::symlink(folder.join("secret"), inside.join("link"));
    let entry = |key: &str, value: &str| StringStringEntryProto { key: Some(key.into()), value: Some(value.into()) };
    let read = |location: &str, offset: &str, length: &str| {
        let mut proto = graph(&[], vec![node("Identity", &["w"], &["y"])], &["y"]);
        proto.initializer.push(TensorProto {
            external_data: vec![entry("location", location), entry("offset", offset), entry("length", length)],
            data_location: Some(tensor_proto::DataLocation::External as i32),
            float_data: Vec::new(),
            ..floats("w", &[2], &[])
        });
        std::fs::write(inside.join("model.onnx"), model(proto).encode_to_vec()).unwrap();
        load(&inside).map(|read| run(&read.graph, &[]).unwrap())
    };
    assert_eq!(read("weights", "4", "8").unwrap(), [vector(&[2.0, 3.0])]);
    for (location, offset, length) in [
        ("../secret", "0", "8"),
        ("/etc/passwd", "0", "8"),
        ("link", "0", "8"),
        ("weights", "8", "8"),
        ("weights", "18446744073709551615", "8"),
        ("weights", "0", "4"),
        ("weights", "-1", "8"),
        ("missing", "0", "8"),
        ("", "0", "8"),
    ] {
        let error = read(location, offset, length).unwrap_err().to_string();
        assert!(error.contains("'w'"), "{location}: {error}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn wrong_models_are_refused_by_name() {
    let x = || value("x", 1, &[2]);
    let one = |node: NodeProto| model(graph(&[x()], vec![node], &["y"]));
    let stored = |tensor: TensorProto| {
        let mut proto = graph(&[x()], vec![node("Add", &["x", "w"], &["y"])], &["y"]);
        proto.initializer.push(tensor);
        model(proto)
    };
    refused(&ModelProto::default(), "no graph");
    refused(&one(node("NoSuchOperator", &["x"], &["y"])), "NoSuchOperator");
    refused(&one(node("Add", &["x", "nowhere"], &["y"])), "'nowhere'");
    refused(&one(node("Add", &["x", "y"], &["y"])), "cyclic");
    refused(&one(node("Add", &["x"], &["y"])), "node 'y' (Add (opset 21))");
    refused(&one(node("Add", &["x", "x"], &["z"])), "output 'y'");
    refused(&model(graph(&[x(), x()], vec![], &["x"])), "defined twice");
    refused(&model(graph(&[value("x", 99, &[2])], vec![], &["x"])), "datatype 99");
    refused(&model(graph(&[value("x", 1, &[-7])], vec![], &["x"])), "size -7");
    refused(&model(graph(&[value("x", 1, &[i64::MAX])], vec![], &["x"])), "size 9223372036854775807");
    refused(&ModelProto { ir_version: Some(99), ..one(node("Add", &["x", "x"], &["y"])) }, "IR version 99");
    refused(&ModelProto { opset_import: vec![], ..one(node("Add", &["x", "x"], &["y"])) }, "does not import");
    refused(&stored(floats("w", &[3], &[1.0])), "'w'");
    refused(&stored(floats("w", &[-1], &[1.0])), "negative");
    refused(&stored(floats("w", &[1 << 62, 1 << 62], &[1.0])), "more elements");
    refused(&stored(floats("w", &[i64::MAX], &[1.0])), "'w'");
    refused(&stored(TensorProto { data_type: Some(99), ..floats("w", &[1], &[1.0]) }), "datatype 99");
    refused(&stored(TensorProto { dims: vec![1; 1000], ..floats("w", &[], &[1.0]) }), "1000 dimensions");
    refused(&stored(TensorProto { data_type: Some(8), ..floats("w", &[1 << 40], &[]) }), "strings");
    refused(&one(with(node("Loop", &["x"], &["y"]), body("body", graph(&[], vec![], &[])))), "Loop");
}

#[test]
fn endless_functions_are_refused() {
    let function = |name: &str, calls: &[&str]| {
        let call = |(index, callee): (usize, &&str)| {
            let mut call = node(callee, &["v"], &[if index == 0 { "r" } else { "s" }]);
            call.domain = Some("own".to_owned());
            call
        };
        FunctionProto {
            name: Some(name.to_owned()),
            domain: Some("own".to_owned()),
            input: vec!["v".to_owned()],
            output: vec!["r".to_owned()],
            node: calls.iter().enumerate().map(call).collect(),
            ..FunctionProto::default()
        }
    };
    let mut start = node("f0", &["x"], &["y"]);
    start.domain = Some("own".to_owned());
    let mut own = model(graph(&[value("x", 1, &[1])], vec![start], &["y"]));
    own.functions.push(function("f0", &["f0"]));
    refused(&own, "more than 64 deep");
    // Each level calls the next one twice: 2^40 calls within the depth that is allowed.
    own.functions = (0..40).map(|i| function(&format!("f{i}"), &[format!("f{}", i + 1).as_str(); 2])).collect();
    own.functions.push(function("f40", &[]));
    own.functions[40].node.push(node("Identity", &["v"], &["r"]));
    refused(&own, "more than 500000 nodes");
}

#[test]
fn deep_nesting_is_refused() {
    // Wrapped as bytes: encoding a message that deep recurses as well.
    let mut bytes = graph(&[], vec![], &[]).encode_to_vec();
    for _ in 0..10_000 {
        let wrap = |field: u8, bytes: &[u8]| {
            let mut outer = vec![field << 3 | 2];
            prost::encode_length_delimiter(bytes.len(), &mut outer).unwrap();
            outer.extend_from_slice(bytes);
            outer
        };
        // GraphProto.node, NodeProto.attribute, AttributeProto.g from the outside in.
        bytes = wrap(1, &wrap(5, &wrap(6, &bytes)));
    }
    let mut model = vec![7 << 3 | 2];
    prost::encode_length_delimiter(bytes.len(), &mut model).unwrap();
    model.extend_from_slice(&bytes);
    let error = from_bytes(model, None, &Options::default()).unwrap_err().to_string();
    assert!(error.contains("recursion limit"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Any bytes give a model or an error.
    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = from_bytes(bytes, None, &Options::default());
    }

    /// A valid model with bytes changed, cut or doubled gives a model or an error.
    #[test]
    fn changed_models_are_survived(changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8), cut in any::<prop::sample::Index>()) {
        let mut proto = growing();
        proto.initializer.push(floats("w", &[2, 1], &[1.0, 2.0]));
        let mut bytes = model(proto).encode_to_vec();
        for (at, byte) in &changes {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
        let _ = from_bytes(bytes.clone(), None, &Options::default());
        bytes.truncate(cut.index(bytes.len()));
        let _ = from_bytes(bytes, None, &Options::default());
    }
}
