//! What is given to the system's library: the right operations, and those that take it several tasks.

use super::tests::{check, conv, ending, floats, machines};
use super::{Kernels, Machine};
use crate::Isa;
use crate::blas::tests::expected;
use halimede_compute::packed::Packer;
use halimede_graph::ops::*;
use halimede_graph::{Builder, Fact, Graph, Op};
use halimede_tensor::DType;

/// The name of the kernel for an operation on data and constant weights of such shapes.
fn name(op: &Op, machine: &Machine, x: &[usize], w: &[usize]) -> String {
    let mut graph = Graph::default();
    let data = graph.add_value("x", Fact::tensor(DType::F32, x.iter().map(|&size| size.into())));
    graph.inputs.push(data);
    let weights = graph.add_constant("w", floats(w, 1));
    graph.outputs = Builder::new(&mut graph).add_all(op.clone(), &[Some(data), Some(weights)]).unwrap().to_vec();
    let node = graph.nodes.first().unwrap();
    let kernels = Kernels::new(machine.clone());
    halimede_compute::Kernels::kernel(&kernels, &graph, node, &Packer::default()).unwrap().name().to_owned()
}

#[test]
fn whole_matrices_go_to_the_library() {
    let Some(blas) = expected() else { return };
    let matmul = Op::Contract(Contract::matmul(0));
    let machine = machines(&matmul).into_iter().find(|machine| machine.blas.is_some()).unwrap();
    let conv = |groups: usize, channels_last: bool| {
        Op::Conv(Conv { channels_last, ..conv(&[1, 1], &[1, 1], &[1, 1, 1, 1], groups) })
    };
    let (library, own) = (blas.name(), Isa::detect().name());
    let narrow = Op::Contract(Contract { multiply: Some(Factors::Bf16), ..Contract::matmul(0) });
    for (op, x, w, expected) in [
        (&matmul, &[5, 8][..], &[8, 9][..], format!("gemm {library}")),
        (&conv(1, false), &[1, 64, 56, 56], &[64, 64, 3, 3], format!("conv {library}")),
        (&conv(2, false), &[1, 64, 56, 56], &[64, 32, 3, 3], format!("conv {library}")),
        // No form of Winograd's algorithm, which was measured beside other kernels.
        (&conv(1, true), &[1, 56, 56, 64], &[64, 64, 3, 3], format!("conv of pixels {library}, packed weights")),
        (&conv(64, false), &[1, 64, 56, 56], &[64, 1, 3, 3], format!("conv {own}")),
        (&conv(64, true), &[1, 56, 56, 64], &[64, 1, 3, 3], format!("depthwise conv of pixels {own}, packed weights")),
    ] {
        assert_eq!(name(op, &machine, x, w), expected);
    }
    assert!(!name(&narrow, &machine, &[5, 8], &[8, 9]).contains(library));
}

#[test]
fn products_of_several_tasks() {
    if expected().is_none() {
        return;
    }
    let epilogue = |function| Some(ending(DType::F32, function, false));
    for (m, n, k) in [(1, 1000, 40), (1100, 3, 40), (513, 130, 20), (1030, 300, 9)] {
        let op = Op::Contract(Contract { epilogue: epilogue(Unary::Silu), ..Contract::matmul(0) });
        let inputs = [floats(&[m, k], 1), floats(&[k, n], 2), floats(&[n], 3)];
        check(op, &inputs.map(Some), &[1], 3e-6);
    }
    for channels_last in [false, true] {
        for (groups, kernel, pads, batch) in [(1, 3, [1; 4], 1), (2, 3, [2, 0, 1, 1], 2), (2, 1, [0; 4], 3)] {
            let size = |before: i64, size: usize, after: i64| size + before as usize + after as usize + 1 - kernel;
            let (height, width) = (size(pads[0], 41, pads[2]), size(pads[1], 43, pads[3]));
            let image = |channels, height, width| match channels_last {
                false => [batch, channels, height, width],
                true => [batch, height, width, channels],
            };
            let (x, out) = (image(6, 41, 43), image(10, height, width));
            let plain = conv(&[1, 1], &[1, 1], &pads, groups);
            let op = Conv { channels_last, epilogue: epilogue(Unary::Silu), ..plain };
            let w = floats(&[10, 6 / groups, kernel, kernel], 2);
            let inputs = [floats(&x, 1), w, floats(&[10], 3), floats(&out, 4)];
            check(Op::Conv(op), &inputs.map(Some), &[1], 3e-6);
        }
    }
}
