//! Calls whose parameters come with the request run on kernels.

#![allow(clippy::unwrap_used, reason = "a test; its helpers fail with it")]

use halimede_compute::{Coverage, Model, ModelOptions};
use halimede_compute_cpu::{CpuOptions, CpuUnit};
use halimede_graph::onnx::{Attributes, ops};
use halimede_graph::ops::{Call, Op};
use halimede_graph::{Builder, Dim, Fact, Graph, reference};
use halimede_tensor::{DType, Tensor, Value};

/// ReduceSum with axes that the request brings.
fn graph() -> Graph {
    let mut graph = Graph::default();
    let x = graph.add_value("x", Fact::tensor(DType::F32, [Dim::symbol("a"), Dim::symbol("b")]));
    let axes = graph.add_value("axes", Fact::tensor(DType::I64, [Dim::from(1)]));
    graph.inputs = vec![x, axes];
    let operator = ops::find("", "ReduceSum").unwrap();
    let call = Call::new(operator, 18, Attributes::default(), vec![true]);
    let y = Builder::new(&mut graph).add(Op::Call(call), &[x, axes]).unwrap();
    graph.outputs = vec![y];
    graph
}

#[test]
fn axes_of_a_request() {
    let unit = CpuUnit::new(&CpuOptions { threads: Some(1), ..CpuOptions::default() });
    let model = Model::compile(graph(), &unit, &ModelOptions::default()).unwrap();
    let mut session = model.session();
    // The same axes for other shapes, other axes for the same shape, and back.
    for (shape, axis) in [([2, 3], 0i64), ([2, 3], 0), ([4, 5], 0), ([4, 5], 1), ([4, 5], -1), ([2, 3], 0)] {
        let numbers: Vec<f32> = (0..shape[0] * shape[1]).map(|i| i as f32).collect();
        let x = Value::Tensor(Tensor::from_slice(&shape, &numbers).unwrap());
        let inputs = [x, Value::Tensor(Tensor::from_slice(&[1], &[axis]).unwrap())];
        session.run(&inputs).unwrap();
        assert_eq!(session.coverage(), Coverage { kernels: 1, reference: 0 });
        let made = session.take_outputs().unwrap();
        let expected = reference::run(&graph(), &inputs).unwrap();
        assert_eq!(made[0].tensor().unwrap(), expected[0].tensor().unwrap(), "{shape:?} along {axis}");
    }
    let x = Value::Tensor(Tensor::from_slice(&[1, 1], &[1f32]).unwrap());
    let error = session.run(&[x, Value::Tensor(Tensor::from_slice(&[1], &[2i64]).unwrap())]).unwrap_err();
    assert!(error.to_string().contains("axis 2"), "{error}");
}
