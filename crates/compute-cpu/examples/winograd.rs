//! Winograd's forms beside multiplying pixels as they are: times and errors of single convolutions.
//!
//! ```console
//! $ cargo run --release -p halimede-compute-cpu --example winograd -- [balanced] [THREADS] [ROUNDS] [LAYER ...]
//! ```
//!
//! With `balanced` they are convolutions between others in that precision: data lie in bf16, results are bounded and
//! written in bf16, and pixels as they are are multiplied on the matrix unit. A layer is
//! `HEIGHTxWIDTHxINPUTSxOUTPUTS@BATCH`; without any, some of those of `docs/benchmarks/winograd.md`. Forms take turns, and
//! before each run the second-level cache is filled with something else, as it is between layers of a model. One thread is
//! measured in processor time, several in wall time. Printed are medians.

#![allow(clippy::unwrap_used, reason = "a measurement; it ends with what failed")]

use halimede_compute::{CompileOptions, Model, ModelOptions, Precision, Session};
use halimede_compute_cpu::{CpuOptions, CpuUnit, Winograd};
use halimede_graph::ops::{Binary, Conv, Factors, Instruction, Map, Op, Padding, Scalar};
use halimede_graph::{Builder, Fact, Graph};
use halimede_platform::cpu_time;
use halimede_tensor::{CastOptions, DType, Tensor, Value};
use std::time::{Duration, Instant};

const LAYERS: &[&str] = &[
    "56x56x64x64@1",
    "28x28x128x128@1",
    "14x14x256x256@1",
    "7x7x512x512@1",
    "56x56x64x64@8",
    "28x28x128x128@8",
    "14x14x256x256@8",
    "7x7x512x512@8",
    "160x160x32x32@1",
    "80x80x64x64@1",
    "40x40x128x128@1",
    "20x20x256x256@1",
    "20x20x512x512@1",
    "16x16x512x512@1",
    "14x14x128x128@1",
    "14x14x64x64@1",
    "10x10x256x256@1",
    "32x32x512x256@1",
    "112x112x16x16@1",
    "112x112x8x8@1",
    "56x56x24x24@1",
    "28x28x32x32@1",
    "224x224x3x64@1",
];

const EXACT_FORMS: &[Winograd] = &[Winograd::Never, Winograd::F2, Winograd::F4, Winograd::F6];
const BALANCED_FORMS: &[Winograd] = &[Winograd::Never, Winograd::F2OfBf16];

struct Layer {
    height: usize,
    width: usize,
    inputs: usize,
    outputs: usize,
    batch: usize,
}

impl Layer {
    fn parse(text: &str) -> Option<Layer> {
        let (sizes, batch) = text.split_once('@')?;
        let sizes: Vec<usize> = sizes.split('x').map(|size| size.parse().ok()).collect::<Option<_>>()?;
        let [height, width, inputs, outputs] = *sizes else { return None };
        Some(Layer { height, width, inputs, outputs, batch: batch.parse().ok()? })
    }

    fn graph(&self, weights: Tensor, precision: Precision) -> Graph {
        let mut graph = Graph::default();
        let is_exact = precision == Precision::Exact;
        let shape = [self.batch, self.height, self.width, self.inputs].map(Into::into);
        let x = graph.add_value("x", Fact::tensor(if is_exact { DType::F32 } else { DType::Bf16 }, shape));
        graph.inputs.push(x);
        let mut builder = Builder::new(&mut graph);
        let w = builder.constant(weights);
        let conv = Conv {
            strides: [1, 1].as_slice().into(),
            dilations: [1, 1].as_slice().into(),
            padding: Padding::Explicit([1, 1, 1, 1].as_slice().into()),
            groups: 1,
            transposed: None,
            channels_last: true,
            epilogue: (!is_exact).then(bounded_bf16),
            multiply: (!is_exact).then_some(Factors::Bf16),
        };
        let y = builder.add(Op::Conv(conv), &[x, w]).unwrap();
        graph.outputs = vec![y];
        graph
    }

    /// The definition in f64 at one place.
    fn exact(&self, x: &[f32], w: &[f32], [image, row, column, output]: [usize; 4]) -> f64 {
        let mut sum = 0.0;
        for (tap_y, tap_x) in (0..3).flat_map(|y| (0..3).map(move |x| (y, x))) {
            let (y, x_at) = ((row + tap_y).wrapping_sub(1), (column + tap_x).wrapping_sub(1));
            if y < self.height && x_at < self.width {
                let pixel = &x[((image * self.height + y) * self.width + x_at) * self.inputs..][..self.inputs];
                for (input, &x) in pixel.iter().enumerate() {
                    sum += f64::from(x) * f64::from(w[(output * self.inputs + input) * 9 + tap_y * 3 + tap_x]);
                }
            }
        }
        sum
    }

