//! What can be chosen about products and convolutions, and what is expected of each choice.
//!
//! A setting stands for a constant of a driver: without a choice the constant counts. The expectations are
//! rough: they put candidates into an order, measurements decide. All of them are in seconds of one thread, for
//! a core with a second-level cache of some MiB.

use super::Machine;
use super::contract::Layout;
use super::conv::{Form, Window};
use crate::gemm::Micro;
use halimede_compute::TensorDesc;
use halimede_compute::tuning::{Choices, Config, Cost, Grid, Operator, Space, Tunable};
use halimede_graph::ops::{Contract, Conv, Factors, channels_first};
use halimede_tensor::{DType, Shape};

/// Version of what kernels do with a configuration, and of how fast that is: what was measured on another one
/// does not count.
pub const VERSION: u32 = 3;

/// Bytes a second between the caches, and multiplications and additions of f32 a second, of a usual core.
const BYTES_RATE: f64 = 2e10;
const F32_RATE: f64 = 1e11;
/// What a task reads again and again should not be more.
const L2_BYTES: usize = 1 << 20;
/// Numbers of an operand in the second-level cache that a task may keep at most.
const TASK_BYTES_MAX: usize = 4 << 20;

/// The settings of a configuration, as the drivers read them; `None` leaves one to its driver.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Blocking {
    /// Rows of a task: of a product, or of the output of a convolution on the matrix unit.
    pub rows: Option<usize>,
    /// Panels of the right operand that a task takes.
    pub panels: Option<usize>,
    /// Pixels of a block of a convolution in f32.
    pub pixels: Option<usize>,
    /// Elements of the summed axis that are multiplied at once there.
    pub depth: Option<usize>,
    /// Bytes of a block of a convolution by Winograd's algorithm.
    pub bytes: Option<usize>,
    /// Threads that share the work.
    pub threads: Option<usize>,
}

impl From<&Config> for Blocking {
    fn from(config: &Config) -> Blocking {
        Blocking {
            rows: config.number("rows"),
            panels: config.number("panels"),
            pixels: config.number("pixels"),
            depth: config.number("depth"),
            bytes: config.number("kib").map(|kib| kib << 10),
            threads: config.number("threads"),
        }
    }
}

/// The configurations that a driver has for an operation.
pub(super) struct Offer {
    space: Space,
    cost: Cost,
}

impl Offer {
    pub fn tunable(self, operator: Operator, choices: &Choices) -> Tunable {
        let Offer { space, cost } = self;
        // A file may hold anything.
        let chosen = choices.find(&operator).filter(|config| space.contains(config));
        Tunable { operator, space, chosen, cost }
    }

    /// For products: of f32, or on the matrix unit.
    pub fn of_contract(
        op: &Contract,
        inputs: &[Option<TensorDesc>],
        output: &TensorDesc,
        is_packed: bool,
        machine: &Machine,
    ) -> Option<Offer> {
        let (left, right) = (inputs.first()?.as_ref()?, inputs.get(1)?.as_ref()?);
        let layout = Layout::new(op, &left.shape, &right.shape, &output.shape, is_packed)?;
        let sizes = (layout.m, layout.n, layout.k);
        match op.multiply {
            None if [left, right, output].iter().all(|desc| desc.dtype == DType::F32) => {
                Some(of_f32_product(sizes, layout.batches(), machine))
            }
            None => None,
            Some(factors) => Some(of_tiled_product(sizes, factor_bytes(factors), machine)),
        }
    }

    /// For convolutions with constant weights and the channels last.
    pub fn of_conv(op: &Conv, inputs: &[Option<TensorDesc>], output: &TensorDesc, machine: &Machine) -> Option<Offer> {
        let (x, w) = (inputs.first()?.as_ref()?, inputs.get(1)?.as_ref()?);
        if !op.channels_last || op.transposed.is_some() || op.groups != 1 || x.shape.len() > 4 {
            return None;
        }
        let first = |shape: &[usize]| channels_first::<usize, Shape>(shape);
        let window = Window::new(op, &first(&x.shape), &w.shape, &first(&output.shape)).ok()?;
        match op.multiply {
            None if [x, w, output].iter().all(|desc| desc.dtype == DType::F32) => {
                Some(of_f32_conv(&window, Form::allowed(machine.winograd, op, &w.shape)?, machine))
            }
            None => None,
            Some(factors) if window.is_pointwise() => {
                let sizes = (window.batch * window.pixels(), window.rows, window.inputs);
                Some(of_tiled_product(sizes, factor_bytes(factors), machine))
            }
            Some(factors) => Some(of_tiled_conv(&window, factor_bytes(factors), machine)),
        }
    }
}

