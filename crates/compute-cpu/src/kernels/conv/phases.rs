//! Transposed convolutions on data whose channels lie last.
//!
//! With a stride of `s`, the output pixels at one remainder of `s` see the same taps of the kernel, each
//! at a fixed distance in the data: such a phase is a plain convolution with some of the taps, whose
//! pixels lie `s` apart in the output.

use super::pixels::{Lying, Target};
use super::window::Window;
use halimede_compute::{Arguments, Prepared, Step};
use halimede_graph::OpError;
use halimede_graph::ops::{Conv, Padding};
use halimede_tensor::Tensor;
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// Weights of every phase, packed for the kernel that runs them all.
pub(super) struct Phases<W> {
    pub shape: Vec<usize>,
    phases: Vec<Phase<W>>,
}

struct Phase<W> {
    /// Remainder of the output's row and column.
    remainder: [usize; 2],
    axes: [PhaseAxis; 2],
    weights: Arc<W>,
}

/// Which pixels of the output come of which weights.
pub(super) type Parts<W> = SmallVec<[(Target, Arc<W>); 4]>;

/// The taps that the output pixels at one remainder see along one axis, in the order of the data.
#[derive(Debug, PartialEq)]
struct PhaseAxis {
    taps: Vec<usize>,
    /// How far before `pixel / stride` in the data the first of them lies.
    before: isize,
    /// Pixels of the data from one of them to the next.
    apart: usize,
}

impl PhaseAxis {
    fn new(remainder: usize, kernel: usize, (stride, dilation): (usize, usize), border: i64) -> PhaseAxis {
        // Tap `t` of the pixel that the remainder is sees the data at this place, if that is a whole number, divided by the stride.
        let place = |tap: usize| remainder as i64 + border - (tap * dilation) as i64;
        let taps: Vec<usize> = (0..kernel).rev().filter(|&tap| place(tap).rem_euclid(stride as i64) == 0).collect();
        let before = taps.first().map_or(0, |&tap| -place(tap).div_euclid(stride as i64));
        PhaseAxis { taps, before: before as isize, apart: dilation / common_divisor(stride, dilation) }
    }
}

/// The greatest number that divides both, which are not zero.
fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// Whether a transposed convolution falls into phases: over one axis or two, by taps that do not depend on the size of the data.
pub(super) fn fit(op: &Conv, weights: &[usize]) -> bool {
    let is_fixed = op.transposed.as_ref().is_some_and(|transposed| transposed.output_shape.is_empty());
    let inputs = weights.first().copied().unwrap_or(0);
    let fits = matches!(op.padding, Padding::Explicit(_)) && (3..=4).contains(&weights.len());
    is_fixed && fits && inputs.is_multiple_of(op.groups.max(1))
}

