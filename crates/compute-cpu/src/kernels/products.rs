//! Products of one operand, side by side: one loop over the tasks of all of them.
//!
//! ```text
//! for each product, block of rows and range of its panels     a task
//!     as the product does it by itself
//! ```
//!
//! So threads share all products out among them, meet once, and find the rows that they packed for one product packed for
//! the next.

use super::Machine;
use super::contract::ContractKernel;
use halimede_compute::packed::Packer;
use halimede_compute::tuning::Tunable;
use halimede_compute::{Arguments, Kernel, Prepared, Step, Tasks, TensorDesc};
use halimede_graph::ops::Products;
use halimede_graph::{Graph, Node, OpError};
use halimede_tensor::View;
use smallvec::SmallVec;

pub(super) struct ProductsKernel {
    op: Products,
    parts: Vec<ContractKernel>,
    machine: Machine,
    name: String,
}

impl ProductsKernel {
    pub fn new(op: &Products, graph: &Graph, node: &Node, machine: Machine, packer: &Packer) -> ProductsKernel {
        let parts = op.parts.iter().zip(op.inputs_of(&node.inputs)).map(|(part, inputs)| {
            let own = Node { inputs: inputs.into_iter().collect(), ..node.clone() };
            ContractKernel::new(&part.product, graph, &own, machine.clone(), packer)
        });
        let parts: Vec<ContractKernel> = parts.collect();
        let kind = parts.first().map_or("gemm", |part| part.name());
        let name = format!("{kind}, {} side by side", parts.len());
        ProductsKernel { op: op.clone(), parts, machine, name }
    }
}

impl Kernel for ProductsKernel {
    fn name(&self) -> &str {
        &self.name
    }

    fn prepare(&self, inputs: &[Option<TensorDesc>], outputs: &[TensorDesc]) -> Result<Prepared, OpError> {
        let own = self.op.inputs_of(inputs).zip(outputs.chunks(1));
        let prepared = self.parts.iter().zip(own).map(|(part, (inputs, outputs))| part.prepare(&inputs, outputs));
        let prepared = prepared.collect::<Result<Vec<Prepared>, OpError>>()?;
        let step = ProductsStep::new(self.op.clone(), prepared, self.machine.clone());
        Ok(Prepared { workspace: step.workspace, step: Box::new(step) })
    }

    fn tunable(&self, inputs: &[Option<TensorDesc>], outputs: &[TensorDesc]) -> Option<Tunable> {
        // One choice stands for all where they are the same product.
        let own = self.op.inputs_of(inputs).zip(outputs.chunks(1));
        let mut tunable = self.parts.iter().zip(own).map(|(part, (inputs, outputs))| part.tunable(&inputs, outputs));
        let first = tunable.next()??;
        tunable.all(|other| other.is_some_and(|other| other.operator == first.operator)).then_some(first)
    }

    fn consumed(&self) -> SmallVec<[usize; 2]> {
        let mut first = 0;
        let mut consumed = SmallVec::new();
        for (part, kernel) in self.op.parts.iter().zip(&self.parts) {
            // Input 0 is the same for all and never packed.
            consumed.extend(kernel.consumed().into_iter().filter(|&own| own <= part.inputs).map(|own| first + own));
            first += part.inputs;
        }
        consumed
    }

    fn packed_bytes(&self) -> usize {
        self.parts.iter().map(Kernel::packed_bytes).sum()
    }
}

struct ProductsStep {
    op: Products,
    parts: Vec<Part>,
    /// Threads that share their tasks; `None` where some part is no loop over tasks: then one part runs after the other.
    threads: Option<usize>,
    workspace: usize,
    machine: Machine,
}

struct Part {
    step: Box<dyn Step>,
    /// Where its workspace starts.
    offset: usize,
    bytes: usize,
    /// Its first task among those of all parts.
    first: usize,
}

