use super::edit::{done, is_output, readers, refuse};
use super::{Pass, PassOptions, PassReport};
use crate::Graph;
use crate::ops::{Factors, Op, PadMode, Padding};

/// Lets a convolution add the border of zeros that an operation before it makes.
pub(super) const PASS: Pass = Pass { name: "pad into convolution", run };

fn run(graph: &mut Graph, _: &PassOptions, report: &mut PassReport) {
    let (producers, readers) = (graph.producers(), readers(graph));
    for index in 0..graph.nodes.len() {
        let Op::Conv(conv) = &graph.nodes[index].op else { continue };
        let Some(padded) = graph.nodes[index].inputs[0] else { continue };
        let Some(pad) = producers[padded.index()].map(|producer| &graph.nodes[producer]) else { continue };
        let Op::Pad(mode) = &pad.op else { continue };
        let constant = |at: usize| pad.inputs.get(at).copied().flatten();
        let zero = constant(2).is_none_or(|fill| {
            graph.constant(fill).is_some_and(|fill| fill.to_f64s().is_ok_and(|v| v.iter().all(|&v| v == 0.0)))
        });
        let reason = match (&conv.padding, constant(1).and_then(|pads| graph.fact(pads).ints())) {
            _ if mode.mode != PadMode::Constant || !zero => "its border is not of zeros",
            // Its own border is of zero points.
            _ if conv.multiply == Some(Factors::Integers) => "a convolution of integers has a border of another number",
            _ if conv.transposed.is_some() => "a transposed convolution has no border of zeros",
            _ if constant(3).is_some() => "it pads some axes only, by a list of axes",
            _ if readers[padded.index()] != 1 || is_output(graph, padded) => "something else reads the padded tensor",
            (_, None) => "its border is not known before a request",
            (Padding::Explicit(own), Some(pads)) if pads.len() == own.len() + 4 => {
                let axes = pads.len() / 2;
                let outer = [pads[0], pads[1], pads[axes], pads[axes + 1]];
                if outer.iter().any(|&pad| pad != 0) || pads.iter().any(|&pad| pad < 0) {
                    "it pads batch or channels, or removes elements"
                } else {
                    let spatial = pads[2..axes].iter().chain(&pads[axes + 2..]);
                    let joint = own.iter().zip(spatial).map(|(own, more)| own.saturating_add(*more)).collect();
                    let source = pad.inputs[0];
                    let node = &mut graph.nodes[index];
                    if let Op::Conv(conv) = &mut node.op {
                        conv.padding = Padding::Explicit(joint);
                    }
                    node.inputs[0] = source;
                    done(graph, &graph.nodes[index], "the convolution adds the border itself", report);
                    continue;
                }
            }
            _ => "the convolution works its own border out from the size",
        };
        refuse(graph, &graph.nodes[index], format!("the padding before it stays: {reason}"), report);
    }
}
