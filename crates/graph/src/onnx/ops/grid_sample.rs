use super::common::required;
use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Case, Operator};
use crate::ops::{Call, Facts};
use crate::{Dim, Fact, OpError};
use halimede_tensor::{Tensor, Value, element_count};
use smallvec::smallvec;

/// Reads a tensor of any number of spatial axes at the points of a grid whose coordinates run from -1
/// to 1 (ONNX GridSample, opset 22; opset 16 knew two axes and called its modes otherwise).
pub static OPERATOR: Operator = Operator::new("GridSample").evaluate(evaluate).infer(infer).cases(cases);

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Nearest,
    Linear,
    Cubic,
}

#[derive(Clone, Copy, PartialEq)]
enum Border {
    Zeros,
    Edge,
    Reflection,
}

fn evaluate(call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let (x, grid) = (required(inputs, 0)?, required(inputs, 1)?);
    let mode = match call.attributes.text_or("mode", "linear")? {
        "nearest" => Mode::Nearest,
        "linear" | "bilinear" => Mode::Linear,
        "cubic" | "bicubic" => Mode::Cubic,
        other => return Err(OpError::invalid(format!("mode is '{other}'; ONNX knows nearest, linear and cubic"))),
    };
    let border = match call.attributes.text_or("padding_mode", "zeros")? {
        "zeros" => Border::Zeros,
        "border" => Border::Edge,
        "reflection" => Border::Reflection,
        other => return Err(OpError::invalid(format!("padding_mode '{other}' is not one of ONNX"))),
    };
    let align = call.attributes.flag_or("align_corners", false)?;
    let ([batch, channels, sizes @ ..], [grid_batch, places @ .., axes]) = (x.shape(), grid.shape()) else {
        return Err(OpError::invalid("the input must be [N, C, ...] and the grid [N, ..., axes]"));
    };
    if batch != grid_batch || sizes.len() != *axes || places.len() != *axes || *axes == 0 {
        let message = format!("a grid of shape {:?} does not fit an input of shape {:?}", grid.shape(), x.shape());
        return Err(OpError::invalid(message));
    }
    if sizes.contains(&0) {
        return Err(OpError::invalid("there is nothing to read in an empty input"));
    }
    let (volume, points) = (element_count(sizes)?, element_count(places)?);
    let (elements, coordinates) = (x.to_f64s()?, grid.to_f64s()?);
    let mut out = vec![0.0; element_count(&[*batch, *channels, points])?];
    for entry in 0..*batch {
        for point in 0..points {
            let at = &coordinates[(entry * points + point) * axes..][..*axes];
            // Coordinates come innermost axis first.
            let along: Vec<Vec<(Option<usize>, f64)>> =
                sizes.iter().zip(at.iter().rev()).map(|(&size, &at)| taps(at, size, mode, border, align)).collect();
            let weights = combine(&along, sizes);
            for channel in 0..*channels {
                let plane = &elements[(entry * channels + channel) * volume..][..volume];
                out[(entry * channels + channel) * points + point] =
                    weights.iter().map(|&(index, weight)| plane[index] * weight).sum();
            }
        }
    }
    let shape: Vec<usize> = [*batch, *channels].into_iter().chain(places.iter().copied()).collect();
    Ok(vec![Tensor::from_f64s(x.dtype(), &shape, &out)?.into()])
}

/// The elements along one axis that a coordinate reads, with their weights; `None` is a zero.
fn taps(at: f64, size: usize, mode: Mode, border: Border, align: bool) -> Vec<(Option<usize>, f64)> {
    let length = size as f64;
    let (low, high) = if align { (0.0, length - 1.0) } else { (-0.5, length - 0.5) };
    let mut at = if align { (at + 1.0) / 2.0 * (length - 1.0) } else { ((at + 1.0) * length - 1.0) / 2.0 };
    // Points of real grids lie halfway between pixels; in single precision they do so exactly.
    at = f64::from(at as f32);
    if mode == Mode::Nearest {
        at = at.round_ties_even();
    }
    if !(low..=high).contains(&at) {
        at = match border {
            Border::Zeros => at,
            Border::Edge => at.clamp(0.0, length - 1.0),
            Border::Reflection => reflect(at, low, high),
        };
    }
    let first = at.floor();
    let part = at - first;
    let element = |index: f64| -> Option<usize> {
        let inside = match border {
            Border::Zeros if !(0.0..length).contains(&index) => return None,
            Border::Zeros => index,
            Border::Edge => index.clamp(0.0, length - 1.0),
            Border::Reflection => reflect(index, low, high).clamp(0.0, length - 1.0),
        };
        Some(inside as usize)
    };
    match mode {
        Mode::Nearest => vec![(element(at), 1.0)],
        Mode::Linear => vec![(element(first), 1.0 - part), (element(first + 1.0), part)],
        Mode::Cubic => {
            let weights = cubic(part);
            (0..4).map(|tap| (element(first - 1.0 + tap as f64), weights[tap])).collect()
        }
    }
}

/// Mirrors a coordinate at both ends until it lies between them.
fn reflect(at: f64, low: f64, high: f64) -> f64 {
    let range = high - low;
    if range <= 0.0 {
        return low;
    }
    let beyond = (at - low).rem_euclid(2.0 * range);
    low + if beyond > range { 2.0 * range - beyond } else { beyond }
}

/// Keys' cubic convolution with the coefficient -0.75.
fn cubic(part: f64) -> [f64; 4] {
    let a = -0.75;
    let near = |x: f64| ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
    let far = |x: f64| ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a;
    [far(part + 1.0), near(part), near(1.0 - part), far(2.0 - part)]
}

/// Flat indices and weights of all combinations of the taps of each axis.
fn combine(along: &[Vec<(Option<usize>, f64)>], sizes: &[usize]) -> Vec<(usize, f64)> {
    along.iter().zip(sizes).fold(vec![(0, 1.0)], |before, (taps, size)| {
        let inside = || taps.iter().filter_map(|&(index, weight)| Some((index?, weight)));
        before.iter().flat_map(|&(flat, w)| inside().map(move |(index, v)| (flat * size + index, w * v))).collect()
    })
}

fn infer(_call: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    let [Some(x), Some(grid), ..] = inputs else { return Ok(Facts::new()) };
    Ok(smallvec![match (x.dtype, &x.shape, &grid.shape) {
        (Some(dtype), Some(x), Some(grid)) if x.len() >= 3 && grid.len() == x.len() => {
            let places: Vec<Dim> = grid[1..grid.len() - 1].to_vec();
            Fact::tensor(dtype, x[..2].iter().cloned().chain(places))
        }
        (dtype, _, _) => Fact::of_dtype(dtype),
    }])
}

fn cases() -> Vec<Case> {
    let case = |name, mode: &str, at: [f32; 2], expected: f32| {
        Case::new(name, &OPERATOR, 20)
            .attribute("mode", Attribute::String(mode.into()))
            .attribute("align_corners", Attribute::Int(1))
            .input(tensor(&[1, 1, 2, 2], &[1.0f32, 2.0, 3.0, 4.0]))
            .input(tensor(&[1, 1, 1, 2], &at))
            .output(tensor(&[1, 1, 1, 1], &[expected]))
    };
    vec![
        case("between four", "linear", [0.0, 0.0], 2.5),
        case("a corner", "nearest", [1.0, -0.9], 2.0),
        case("half outside", "linear", [3.0, -1.0], 0.0),
    ]
}
