//! What can be chosen about products and convolutions, and what is expected of each choice.
//!
//! A setting stands for a constant of a driver: without a choice the constant counts. The expectations are
//! rough: they put candidates into an order, measurements decide. All of them are in seconds of one thread, for
//! a core with a second-level cache of some MiB.

use super::Machine;
use super::contract::{self, Layout, TASK_PANELS, TASK_ROWS};
use super::conv::{self, Form, Window};
use crate::gemm::{self, Micro};
use crate::matrix::{BLOCK, Factor, MatrixUnit};
use half::bf16;
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
/// Bytes a second from the second-level cache, as many times as between the caches on the whole.
const NEAR_RATIO: f64 = 4.0;

/// Sizes of a block of Winograd's algorithm, the usual one in the middle.
const WINOGRAD_KIB: [usize; 3] = [conv::BLOCK_BYTES >> 11, conv::BLOCK_BYTES >> 10, conv::BLOCK_BYTES >> 9];

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
    /// What the outer loop goes over.
    pub order: Option<Order>,
    /// How the left operand, or the data of a convolution, is laid for the driver.
    pub pack: Option<Pack>,
}

/// What the outer loop of a product goes over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Rows of the left operand: each meets all panels while it is near.
    Rows,
    /// Panels of the right operand: each meets all rows.
    Panels,
}

/// How a driver lays an operand for itself. Which of these it has depends on driver and operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pack {
    /// It is read where it lies.
    None,
    /// Copied row by row.
    Rows,
    /// Copied into tiles of the micro-kernel, or of the matrix unit.
    Tiles,
    /// Copied with all channels of a pixel together.
    Pixels,
    /// Copied with a block of pixels for each step of channels.
    Blocks,
}

impl Order {
    const ALL: [Order; 2] = [Order::Rows, Order::Panels];

    const fn name(self) -> &'static str {
        match self {
            Order::Rows => "rows",
            Order::Panels => "panels",
        }
    }

    fn of(config: &Config) -> Option<Order> {
        let word = config.word("order")?;
        Order::ALL.into_iter().find(|order| order.name() == word)
    }
}

impl Pack {
    const ALL: [Pack; 5] = [Pack::None, Pack::Rows, Pack::Tiles, Pack::Pixels, Pack::Blocks];

    fn name(self) -> &'static str {
        match self {
            Pack::None => "none",
            Pack::Rows => "rows",
            Pack::Tiles => "tiles",
            Pack::Pixels => "pixels",
            Pack::Blocks => "blocks",
        }
    }

    fn of(config: &Config) -> Option<Pack> {
        let word = config.word("pack")?;
        Pack::ALL.into_iter().find(|pack| pack.name() == word)
    }
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
            order: Order::of(config),
            pack: Pack::of(config),
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
        match op.multiply {
            None if [left, right, output].iter().all(|desc| desc.dtype == DType::F32) => {
                Some(of_f32_product(&layout, machine))
            }
            // Which kernel multiplies f16 is a matter of how many rows there are.
            None | Some(Factors::F16) => None,
            Some(factors) => {
                let left = if layout.swapped { right.dtype } else { left.dtype };
                Some(of_tiled_product(&layout, Operands { factors, left }, output, machine))
            }
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
            None | Some(Factors::F16) => None,
            Some(factors) if window.is_pointwise() => {
                let layout = Layout::plain(window.batch * window.pixels(), window.rows, window.inputs);
                Some(of_tiled_product(&layout, Operands { factors, left: x.dtype }, output, machine))
            }
            Some(factors) => {
                let image = [window.batch, window.out[1], window.out[2]];
                let by_winograd = Form::choice(op, &w.shape, image, machine);
                let operands = Operands { factors, left: x.dtype };
                Some(of_tiled_conv(&window, operands, output, by_winograd, machine))
            }
        }
    }
}

/// What is multiplied on the matrix unit, and what the left operand, or the data, has.
#[derive(Clone, Copy)]
struct Operands {
    factors: Factors,
    left: DType,
}

/// What is asked of a unit of some factors.
trait OfUnit {
    type Answer;
    fn of<F: Factor>(self, unit: MatrixUnit<F>, are_factors: bool) -> Self::Answer;
}