    /// The largest error at every 97th element, over the largest element.
    fn error(&self, x: &[f32], w: &[f32], y: &[f32]) -> f64 {
        let (mut error, mut most) = (0f64, 0f64);
        for at in (0..y.len()).step_by(97) {
            let (pixel, output) = (at / self.outputs, at % self.outputs);
            let (row, column) = (pixel / self.width % self.height, pixel % self.width);
            let exact = self.exact(x, w, [pixel / self.width / self.height, row, column, output]);
            (error, most) = (error.max((f64::from(y[at]) - exact).abs()), most.max(exact.abs()));
        }
        error / most
    }
}

/// What stands behind convolutions of a network in `balanced`, at a bound that leaves errors what they are.
fn bounded_bf16() -> Map {
    let mut map = Map::default();
    let sum = map.push(Instruction::Input(0));
    let most = map.push(Instruction::Constant(Scalar::Float(1e9, DType::F32)));
    let bounded = map.push(Instruction::Binary(Binary::Min, sum, most));
    map.push(Instruction::Cast(DType::Bf16, bounded));
    map
}

/// Numbers of a result, whatever it is in.
fn floats(bytes: &[u8], precision: Precision) -> Vec<f32> {
    match precision {
        Precision::Exact => bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
        _ => bytes.chunks_exact(2).map(|b| half::bf16::from_le_bytes(b.try_into().unwrap()).to_f32()).collect(),
    }
}

/// Normally distributed numbers: each the sum of twelve uniform ones.
fn normal(shape: &[usize], mut state: u64) -> Tensor {
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    let count: usize = shape.iter().product();
    let elements: Vec<f32> = (0..count).map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0).collect();
    Tensor::from_slice(shape, &elements).unwrap()
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn main() {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let precision = match arguments.first().map(String::as_str) {
        Some("balanced") => Precision::Balanced,
        _ => Precision::Exact,
    };
    let forms = match precision {
        Precision::Exact => EXACT_FORMS,
        _ => {
            arguments.remove(0);
            BALANCED_FORMS
        }
    };
    let number = |index: usize, default: usize| {
        arguments.get(index).map_or(default, |text| text.parse().expect("a number of threads, a number of rounds"))
    };
    let (threads, rounds) = (number(0, 1), number(1, 41));
    let layers: Vec<&str> = arguments.iter().skip(2).map(String::as_str).collect();
    let evictor = vec![1u8; 16 << 20];
    let names = if precision == Precision::Exact { "F2 | F4 | F6" } else { "F2 of bf16" };
    println!("| layer | direct µs | GFLOP/s | {names} | error direct | {names} |");
    println!("|---|---|---|{}", "---|".repeat(2 * forms.len() - 1));
    for name in if layers.is_empty() { LAYERS } else { &layers } {
        let layer = Layer::parse(name).expect("HEIGHTxWIDTHxINPUTSxOUTPUTS@BATCH");
        let w = normal(&[layer.outputs, layer.inputs, 3, 3], 1);
        let mut x = normal(&[layer.batch, layer.height, layer.width, layer.inputs], 2);
        let narrow = x.cast(DType::Bf16, CastOptions::default()).unwrap();
        if precision != Precision::Exact {
            x = narrow.cast(DType::F32, CastOptions::default()).unwrap();
        }
        let inputs = [Value::from(if precision == Precision::Exact { x.clone() } else { narrow })];
        let (w_elements, x_elements) = (w.slice::<f32>().unwrap(), x.slice::<f32>().unwrap());
        let mut sessions: Vec<Session> = forms
            .iter()
            .map(|&winograd| {
                let options = CpuOptions { threads: Some(threads), winograd, ..CpuOptions::default() };
                let graph = layer.graph(w.clone(), precision);
                let compile = CompileOptions { precision, ..CompileOptions::default() };
                let model_options = ModelOptions { compile, ..ModelOptions::default() };
                let model = Model::compile(graph, &CpuUnit::new(&options), &model_options);
                model.unwrap().session()
            })
            .collect();
        let errors: Vec<String> = sessions
            .iter_mut()
            .map(|session| {
                session.run(&inputs).unwrap();
                let (_, bytes) = session.output(0).unwrap();
                format!("{:.1e}", layer.error(x_elements, w_elements, &floats(bytes, precision)))
            })
            .collect();
        let mut times = vec![Vec::new(); forms.len()];
        for _ in 0..rounds {
            for (session, times) in sessions.iter_mut().zip(&mut times) {
                std::hint::black_box(evictor.iter().step_by(64).map(|&byte| u64::from(byte)).sum::<u64>());
                let (wall, processor) = (Instant::now(), cpu_time::process().unwrap());
                session.run(&inputs).unwrap();
                let processor = cpu_time::process().unwrap() - processor;
                times.push(if threads == 1 { processor } else { wall.elapsed() });
            }
        }
        let medians: Vec<f64> = times.iter_mut().map(|times| median(times).as_secs_f64() * 1e6).collect();
        let operations = 18 * layer.batch * layer.height * layer.width * layer.inputs * layer.outputs;
        let speed = operations as f64 / medians[0] / 1e3;
        let ratios: Vec<String> = medians[1..].iter().map(|time| format!("{:.2}", medians[0] / time)).collect();
        println!("| {name} | {:.0} | {speed:.0} | {} | {} |", medians[0], ratios.join(" | "), errors.join(" | "));
    }
}