/// The form of Winograd's algorithm that a configuration names: `Some(None)` for none.
pub(super) fn form(config: &Config) -> Option<Option<Form>> {
    match config.word("algorithm")? {
        "f2" => Some(Some(Form::F2)),
        "f4" => Some(Some(Form::F4)),
        _ => Some(None),
    }
}

fn factor_bytes(factors: Factors) -> usize {
    match factors {
        Factors::Bf16 | Factors::F16 => 2,
        Factors::Integers => 1,
    }
}

/// The grid, with one more setting where there are threads to choose from.
fn with_threads(grid: Grid, machine: &Machine) -> Grid {
    match machine.pool.threads() {
        1 => grid,
        threads => grid.with("threads", [1, threads]),
    }
}

/// Those sizes that are below twice what there is: larger ones do the same as that.
fn up_to(sizes: &[usize], most: usize) -> Vec<usize> {
    let first = sizes.first().copied();
    let others = sizes.iter().skip(1).copied().filter(|&size| size < 2 * most);
    first.into_iter().chain(others).collect()
}

/// Seconds of arithmetic and of traffic, which is slower where the second-level cache does not hold `held` bytes.
fn seconds(operations: f64, traffic: f64, held: usize) -> f64 {
    let spilled = if held > L2_BYTES { 2.0 } else { 1.0 };
    operations / F32_RATE + traffic * spilled / BYTES_RATE
}

/// The seconds of a share of work: what one thread of those does.
fn shared(config: &Config, machine_threads: usize, seconds: f64) -> f64 {
    seconds / config.number("threads").unwrap_or(machine_threads) as f64
}

fn of_f32_product((m, n, k): (usize, usize, usize), batches: usize, machine: &Machine) -> Offer {
    let (nr, threads) = (Micro::new(machine.isa).nr, machine.pool.threads());
    let grid = Grid::default()
        .with("rows", up_to(&[48, 96, 192, 384], m))
        .with("panels", up_to(&[4, 8, 16, 32], n.div_ceil(nr)));
    let cost = move |config: &Config| {
        let rows = config.number("rows").unwrap_or(96).min(m.max(1));
        let columns = (config.number("panels").unwrap_or(8) * nr).min(n.max(1));
        // A task reads its rows and its panels; its part of the result is read again for each block of the depth.
        let tasks = (m.div_ceil(rows) * n.div_ceil(columns) * batches) as f64;
        let read = tasks * ((rows + columns) * k * 4) as f64;
        let held = (columns * k.min(256) + rows * columns) * 4;
        shared(config, threads, seconds((2 * m * n * k * batches) as f64, read, held))
    };
    Offer { space: Space(vec![with_threads(grid, machine)]), cost: Box::new(cost) }
}

fn of_tiled_product((m, n, k): (usize, usize, usize), bytes: usize, machine: &Machine) -> Offer {
    let threads = machine.pool.threads();
    let fits = |rows: &usize| rows * k * bytes <= TASK_BYTES_MAX;
    let rows: Vec<usize> = up_to(&[32, 64, 128, 256, 512, 1024], m).into_iter().filter(fits).collect();
    let grid = Grid::default().with("rows", rows);
    let cost = move |config: &Config| {
        let rows = config.number("rows").unwrap_or(512).min(m.max(1));
        // Every task reads all panels.
        let read = (m.div_ceil(rows) * n * k * bytes + m * k * bytes) as f64;
        shared(config, threads, seconds(0.0, read, rows * k * bytes))
    };
    Offer { space: Space(vec![with_threads(grid, machine)]), cost: Box::new(cost) }
}