impl Operands {
    fn bytes(self) -> usize {
        match self.factors {
            Factors::Bf16 | Factors::F16 => 2,
            Factors::Integers => 1,
        }
    }

    /// Asks the unit that multiplies them, where there is one.
    fn ask<Q: OfUnit>(self, question: Q, machine: &Machine) -> Option<Q::Answer> {
        let integers = machine.integers;
        Some(match (self.factors, self.left, integers.signed()) {
            (Factors::Bf16, left, _) => question.of::<bf16>(machine.matrix?, left == DType::Bf16),
            (Factors::F16, ..) => return None,
            (Factors::Integers, DType::I8, Some(signed)) => question.of::<i8>(signed, true),
            (Factors::Integers, left, _) => question.of::<u8>(integers, left == DType::U8),
        })
    }
}

/// How rows of a left operand can be laid, and how they are where nothing is chosen.
struct PacksOfProduct<'a>(&'a Layout);

impl OfUnit for PacksOfProduct<'_> {
    type Answer = (Vec<Pack>, Pack);

    fn of<F: Factor>(self, unit: MatrixUnit<F>, are_factors: bool) -> (Vec<Pack>, Pack) {
        let packs = contract::packs(self.0, unit, are_factors).to_vec();
        (packs, contract::usual_pack(self.0, unit, are_factors))
    }
}

/// The same of the data of a convolution, and whether what its rows see may stay near while panels stream past.
struct PacksOfConv<'a>(&'a Window);

impl OfUnit for PacksOfConv<'_> {
    type Answer = (Vec<Pack>, Pack, bool);

    fn of<F: Factor>(self, unit: MatrixUnit<F>, are_factors: bool) -> (Vec<Pack>, Pack, bool) {
        let packs = conv::tiled::packs::<F>(self.0, are_factors).to_vec();
        (packs, conv::tiled::usual_pack(self.0, unit, are_factors), !unit.takes_lines() && self.0.taps() > 1)
    }
}

