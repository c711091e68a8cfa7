//! Products whose residual gives its memory to the result.

use super::Kernels;
use super::tests::{compare, conv, ending, floats, machines};
use halimede_compute::packed::Packer;
use halimede_compute::{Executable, Program};
use halimede_graph::ops::*;
use halimede_graph::{Builder, Fact, Graph, Op, ValueId};
use halimede_tensor::{DType, Tensor, Value};
use std::sync::Arc;

/// An input of f32 as `dtype`, an operation that adds that to what it makes of another input and constants, and its
/// result in f32, both with their signs changed where nothing is to be cast: between the first and the last step the
/// residual lies in the arena, and nobody else reads it.
fn check(op: Op, dtype: DType, x: &Tensor, residual: &Tensor, constants: &[Tensor]) {
    let cast = |to| {
        let step = if dtype == DType::F32 { Instruction::Unary(Unary::Neg, 0) } else { Instruction::Cast(to, 0) };
        Op::Map(Map { instructions: vec![Instruction::Input(0), step] })
    };
    let one = |op: &Op, inputs: &[Option<Value>]| op.evaluate(inputs).unwrap().remove(0);
    let narrow = one(&cast(dtype), &[Some(residual.clone().into())]);
    let given = [x.clone()].into_iter().chain(constants.iter().cloned()).map(|tensor| Some(Value::from(tensor)));
    let expected = one(&op, &given.chain([Some(narrow)]).collect::<Vec<_>>());
    let expected = one(&cast(DType::F32), &[Some(expected)]);
    for machine in machines(&op) {
        let mut graph = Graph::default();
        let input = |graph: &mut Graph, name: &str, tensor: &Tensor| -> ValueId {
            let shape = tensor.shape().iter().map(|&size| size.into());
            let id = graph.add_value(name, Fact::tensor(tensor.dtype(), shape));
            graph.inputs.push(id);
            id
        };
        let (x_id, residual_id) = (input(&mut graph, "x", x), input(&mut graph, "r", residual));
        let constants: Vec<ValueId> =
            constants.iter().enumerate().map(|(i, w)| graph.add_constant(format!("w{i}"), w.clone())).collect();
        let mut builder = Builder::new(&mut graph);
        let narrow = builder.add_all(cast(dtype), &[Some(residual_id)]).unwrap()[0];
        let inputs: Vec<Option<ValueId>> = [x_id].into_iter().chain(constants).chain([narrow]).map(Some).collect();
        let sum = builder.add_all(op.clone(), &inputs).unwrap()[0];
        let wide = builder.add_all(cast(DType::F32), &[Some(sum)]).unwrap()[0];
        graph.outputs = vec![wide];
        let place = format!("{} {:?}", machine.isa.name(), machine.matrix.map(crate::Matrix::name));
        let kernels: Arc<dyn halimede_compute::Kernels> = Arc::new(Kernels::new(machine));
        let mut session = Arc::new(Program::new(graph, &kernels, usize::MAX, &Packer::default()).unwrap()).session();
        for _ in 0..2 {
            session.run(&[x.clone().into(), residual.clone().into()]).unwrap();
            let made = session.take_outputs().unwrap();
            compare(&op, &place, made[0].tensor().unwrap(), expected.tensor().unwrap(), 1.0 / 128.0);
        }
    }
}

#[test]
fn residuals_are_added_once() {
    for columns in [48, 64, 40, 42] {
        let epilogue = Some(ending(DType::Bf16, Unary::Abs, true));
        let product = Contract { epilogue: epilogue.clone(), multiply: Some(Factors::Bf16), ..Contract::matmul(0) };
        let (x, w) = (floats(&[45, 64], 1), floats(&[64, columns], 2));
        check(Op::Contract(product), DType::Bf16, &x, &floats(&[45, columns], 3), &[w]);
        let plain = conv(&[1, 1], &[1, 1], &[1, 1, 1, 1], 1);
        let conv = Conv { channels_last: true, multiply: Some(Factors::Bf16), epilogue, ..plain };
        let (x, w, bias) = (floats(&[2, 7, 9, 24], 1), floats(&[columns, 24, 3, 3], 2), floats(&[columns], 4));
        check(Op::Conv(conv), DType::Bf16, &x, &floats(&[2, 7, 9, columns], 3), &[w, bias]);
    }
}

#[test]
fn residuals_in_f32_are_added_once() {
    // What a micro-kernel does, and what is more than that.
    let plain = conv(&[1, 1], &[1, 1], &[1, 1, 1, 1], 1);
    for columns in [64, 96, 40] {
        for function in [Unary::Abs, Unary::Tanh, Unary::Sin] {
            let map = ending(DType::F32, function, false);
            let conv = Conv { channels_last: true, epilogue: Some(map), ..plain.clone() };
            let (x, w, bias) = (floats(&[2, 7, 9, 24], 1), floats(&[columns, 24, 3, 3], 2), floats(&[columns], 4));
            check(Op::Conv(conv), DType::F32, &x, &floats(&[2, 7, 9, columns], 3), &[w, bias]);
        }
    }
}

#[test]
fn rows_are_scaled_once() {
    for columns in [48, 42] {
        let mut map = Map::default();
        let row = map.push(Instruction::Input(0));
        let narrow = map.push(Instruction::Input(1));
        let wide = map.push(Instruction::Cast(DType::F32, narrow));
        let product = map.push(Instruction::Binary(Binary::Mul, wide, row));
        map.push(Instruction::Cast(DType::Bf16, product));
        check(Op::Map(map), DType::Bf16, &floats(&[columns], 1), &floats(&[3, 7, columns], 2), &[]);
    }
}
