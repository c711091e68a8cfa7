//! Rewrites of a graph that keep what it computes: a visible list, run in order.
//!
//! Every pass says what it changed and, for what almost fitted, why it did not. After each the
//! shapes are worked out again; a pass after which they do not come out is undone and says so. Bodies of
//! control flow are graphs like any other: all passes run over them too, after the graph around them.

mod attention;
mod beside;
mod bodies;
mod cancel;
mod dead;
mod dequantized;
mod duplicates;
mod edit;
mod epilogue;
mod folding;
mod integers;
mod layout;
mod maps;
mod merged;
mod norms;
mod order;
mod padding;
mod products;
mod quantized;
mod rotary;
mod transposed;
mod weights;

use crate::{Fact, Graph, infer_values};
pub use quantized::{multiply_integers, quantizable, residuals};
use std::sync::Arc;

/// What passes may do.
#[derive(Debug, Clone)]
pub struct PassOptions {
    /// Bytes by which the constants of a graph may grow through folding.
    pub fold_bytes_max: usize,
    /// Names of passes that are left out.
    pub without: Vec<String>,
}

impl Default for PassOptions {
    fn default() -> PassOptions {
        PassOptions { fold_bytes_max: 4 << 20, without: Vec::new() }
    }
}

/// What a pass did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassReport {
    /// Name of the pass.
    pub pass: &'static str,
    /// Number of rewrites.
    pub changed: usize,
    /// What was rewritten, where the pass finds patterns.
    pub rewrites: Vec<Rewrite>,
    /// What almost fitted, and why it was left alone.
    pub refusals: Vec<Refusal>,
}

/// A place that a pass rewrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rewrite {
    /// Name of the node, or of its output where it has none.
    pub node: String,
    /// What became of it.
    pub what: String,
}

/// A place that a pass left alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Name of the node, or of its output where it has none.
    pub node: String,
    /// Why.
    pub reason: String,
}

/// A rewrite of a graph.
pub struct Pass {
    /// Name, as `halimede explain` prints it.
    pub name: &'static str,
    /// Changes the graph.
    run: fn(&mut Graph, &PassOptions, &mut PassReport),
}

/// Every pass, in the order they run in. Some run again after what opened the way for them.
pub static PASSES: &[Pass] = &[
    order::PASS,
    integers::PASS,
    dequantized::PASS,
    // What stood between integers and their products would be folded in vain.
    dead::PASS,
    folding::PASS,
    bodies::PASS,
    cancel::PASS,
    duplicates::PASS,
    dead::PASS,
    padding::PASS,
    transposed::PASS,
    maps::SCALARS,
    weights::PASS,
    products::PASS,
    rotary::PASS,
    norms::PASS,
    norms::SOFTMAX,
    merged::PASS,
    cancel::PASS,
    dead::PASS,
    attention::PASS,
    attention::HEADS,
    // Layers that share a mask each wrote it down.
    duplicates::PASS,
    dead::PASS,
    maps::FUSION,
    maps::ACTIVATIONS,
    epilogue::PASS,
    layout::PASS,
    cancel::PASS,
    dead::PASS,
];

/// Runs every pass over a graph and then over the bodies of its control flow. The graph is right before
/// and after each. A pass gives one report for all graphs.
pub fn optimize(graph: &mut Graph, options: &PassOptions) -> Vec<PassReport> {
    let chosen = PASSES.iter().filter(|pass| !options.without.iter().any(|name| name == pass.name));
    run_all(&chosen.collect::<Vec<_>>(), graph, options)
}

/// Passes over a graph of which is decided in how many bits each product is multiplied, in the order they run in.
pub static LATE_PASSES: &[Pass] = &[beside::PASS];

/// Runs every late pass, as [`optimize`] does the others. A unit calls it when it has made its decisions, and only where it
/// has kernels for what they write.
pub fn finish(graph: &mut Graph) -> Vec<PassReport> {
    run_all(&LATE_PASSES.iter().collect::<Vec<_>>(), graph, &PassOptions::default())
}

fn run_all(passes: &[&Pass], graph: &mut Graph, options: &PassOptions) -> Vec<PassReport> {
    let mut reports: Vec<PassReport> = passes.iter().map(|pass| run(pass, graph, options)).collect();
    for index in 0..graph.nodes.len() {
        let around = edit::name(graph, &graph.nodes[index]);
        for body in graph.nodes[index].op.bodies_mut() {
            let inner = run_all(passes, Arc::make_mut(body), options);
            reports.iter_mut().zip(inner).for_each(|(report, inner)| report.absorb(inner, &around));
        }
    }
    reports
}

impl PassReport {
    /// Adds what the pass did in a body of the node `around`.
    fn absorb(&mut self, inner: PassReport, around: &str) {
        let place = |node: String| format!("{around}/{node}");
        self.changed += inner.changed;
        self.rewrites.extend(inner.rewrites.into_iter().map(|r| Rewrite { node: place(r.node), ..r }));
        self.refusals.extend(inner.refusals.into_iter().map(|r| Refusal { node: place(r.node), ..r }));
    }
}

/// One pass with its check.
fn run(pass: &Pass, graph: &mut Graph, options: &PassOptions) -> PassReport {
    let before = graph.clone();
    let mut report = PassReport { pass: pass.name, changed: 0, rewrites: Vec::new(), refusals: Vec::new() };
    (pass.run)(graph, options, &mut report);
    // A pass that looks at a place again refuses it again.
    let mut seen = std::collections::HashSet::new();
    report.refusals.retain(|refusal| seen.insert((refusal.node.clone(), refusal.reason.clone())));
    if report.changed == 0 {
        *graph = before;
    } else if let Err(reason) = verify(&before, graph) {
        *graph = before;
        report = PassReport {
            changed: 0,
            rewrites: Vec::new(),
            refusals: vec![Refusal { node: graph.name.clone(), reason: format!("undone: {reason}") }],
            ..report
        };
    }
    report
}

/// Works the shapes out again and compares those of the outputs with what they were.
fn verify(before: &Graph, after: &mut Graph) -> Result<(), String> {
    let written = |value: &crate::ValueId| {
        let by_node = after.nodes.iter().any(|node| node.outputs.contains(value));
        by_node || after.inputs.contains(value) || after.constant(*value).is_some()
    };
    if let Some(output) = after.outputs.iter().find(|output| !written(output)) {
        return Err(format!("nothing writes the output '{}'", after.values[output.index()].name));
    }
    let inputs: Vec<Fact> = after.inputs.iter().map(|&input| after.fact(input).clone()).collect();
    let facts = infer_values(after, &inputs).map_err(|error| error.to_string())?;
    for (was, is) in before.outputs.iter().zip(&after.outputs) {
        let (was, is) = (before.fact(*was), &facts[is.index()]);
        let shapes_differ = match (was.known_shape(), is.known_shape()) {
            (Some(a), Some(b)) => a != b,
            _ => was.rank() != is.rank() && is.rank().is_some() && was.rank().is_some(),
        };
        if shapes_differ || (was.dtype != is.dtype && is.dtype.is_some() && was.dtype.is_some()) {
            return Err(format!(
                "an output was {:?} {:?} and became {:?} {:?}",
                was.dtype, was.shape, is.dtype, is.shape
            ));
        }
    }
    // A value that is an output keeps what is declared of it.
    for (index, fact) in facts.into_iter().enumerate() {
        if fact.shape.is_some() {
            after.values[index].fact = fact;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