impl ProductsStep {
    fn new(op: Products, prepared: Vec<Prepared>, machine: Machine) -> ProductsStep {
        let tasks: Option<Vec<&dyn Tasks>> = prepared.iter().map(|prepared| prepared.step.tasks()).collect();
        let sharing: Option<Vec<Option<String>>> =
            tasks.as_ref().map(|tasks| tasks.iter().map(|tasks| tasks.sharing()).collect());
        let is_shared = match &sharing {
            // One after the other.
            None => true,
            Some(sharing) => sharing.iter().all(|text| text.is_some() && *text == sharing[0]),
        };
        // A choice may leave some threads out.
        let threads = tasks.as_ref().and_then(|tasks| tasks.iter().map(|tasks| tasks.threads()).min());
        let counts: Vec<usize> = tasks.iter().flatten().map(|tasks| tasks.count()).collect();
        let (mut parts, mut end, mut first) = (Vec::with_capacity(prepared.len()), 0, 0);
        for (index, Prepared { step, workspace }) in prepared.into_iter().enumerate() {
            let offset = if is_shared { 0 } else { end };
            end = end.max(offset + workspace.next_multiple_of(64));
            parts.push(Part { step, offset, bytes: workspace, first });
            first += counts.get(index).copied().unwrap_or(0);
        }
        ProductsStep { op, parts, threads, workspace: end, machine }
    }

    /// Calls `run` with a part's own inputs, output and workspace.
    fn with<R>(&self, index: usize, arguments: &Arguments<'_>, run: impl FnOnce(&Arguments<'_>) -> R) -> R {
        let part = &self.parts[index];
        let first = 1 + self.op.parts[..index].iter().map(|part| part.inputs).sum::<usize>();
        let own = arguments.inputs.get(first..).unwrap_or_default().iter().take(self.op.parts[index].inputs);
        let inputs: SmallVec<[Option<View<'_>>; INPUTS]> = arguments.inputs[..1].iter().chain(own).copied().collect();
        let workspace = arguments.workspace.part(part.offset, part.bytes);
        let outputs = &arguments.outputs[index..=index];
        run(&Arguments { inputs: &inputs, outputs, workspace, is_far: arguments.is_far })
    }
}

/// Inputs of a part without a list on the heap.
const INPUTS: usize = 12;