/// The form of Winograd's algorithm that a configuration names for products of such factors, or of f32: `Some(None)` for none.
pub(super) fn form(config: &Config, multiply: Option<Factors>) -> Option<Option<Form>> {
    match (config.word("algorithm")?, multiply) {
        ("f2", None) => Some(Some(Form::F2)),
        ("f2", Some(_)) => Some(Some(Form::F2OfBf16)),
        ("f4", None) => Some(Some(Form::F4)),
        _ => Some(None),
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

/// The grid with orders, where there are several, and the ways to lay an operand; of both the usual ones.
fn with_forms(grid: Grid, is_cut: bool, usual: Option<Order>, (packs, usual_pack): (&[Pack], Pack)) -> Grid {
    let orders = Order::ALL.into_iter().filter(|_| is_cut).map(Order::name);
    let usual = usual.filter(|_| is_cut).map(Order::name);
    let packs = packs.iter().map(|pack| pack.name());
    grid.optional("order", orders, usual).optional("pack", packs, Some(usual_pack.name()))
}

/// The order in which a matrix unit goes where nothing is chosen, if that does not depend on where the result lies and on how the
/// work is cut.
fn usual_order(output: &TensorDesc, stays: bool) -> Option<Order> {
    /// Results of fewer bytes lie near.
    const NEAR_BYTES: usize = 1 << 20;
    (output.bytes() < NEAR_BYTES && !stays).then_some(Order::Panels)
}

fn of_f32_product(layout: &Layout, machine: &Machine) -> Offer {
    let (nr, threads) = (Micro::new(machine.isa).nr, machine.pool.threads());
    let (m, n, k, batches, left) = (layout.m, layout.n, layout.k, layout.batches(), layout.left);
    let all = n.div_ceil(nr);
    let (fewer_rows, all_rows): (Vec<usize>, Vec<usize>) =
        up_to(&[48, 96, 192, 384], m).into_iter().partition(|&rows| rows < m);
    let (fewer_panels, all_panels): (Vec<usize>, Vec<usize>) =
        up_to(&[4, 8, 16, 32], all).into_iter().partition(|&panels| panels < all);
    // Rows that meet one panel, or few rows, are not copied.
    let copied = if left.k == 1 { Pack::Rows } else { Pack::Tiles };
    let collide = gemm::rows_collide(left.free);
    let (packs, usual) = ([Pack::None, copied], if collide { copied } else { Pack::None });
    let packs = if all > 1 && m > gemm::FEW_ROWS { &packs[..] } else { &[usual] };
    let with_forms = |grid: Grid, is_cut: bool| with_forms(grid, is_cut, Some(Order::Panels), (packs, usual));
    let grid = |rows: &[usize], panels: &[usize], is_cut: bool| {
        let grid = Grid::default().with("rows", rows.to_vec()).with("panels", panels.to_vec());
        with_threads(with_forms(grid, is_cut), machine)
    };
    // Orders are two where both rows and panels are cut.
    let grids = [
        grid(&fewer_rows, &fewer_panels, true),
        grid(&fewer_rows, &all_panels, false),
        grid(&all_rows, &fewer_panels, false),
        grid(&all_rows, &all_panels, false),
        // As the driver cuts them.
        with_forms(Grid::default(), m > TASK_ROWS && all > TASK_PANELS[0]),
    ];
    let cost = move |config: &Config| {
        let rows = config.number("rows").unwrap_or(TASK_ROWS).min(m.max(1));
        let columns = (config.number("panels").unwrap_or(TASK_PANELS[0]) * nr).min(n.max(1));
        let (row_tasks, panel_tasks) = (m.div_ceil(rows), n.div_ceil(columns));
        let tasks = (row_tasks * panel_tasks * batches) as f64;
        let bytes = |count: usize| (count * k * 4) as f64;
        // A task reads its rows and its panels, of which those of the outer loop stay near, if there is room; its part
        // of the result is read again for each block of the depth.
        let (outer, kept) = match Order::of(config) {
            Some(Order::Rows) => (row_tasks * batches, bytes(rows)),
            _ => (panel_tasks * batches, bytes(columns)),
        };
        let again = if kept <= L2_BYTES as f64 { tasks / NEAR_RATIO + outer as f64 } else { tasks };
        let mut read = tasks * (bytes(rows) + bytes(columns) - kept) + again * kept;
        if Pack::of(config).unwrap_or(usual) != Pack::None {
            read += 2.0 * tasks * bytes(rows);
        } else if collide {
            // Rows that evict each other come again for each panel, about half of them.
            read += tasks * columns.div_ceil(nr) as f64 * bytes(rows) / (2.0 * NEAR_RATIO);
        }
        let held = (columns * k.min(256) + rows * columns) * 4;
        shared(config, threads, seconds((2 * m * n * k * batches) as f64, read, held))
    };
    Offer { space: space(grids), cost: Box::new(cost) }
}

fn of_tiled_product(layout: &Layout, operands: Operands, output: &TensorDesc, machine: &Machine) -> Offer {
    let (threads, bytes) = (machine.pool.threads(), operands.bytes());
    let (m, n, k, row) = (layout.m, layout.n, layout.k, layout.left.free);
    let fits = |rows: &usize| rows * k * bytes <= TASK_BYTES_MAX;
    let rows: Vec<usize> = up_to(&[32, 64, 128, 256, 512, 1024], m).into_iter().filter(fits).collect();
    let (mut packs, usual) = operands.ask(PacksOfProduct(layout), machine).unwrap_or((Vec::new(), Pack::Tiles));
    // Of a few rows it makes no difference.
    packs.retain(|pack| m > gemm::FEW_ROWS || *pack == usual);
    let (is_cut, panels) = (m > BLOCK && n > BLOCK, n.div_ceil(BLOCK));
    let order = usual_order(output, false);
    let with_forms = |grid: Grid| with_forms(grid, is_cut, order, (&packs, usual));
    let grids = [with_threads(with_forms(Grid::default().with("rows", rows)), machine), with_forms(Grid::default())];
    let cost = move |config: &Config| {
        let rows = config.number("rows").unwrap_or(512).min(m.max(1));
        let (left, right) = ((m * k * bytes) as f64, (n * k * bytes) as f64);
        // Every task reads all panels. Every block of rows meets every panel, which or whose rows are near.
        let (held, near) = match Order::of(config) {
            Some(Order::Rows) => (n * k * bytes, m.div_ceil(BLOCK) as f64 * right),
            _ => (rows * k * bytes, panels as f64 * left),
        };
        let packed = match Pack::of(config).unwrap_or(usual) {
            Pack::None if (row * bytes).is_multiple_of(gemm::CACHE_PERIOD) => near,
            Pack::None => 0.0,
            _ => 2.0 * left,
        };
        let read = m.div_ceil(rows) as f64 * right + left + packed + near / NEAR_RATIO;
        shared(config, threads, seconds(0.0, read, held))
    };
    Offer { space: space(grids), cost: Box::new(cost) }
}

/// `by_winograd` is whether its algorithm is taken where nothing is chosen, and `None` where it is no choice.
fn of_tiled_conv(
    window: &Window,
    operands: Operands,
    output: &TensorDesc,
    by_winograd: Option<bool>,
    machine: &Machine,
) -> Offer {
    /// How many times as fast as f32 a unit of bf16 multiplies. Where there is one algorithm, all configurations multiply as often.
    const UNIT_RATIO: f64 = 4.0;
    let (threads, bytes) = (machine.pool.threads(), operands.bytes());
    let [_, height, width] = window.out;
    let below = (window.kernel[1].max(1) - 1) * window.dilation[1];
    let (rows_in, columns_in) = (window.stride[1], window.stride[2]);
    // What rows of the output see, with their border.
    let line = (width * columns_in + window.kernel[2] * window.dilation[2]) * window.inputs * bytes;
    let seen = move |rows: usize| (rows * rows_in + below) * line;
    let parts = [1, 2, 3, 4, 6, 8, 12, 16, 24].map(|parts| height.div_ceil(parts).max(1));
    let rows = parts.into_iter().filter(|&rows| seen(rows) <= TASK_BYTES_MAX);
    let (packs, usual, stays) = operands.ask(PacksOfConv(window), machine).unwrap_or((Vec::new(), Pack::Pixels, false));
    let is_cut = window.rows > BLOCK && window.batch * height * width > BLOCK;
    let order = usual_order(output, stays);
    let with_forms = |grid: Grid| {
        let grid = with_forms(grid, is_cut, order, (&packs, usual));
        match by_winograd {
            None => grid,
            Some(false) => grid.optional("algorithm", ["direct"], Some("direct")),
            // Settings of products alone would leave the algorithm to the rule, and so do nothing.
            Some(true) => grid.with("algorithm", ["direct"]),
        }
    };
    let winograd = match by_winograd {
        Some(_) => with_threads(Grid::default().with("algorithm", ["f2"]).with("kib", WINOGRAD_KIB), machine),
        None => Grid::default(),
    };
    let grids =
        [with_threads(with_forms(Grid::default().with("rows", rows)), machine), with_forms(Grid::default()), winograd];
    let (inputs, outputs) = (window.inputs, window.rows);
    let products = (2 * window.batch * height * width * window.depth() * outputs) as f64;
    let weights = window.depth() * window.rows * bytes;
    let (batch, taps, panels) = (window.batch, window.taps().max(1), window.rows.div_ceil(BLOCK));
    let cost = move |config: &Config| {
        if let Some(form) = form(config, Some(operands.factors)).flatten() {
            let of_tile = [inputs * bytes, outputs * size_of::<f32>()];
            let (operations, read, held) = of_winograd(config, form, [batch, height, width], of_tile, weights / taps);
            return shared(config, threads, seconds(operations * products / UNIT_RATIO, read, held));
        }
        let rows = config.number("rows").unwrap_or(height).max(1);
        let tasks = (batch * height.div_ceil(rows)) as f64;
        // Every block of pixels meets every panel, which or whose pixels are near.
        let (held, near) = match Order::of(config) {
            Some(Order::Rows) => (weights, (rows * width).div_ceil(BLOCK) * weights),
            _ => (seen(rows), panels * taps * seen(rows)),
        };
        let copied = if Pack::of(config).is_none_or(|pack| pack == usual) { 2 } else { 3 } * seen(rows);
        let read = tasks * ((weights + copied) as f64 + near as f64 / NEAR_RATIO);
        shared(config, threads, seconds(products / UNIT_RATIO, read, held))
    };
    Offer { space: space(grids), cost: Box::new(cost) }
}

/// The grids in which there is something to choose.
fn space(grids: impl IntoIterator<Item = Grid>) -> Space {
    Space(grids.into_iter().filter(|grid| !grid.is_empty()).collect())
}

/// Of Winograd's algorithm for `[batch, height, width]` outputs, with so many bytes of each input and each product of a point of a tile, and so
/// many of weights for each: multiplications for each that the definition has, bytes to read, and those that stay near.
fn of_winograd(
    config: &Config,
    form: Form,
    image: [usize; 3],
    of_tile: [usize; 2],
    weights: usize,
) -> (f64, f64, usize) {
    let (points, tiles) = (form.points() * form.points(), form.tiles(image));
    let all_bytes = tiles * points * (of_tile[0] + of_tile[1]);
    let bytes = config.number("kib").unwrap_or(WINOGRAD_KIB[1]) << 10;
    // What is made of a block stays near until it is read.
    let read = (all_bytes.div_ceil(bytes) * points * weights) as f64 + 2.0 * all_bytes as f64 / NEAR_RATIO;
    (1.0 / form.saved(image).max(f64::MIN_POSITIVE), read, bytes.min(all_bytes))
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
    let names = forms.iter().filter_map(|form| match form {
        Form::F2 => Some("f2"),
        Form::F4 => Some("f4"),
        Form::F6 | Form::F2OfBf16 => None,
    });
    let winograd = Grid::default().with("algorithm", names).with("kib", WINOGRAD_KIB);
    let cost = move |config: &Config| {
        let products = (2 * pixels * depth * outputs) as f64;
        let Some(form) = form(config, None).flatten() else {
            let block = config.number("pixels").unwrap_or(192);
            let read = (pixels.div_ceil(block) * depth * outputs * 4) as f64;
            let sums = (depth.div_ceil(config.number("depth").unwrap_or(512)) * pixels * outputs) as f64;
            let held = block * inputs * 4;
            return shared(config, threads, seconds(products, read + sums, held));
        };
        let of_tile = [inputs, outputs].map(|channels| channels * size_of::<f32>());
        let (operations, read, held) =
            of_winograd(config, form, [batch, height, width], of_tile, inputs * outputs * size_of::<f32>());
        shared(config, threads, seconds(operations * products, read, held))
    };
    let grids = [direct, winograd].map(|grid| with_threads(grid, machine));
    Offer { space: space(grids), cost: Box::new(cost) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_reach_the_drivers() {
        let config = "algorithm=f4 depth=512 kib=256 order=rows pack=none panels=4 pixels=96 rows=48 threads=1";
        let config: Config = config.parse().unwrap();
        let all = Blocking {
            rows: Some(48),
            panels: Some(4),
            pixels: Some(96),
            depth: Some(512),
            bytes: Some(256 << 10),
            threads: Some(1),
            order: Some(Order::Rows),
            pack: Some(Pack::None),
        };
        assert_eq!((Blocking::from(&config), form(&config, None)), (all, Some(Some(Form::F4))));
        let empty = Config::default();
        assert_eq!((Blocking::from(&empty), form(&empty, None)), (Blocking::default(), None));
        assert_eq!(form(&empty.clone().with("algorithm", "direct"), None), Some(None));
        let f2 = empty.with("algorithm", "f2");
        assert_eq!(form(&f2, None), Some(Some(Form::F2)));
        assert_eq!(form(&f2, Some(Factors::Bf16)), Some(Some(Form::F2OfBf16)));
    }

    #[test]
    fn sizes_beyond_the_whole_are_left_out() {
        assert_eq!(up_to(&[32, 64, 128, 256], 100), [32, 64, 128]);
        assert_eq!(up_to(&[32, 64], 1), [32]);
    }
}
