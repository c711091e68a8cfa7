//! The geometry of a convolution, with every spatial rank as three axes.

use halimede_compute::layout::Band;
use halimede_graph::OpError;
use halimede_graph::ops::{Conv, Padding};

/// Sizes of a convolution. Spatial axes are depth, height, width; missing ones have size 1.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Window {
    pub batch: usize,
    pub groups: usize,
    /// Input channels per group.
    pub inputs: usize,
    /// Output channels per group.
    pub rows: usize,
    pub x: [usize; 3],
    pub out: [usize; 3],
    pub kernel: [usize; 3],
    pub stride: [usize; 3],
    pub dilation: [usize; 3],
    /// Border before each axis; negative where the input is cut.
    pub before: [isize; 3],
}

impl Window {
    pub fn new(op: &Conv, x: &[usize], w: &[usize], out: &[usize]) -> Result<Window, OpError> {
        let spatial = x.len().saturating_sub(2);
        if !(1..=3).contains(&spatial) || w.len() != x.len() || out.len() != x.len() {
            return Err(OpError::unsupported(format!("a convolution over {spatial} spatial axes")));
        }
        let widen = |sizes: &[usize]| {
            let mut wide = [1; 3];
            wide[3 - spatial..].copy_from_slice(&sizes[sizes.len() - spatial..]);
            wide
        };
        let ones = [1; 3];
        let or_ones = |sizes: &[usize]| if sizes.is_empty() { ones } else { widen(sizes) };
        let (sizes, outs, kernel) = (widen(x), widen(out), widen(w));
        let (stride, dilation) = (or_ones(&op.strides), or_ones(&op.dilations));
        let mut before = [0isize; 3];
        for axis in 0..spatial {
            let wide = 3 - spatial + axis;
            // What the outputs' windows cover beyond the input (transposed: what the input's windows
            // cover beyond the output).
            let (many, few) = if op.transposed.is_some() { (sizes, outs) } else { (outs, sizes) };
            let covered = (many[wide].max(1) - 1) * stride[wide] + (kernel[wide] - 1) * dilation[wide] + 1;
            let output_padding = op.transposed.as_ref().and_then(|t| t.output_padding.get(axis)).copied().unwrap_or(0);
            let total = (covered + output_padding).saturating_sub(few[wide]);
            let shaped = op.transposed.as_ref().is_some_and(|t| !t.output_shape.is_empty());
            before[wide] = match &op.padding {
                Padding::Explicit(pads) if !shaped => pads.get(axis).copied().unwrap_or(0) as isize,
                Padding::SameUpper => (total / 2) as isize,
                Padding::Explicit(_) | Padding::SameLower => total.div_ceil(2) as isize,
            };
        }
        let groups = op.groups.max(1);
        let (inputs, rows) = match op.transposed {
            None => (w[1], w[0] / groups),
            Some(_) => (w[0] / groups, w[1]),
        };
        Ok(Window { batch: x[0], groups, inputs, rows, x: sizes, out: outs, kernel, stride, dilation, before })
    }

    /// The same of a band of images with two axes, whose rows the sizes are.
    pub fn of_band(self, band: Option<Band>) -> Window {
        let Some(Band { above, .. }) = band else { return self };
        let [depth, _, width] = self.before;
        Window { before: [depth, above as isize, width], ..self }
    }

    /// Whether each output pixel sees the input pixel at its own place alone.
    pub fn is_pointwise(&self) -> bool {
        self.taps() == 1 && self.stride == [1; 3] && self.before == [0; 3] && self.x == self.out
    }

    /// The same of all images as one, one above the other: what sees its own pixel alone does not see where one ends.
    pub fn of_one_image(&self) -> Window {
        let (mut x, mut out) = (self.x, self.out);
        x[1] *= self.batch;
        out[1] *= self.batch;
        Window { batch: 1, x, out, ..self.clone() }
    }

    /// How far the windows look beyond the data, at most, in rows and columns.
    pub fn border(&self) -> usize {
        let beyond = |axis: usize| {
            let before = self.before[axis];
            let reach = (self.kernel[axis].max(1) - 1) * self.dilation[axis];
            let last = (self.out[axis].max(1) - 1) * self.stride[axis] + reach;
            let after = last as isize - before - (self.x[axis].max(1) - 1) as isize;
            before.max(after).max(0).unsigned_abs()
        };
        beyond(1).max(beyond(2))
    }

    /// Whether neighbouring windows see neighbouring pixels.
    pub fn is_dense(&self) -> bool {
        self.stride == [1; 3]
    }

    /// Output pixels per channel.
    pub fn pixels(&self) -> usize {
        self.out.iter().product()
    }

    /// Taps per output channel: input channels of a group times the kernel.
    pub fn depth(&self) -> usize {
        self.inputs * self.taps()
    }

    /// Taps per input channel.
    pub fn taps(&self) -> usize {
        self.kernel.iter().product()
    }

    /// Elements of one input channel.
    pub fn plane_len(&self) -> usize {
        self.x.iter().product()
    }

    /// Elements of one image.
    pub fn image_len(&self) -> usize {
        self.groups * self.inputs * self.plane_len()
    }

    /// Depth, height and width of a tap.
    pub fn tap(&self, index: usize) -> [usize; 3] {
        let [_, height, width] = self.kernel;
        [index / (height * width), index / width % height, index % width]
    }

    /// The input coordinate of a tap at an output coordinate; `None` in the border.
    pub fn source(&self, axis: usize, out: usize, tap: usize) -> Option<usize> {
        let position = (out * self.stride[axis] + tap * self.dilation[axis]) as isize - self.before[axis];
        usize::try_from(position).ok().filter(|&position| position < self.x[axis])
    }

    /// Output columns `first..last` of `from..to` whose input column lies inside for a tap.
    pub fn columns_inside(&self, tap: usize, from: usize, to: usize) -> (usize, usize) {
        let stride = self.stride[2] as isize;
        let shift = (tap * self.dilation[2]) as isize - self.before[2];
        // shift + column·stride lies in 0..width
        let first = (-shift).max(0).div_euclid(stride) + isize::from((-shift).max(0).rem_euclid(stride) != 0);
        let last = (self.x[2] as isize - shift + stride - 1).div_euclid(stride).max(0);
        let first = (first as usize).clamp(from, to);
        (first, (last as usize).clamp(first, to))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// One image of 64 channels, of a square kernel with a border that keeps its size.
    pub(in crate::kernels::conv) fn window(pixels: [usize; 2], kernel: usize) -> Window {
        let [x, kernel, before] = [[1, pixels[0], pixels[1]], [1, kernel, kernel], [0, kernel / 2, kernel / 2]];
        let before = before.map(|border| border as isize);
        let (stride, dilation) = ([1; 3], [1; 3]);
        Window { batch: 1, groups: 1, inputs: 64, rows: 64, x, out: x, kernel, stride, dilation, before }
    }

    #[test]
    fn pixels_of_all_images_are_those_of_one() {
        let images = Window { batch: 3, ..window([7, 5], 1) };
        let one = images.of_one_image();
        assert_eq!((one.batch, one.x, one.out), (1, [1, 21, 5], [1, 21, 5]));
        assert!(images.is_pointwise() && one.is_pointwise());
        assert_eq!(one.pixels(), images.batch * images.pixels());
    }
}