impl<W> Phases<W> {
    /// Packs by `pack` what each phase sees of the weights; `None` where they do not [`fit`].
    pub fn pack(op: &Conv, tensor: &Tensor, pack: impl Fn(&Lying<'_>) -> Option<W>) -> Option<Phases<W>> {
        let shape = tensor.shape().to_vec();
        let (&channels, &rows) = (shape.first()?, shape.get(1)?);
        let spatial = shape.len() - 2;
        let Padding::Explicit(pads) = &op.padding else { return None };
        let groups = op.groups.max(1);
        if !fit(op, &shape) {
            return None;
        }
        // A missing axis stands in front, with one tap.
        let axis = |axis: usize| match (axis + spatial).checked_sub(2) {
            Some(own) => {
                let step = |steps: &[usize]| steps.get(own).copied().unwrap_or(1).max(1);
                (shape[2 + own], (step(&op.strides), step(&op.dilations)), pads.get(own).copied().unwrap_or(0))
            }
            None => (1, (1, 1), 0),
        };
        let ((height, down, top), (width, across, left)) = (axis(0), axis(1));
        let mut phases = Vec::new();
        for (y, x) in (0..down.0).flat_map(|y| (0..across.0).map(move |x| (y, x))) {
            let axes = [PhaseAxis::new(y, height, down, top), PhaseAxis::new(x, width, across, left)];
            let taps: Vec<usize> =
                axes[0].taps.iter().flat_map(|y| axes[1].taps.iter().map(move |x| y * width + x)).collect();
            let (row_stride, channels) = (height * width, channels / groups);
            let channel_stride = rows * row_stride;
            let group_stride = channels * channel_stride;
            let (row, apart, taps) = (axes[1].taps.len(), axes[1].apart, &taps);
            let lying = Lying { groups, rows, channels, group_stride, row_stride, channel_stride, taps, row, apart };
            phases.push(Phase { remainder: [y, x], axes, weights: Arc::new(pack(&lying)?) });
        }
        Some(Phases { shape, phases })
    }

    pub fn weights(&self) -> impl Iterator<Item = &W> {
        self.phases.iter().map(|phase| &*phase.weights)
    }

    /// The phases for sizes: together those that see the same pixels, as all do where the kernel is as large as the stride.
    /// `window` is that of the transposed convolution.
    fn groups(&self, window: &Window) -> SmallVec<[(Window, Parts<W>); 4]> {
        let size = [window.out[1], window.out[2]];
        let apart = [window.stride[1], window.stride[2]];
        let mut groups: SmallVec<[(Window, Parts<W>); 4]> = SmallVec::new();
        for phase in &self.phases {
            let out = [0, 1].map(|axis| size[axis].saturating_sub(phase.remainder[axis]).div_ceil(apart[axis]));
            if out.contains(&0) {
                continue;
            }
            let [down, across] = &phase.axes;
            let window = Window {
                out: [1, out[0], out[1]],
                kernel: [1, down.taps.len(), across.taps.len()],
                stride: [1; 3],
                dilation: [1, down.apart, across.apart],
                before: [0, down.before, across.before],
                ..window.clone()
            };
            let part = (Target { size, first: phase.remainder, step: apart }, phase.weights.clone());
            match groups.iter_mut().find(|group| group.0 == window) {
                Some(group) => group.1.push(part),
                None => groups.push((window, smallvec![part])),
            }
        }
        groups
    }

    /// How far any of them looks beyond the data.
    pub fn border(&self, window: &Window) -> usize {
        self.groups(window).iter().map(|(window, _)| window.border()).max().unwrap_or(0)
    }

    /// The phases for sizes, prepared by `prepare`, in [`Phases::groups`].
    pub fn prepare(
        &self,
        window: &Window,
        prepare: impl Fn(Window, Parts<W>) -> Result<Prepared, OpError>,
    ) -> Result<Prepared, OpError> {
        let steps = self.groups(window).into_iter().map(|(window, parts)| prepare(window, parts));
        let steps: SmallVec<[Prepared; 4]> = steps.collect::<Result<_, _>>()?;
        Ok(in_turn(steps))
    }
}

/// Steps that run one after the other, and share their workspace.
pub(super) fn in_turn(steps: SmallVec<[Prepared; 4]>) -> Prepared {
    let workspace = steps.iter().map(|step| step.workspace).max().unwrap_or(0);
    Prepared { step: Box::new(InTurn { steps }), workspace }
}

struct InTurn {
    steps: SmallVec<[Prepared; 4]>,
}

impl Step for InTurn {
    fn run(&self, arguments: &Arguments<'_>) {
        self.steps.iter().for_each(|prepared| prepared.step.run(arguments));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taps_of_a_phase_lie_in_the_order_of_the_data() {
        // out[o] = sum over i, t with 2i + t - 1 = o: even outputs see tap 1, odd ones taps 0 and 2.
        assert_eq!(PhaseAxis::new(0, 3, (2, 1), 1), PhaseAxis { taps: vec![1], before: 0, apart: 1 });
        assert_eq!(PhaseAxis::new(1, 3, (2, 1), 1), PhaseAxis { taps: vec![2, 0], before: 0, apart: 1 });
        // Without a border output 0 sees tap 0 of element 0 and tap 2 of the element before.
        assert_eq!(PhaseAxis::new(0, 3, (2, 1), 0), PhaseAxis { taps: vec![2, 0], before: 1, apart: 1 });
        assert_eq!(PhaseAxis::new(2, 2, (3, 1), 0), PhaseAxis { taps: vec![], before: 0, apart: 1 });
        // out[o] = sum over i, t with 2i + 3t = o: output 0 sees tap 0 of element 0, and tap 2 three elements before.
        assert_eq!(PhaseAxis::new(0, 3, (2, 3), 0), PhaseAxis { taps: vec![2, 0], before: 3, apart: 3 });
        // With 2i + 2t, even outputs see every tap, and odd ones none.
        assert_eq!(PhaseAxis::new(0, 3, (2, 2), 0), PhaseAxis { taps: vec![2, 1, 0], before: 2, apart: 1 });
        assert_eq!(PhaseAxis::new(1, 3, (2, 2), 0), PhaseAxis { taps: vec![], before: 0, apart: 1 });
    }
}