impl Step for ProductsStep {
    fn run(&self, arguments: &Arguments<'_>) {
        let Some(threads) = self.threads else {
            return (0..self.parts.len()).for_each(|index| {
                self.with(index, arguments, |own| self.parts[index].step.run(own));
            });
        };
        let tasks = |index: usize| self.parts[index].step.tasks();
        let mut count = 0;
        for index in 0..self.parts.len() {
            if let Some(tasks) = tasks(index) {
                self.with(index, arguments, |own| tasks.begin(own));
                count += tasks.count();
            }
        }
        self.machine.pool.run_tasks(threads.min(count), count, &|thread, task| {
            let index = self.parts.partition_point(|part| part.first <= task) - 1;
            if let Some(tasks) = tasks(index) {
                let task = task - self.parts[index].first;
                self.with(index, arguments, |own| tasks.run_task(own, thread, task));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check, floats};
    use halimede_graph::Op;
    use halimede_graph::ops::{Binary, Contract, Factors, Instruction, Map, ProductPart, Products};
    use halimede_tensor::{DType, Tensor};

    /// Products of an operand `x` by weights of so many columns, with a bias behind every other one.
    fn products(x: Tensor, columns: &[usize], multiply: Option<Factors>, tolerance: f32) {
        let k = x.shape()[x.rank() - 1];
        let (mut parts, mut inputs) = (Vec::new(), vec![Some(x.clone())]);
        for (index, &n) in columns.iter().enumerate() {
            // Weights as either of the two exporters has them.
            let (shape, labels) = if index == 1 { ([n, k], [8, 9]) } else { ([k, n], [9, 8]) };
            let rows = 0..x.rank() as u8 - 1;
            let (lhs, out) = (rows.clone().chain([9]).collect(), rows.chain([8]).collect());
            let is_biased = index % 2 == 0;
            let epilogue = is_biased.then(|| Map::binary(Binary::Add));
            let product = Contract { multiply, epilogue, ..Contract::new(lhs, labels.as_slice().into(), out) };
            parts.push(ProductPart { name: index.to_string(), product, inputs: 1 + usize::from(is_biased) });
            inputs.push(Some(floats(&shape, index as u32)));
            inputs.extend(is_biased.then(|| Some(floats(&[n], 7))));
        }
        let constants: Vec<usize> = (1..inputs.len()).collect();
        check(Op::Products(Products { parts }), &inputs, &constants, tolerance);
    }

    #[test]
    fn products_of_f32() {
        for (m, k) in [(1, 1), (3, 70), (130, 33), (13, 1024), (0, 8)] {
            products(floats(&[m, k], 3), &[40, 40, 40], None, 3e-6);
            products(floats(&[m, k], 3), &[5, 70, 33, 1], None, 3e-6);
        }
        products(floats(&[2, 5, 24], 3), &[16, 1, 300], None, 3e-6);
    }

    #[test]
    fn products_of_bf16() {
        for (m, k) in [(1, 3), (5, 64), (70, 33), (130, 1100)] {
            products(floats(&[m, k], 3), &[40, 40, 40], Some(Factors::Bf16), 1e-4);
            products(floats(&[m, k], 3), &[5, 70, 33, 1], Some(Factors::Bf16), 1e-4);
        }
        products(floats(&[2, 40, 24], 3), &[32, 32], Some(Factors::Bf16), 1e-4);
    }

    #[test]
    fn products_of_integers() {
        let mut scaled = Map::default();
        let sum = scaled.push(Instruction::Input(0));
        let sum = scaled.push(Instruction::Cast(DType::F32, sum));
        let scale = scaled.push(Instruction::Input(1));
        scaled.push(Instruction::Binary(Binary::Mul, sum, scale));
        for (m, k) in [(1, 3), (48, 128), (130, 1100)] {
            let numbers: Vec<u8> = (0..m * k).map(|i| (i * 151 + i / 7) as u8).collect();
            let mut inputs = vec![Some(Tensor::from_slice(&[m, k], &numbers).unwrap())];
            let mut parts = Vec::new();
            // Scales for each column, the sums as they are; one of them without a zero point.
            for (n, is_scaled) in [(40, true), (33, true), (40, false)] {
                let epilogue = is_scaled.then(|| scaled.clone());
                let product = Contract { multiply: Some(Factors::Integers), epilogue, ..Contract::matmul(0) };
                parts.push(ProductPart { name: n.to_string(), product, inputs: 2 + usize::from(is_scaled) });
                let weights: Vec<i8> = (0..k * n).map(|i| (i * 37 + n) as i8).collect();
                inputs.push(Some(Tensor::from_slice(&[k, n], &weights).unwrap()));
                inputs.push(is_scaled.then(|| Tensor::scalar(131u8)));
                let scales: Vec<f32> = (0..n).map(|column| 1.0 / (1 << (11 + column % 3)) as f32).collect();
                inputs.extend(is_scaled.then(|| Some(Tensor::from_slice(&[n], &scales).unwrap())));
            }
            let constants: Vec<usize> = (1..inputs.len()).collect();
            check(Op::Products(Products { parts }), &inputs, &constants, 1e-6);
        }
    }

    #[test]
    fn parts_that_are_no_loops_run_one_after_the_other() {
        let whole = |shape: &[usize]| {
            let numbers: Vec<i32> = (0..shape.iter().product::<usize>() as i32).collect();
            Some(Tensor::from_slice(shape, &numbers).unwrap())
        };
        let part = ProductPart { name: String::new(), product: Contract::matmul(0), inputs: 1 };
        let op = Op::Products(Products { parts: vec![part.clone(), part] });
        check(op, &[whole(&[5, 7]), whole(&[7, 3]), whole(&[7, 9])], &[1, 2], 0.0);
    }
}