fn of_tiled_conv(window: &Window, bytes: usize, machine: &Machine) -> Offer {
    let threads = machine.pool.threads();
    let [_, height, width] = window.out;
    let below = (window.kernel[1].max(1) - 1) * window.dilation[1];
    let (rows_in, columns_in) = (window.stride[1], window.stride[2]);
    // What rows of the output see, with their border.
    let line = (width * columns_in + window.kernel[2] * window.dilation[2]) * window.inputs * bytes;
    let seen = move |rows: usize| (rows * rows_in + below) * line;
    let parts = [1, 2, 3, 4, 6, 8, 12, 16, 24].map(|parts| height.div_ceil(parts).max(1));
    let grid = Grid::default().with("rows", parts.into_iter().filter(|&rows| seen(rows) <= TASK_BYTES_MAX));
    let weights = window.depth() * window.rows * bytes;
    let batch = window.batch;
    let cost = move |config: &Config| {
        let rows = config.number("rows").unwrap_or(height).max(1);
        let tasks = (batch * height.div_ceil(rows)) as f64;
        shared(config, threads, seconds(0.0, tasks * (weights + 2 * seen(rows)) as f64, seen(rows)))
    };
    Offer { space: Space(vec![with_threads(grid, machine)]), cost: Box::new(cost) }
}

fn of_f32_conv(window: &Window, forms: &[Form], machine: &Machine) -> Offer {
    let threads = machine.pool.threads();
    let (pixels, batch) = (window.batch * window.pixels(), window.batch);
    let (inputs, outputs, depth) = (window.inputs, window.rows, window.depth());
    let [_, height, width] = window.out;
    let direct = Grid::default()
        .with("algorithm", ["direct"])
        .with("pixels", up_to(&[96, 144, 192, 288, 384], pixels))
        .with("depth", up_to(&[256, 512, 1024], depth));
    let names = forms.iter().map(|form| match form {
        Form::F2 => "f2",
        Form::F4 | Form::F6 => "f4",
    });
    let winograd = Grid::default().with("algorithm", names).with("kib", [256, 512, 1024]);
    let cost = move |config: &Config| {
        let Some(form) = form(config).flatten() else {
            let block = config.number("pixels").unwrap_or(192);
            let read = (pixels.div_ceil(block) * depth * outputs * 4) as f64;
            let sums = (depth.div_ceil(config.number("depth").unwrap_or(512)) * pixels * outputs) as f64;
            let held = block * inputs * 4;
            return shared(config, threads, seconds((2 * pixels * depth * outputs) as f64, read + sums, held));
        };
        let points = form.points() * form.points();
        let tiles = batch * height.div_ceil(form.outputs()) * width.div_ceil(form.outputs());
        let tile_bytes = points * (inputs + outputs) * 4;
        let bytes = config.number("kib").unwrap_or(512) << 10;
        let blocks = (tiles * tile_bytes).div_ceil(bytes);
        let read = (blocks * points * inputs * outputs * 4 + 2 * tiles * tile_bytes) as f64;
        let operations = (2 * tiles * points * inputs * outputs) as f64;
        shared(config, threads, seconds(operations, read, bytes.min(tiles * tile_bytes)))
    };
    let grids = [direct, winograd].map(|grid| with_threads(grid, machine));
    Offer { space: Space(grids.into_iter().filter(|grid| !grid.is_empty()).collect()), cost: Box::new(cost) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_reach_the_drivers() {
        let config: Config = "algorithm=f4 depth=512 kib=256 panels=4 pixels=96 rows=48 threads=1".parse().unwrap();
        let all = Blocking {
            rows: Some(48),
            panels: Some(4),
            pixels: Some(96),
            depth: Some(512),
            bytes: Some(256 << 10),
            threads: Some(1),
        };
        assert_eq!((Blocking::from(&config), form(&config)), (all, Some(Some(Form::F4))));
        let empty = Config::default();
        assert_eq!((Blocking::from(&empty), form(&empty)), (Blocking::default(), None));
        assert_eq!(form(&empty.with("algorithm", "direct")), Some(None));
    }

    #[test]
    fn sizes_beyond_the_whole_are_left_out() {
        assert_eq!(up_to(&[32, 64, 128, 256], 100), [32, 64, 128]);
        assert_eq!(up_to(&[32, 64], 1), [32]);
    }
}
