//! Pooling windows over up to three spatial axes.

mod pixels;

use super::Machine;
use super::conv::window::Window;
use super::lines::{Images, Raster, in_lines};
use super::rows::part_mut;
use halimede_compute::layout::{Layout, Layouts, Stance, Stances};
use halimede_compute::{Arguments, Kernel, Prepared, Step, TensorDesc};
use halimede_graph::OpError;
use halimede_graph::ops::{Conv, Pool, PoolKind, channels_first};
use halimede_tensor::{DType, Element, Shape};
use pixels::PixelsStep;
use smallvec::smallvec;

pub(super) struct PoolKernel {
    pub op: Pool,
    pub machine: Machine,
}

impl Kernel for PoolKernel {
    fn name(&self) -> &str {
        match self.op.kind {
            PoolKind::Max { .. } => "max pool",
            PoolKind::Average { .. } => "average pool",
            PoolKind::Lp { .. } => "lp pool",
        }
    }

    fn prepare(&self, inputs: &[Option<TensorDesc>], outputs: &[TensorDesc]) -> Result<Prepared, OpError> {
        self.prepare_laid_out(inputs, outputs, &Layouts::default())
    }

    fn stances(&self, inputs: &[Option<TensorDesc>], outputs: &[TensorDesc]) -> Option<Stances> {
        let ([Some(x)], [output], true) = (inputs, outputs, self.op.channels_last) else { return None };
        self.machine.blocks_values().then_some(())?;
        in_lines(x)?;
        let output = in_lines(output)?;
        // Of one pixel of each image the lines are found where they belong, so that who reads them need not know.
        let (input, output) = match output.shape.iter().skip(1).rev().skip(1).all(|&size| size == 1) {
            true => (Stance::Either, Stance::RowMajor),
            false => (Stance::AsOutput, Stance::Either),
        };
        Some(Stances { inputs: smallvec![input], output, takes_borders: true })
    }

    fn prepare_laid_out(
        &self,
        inputs: &[Option<TensorDesc>],
        outputs: &[TensorDesc],
        layouts: &Layouts,
    ) -> Result<Prepared, OpError> {
        let Some(Some(x)) = inputs.first() else { return Err(OpError::invalid("pooling needs data")) };
        // Channels are pooled each for itself: lines of them are images that have so many.
        let (count, layout) = (x.shape.first().copied().unwrap_or(1), layouts.input(0));
        let blocked = layout != Layout::RowMajor;
        let channels = x.shape.last().copied().unwrap_or(1);
        let unsupported = || OpError::unsupported("pooling of parts of lines");
        let lines = |desc: &TensorDesc| if blocked { in_lines(desc).ok_or_else(unsupported) } else { Ok(desc.clone()) };
        let (x, output) = (&lines(x)?, lines(&outputs[0])?);
        let outputs = &[&[output], &outputs[1..]].concat();
        let floats = matches!(x.dtype, DType::F32 | DType::F64);
        let bytes = matches!(x.dtype, DType::U8 | DType::I8) && matches!(self.op.kind, PoolKind::Max { .. });
        let narrow = x.dtype == DType::Bf16 && self.op.channels_last;
        if !(floats || bytes || narrow) || x.shape.len() < 3 {
            return Err(OpError::unsupported(format!("pooling of {}", x.dtype)));
        }
        let first = |shape: &[usize]| match self.op.channels_last {
            true => channels_first::<usize, Shape>(shape),
            false => shape.into(),
        };
        let (shape, out_shape) = (first(&x.shape), first(&outputs[0].shape));
        let spatial = &shape[2..];
        let kernel = if self.op.kernel.is_empty() { spatial } else { &self.op.kernel };
        // A pooling window moves like that of a convolution whose channels see one channel each.
        let conv = Conv {
            strides: self.op.strides.clone(),
            dilations: self.op.dilations.clone(),
            padding: self.op.padding.clone(),
            groups: shape[1].max(1),
            transposed: None,
            channels_last: false,
            multiply: None,
            epilogue: None,
        };
        let weights: Vec<usize> = [shape[1], 1].iter().chain(kernel).copied().collect();
        let mut window = Window::new(&conv, &shape, &weights, &out_shape)?;
        window.rows = 1;
        let after = border_after(&self.op, &window, spatial.len());
        let window = window.of_band(layouts.band);
        if layouts.band.is_some() && !(self.op.channels_last && matches!(self.op.kind, PoolKind::Max { .. })) {
            return Err(OpError::unsupported("this pooling of rows of an image"));
        }
        if self.op.channels_last {
            if !(narrow || bytes || x.dtype == DType::F32) || outputs.len() > 1 || window.kernel[0] != 1 {
                return Err(OpError::unsupported("this pooling with the channels last"));
            }
            let (dtype, kind, machine) = (x.dtype, self.op.kind, self.machine.clone());
            let line = window.groups;
            let raster = |layout: Layout, size: [usize; 3]| {
                Raster::of(layout, count, [size[1], size[2]], channels, dtype.size())
            };
            let [from, to] =
                [(layout, window.x), (layouts.output, window.out)].map(|(layout, size)| (raster(layout, size), layout));
            let [from, to] = Raster::of_bands([from, to], layouts.band);
            let images = match (blocked, layouts.output) {
                (false, _) => [window.x, window.out].map(|size| Images::of(size[1], size[2] * line)),
                (true, Layout::Blocked | Layout::Bordered(_)) => {
                    [from, to].map(|raster| Images::blocked(count, &raster))
                }
                (true, Layout::RowMajor) => [Images::blocked(count, &from), Images::pixels(count, channels, line)],
            };
            let bordered = (to.grid.border > 0).then_some((to, count));
            let step = PixelsStep { dtype, kind, after, window, images, bordered, machine };
            return Ok(Prepared { step: Box::new(step), workspace: 0 });
        }
        let step = PoolStep {
            kind: self.op.kind,
            dtype: x.dtype,
            planes: shape[0] * shape[1],
            indices: outputs.len() > 1,
            after,
            window,
            machine: self.machine.clone(),
        };
        Ok(Prepared { step: Box::new(step), workspace: 0 })
    }
}

/// Border after each axis: what counts as an element of an average that includes its border.
fn border_after(op: &Pool, window: &Window, spatial: usize) -> [usize; 3] {
    let mut after = [0; 3];
    for axis in 0..spatial {
        let wide = 3 - spatial + axis;
        after[wide] = match &op.padding {
            halimede_graph::ops::Padding::Explicit(pads) => pads.get(spatial + axis).map_or(0, |&p| p.max(0) as usize),
            _ => {
                let covered = (window.out[wide].max(1) - 1) * window.stride[wide]
                    + (window.kernel[wide] - 1) * window.dilation[wide]
                    + 1;
                covered.saturating_sub(window.x[wide]).saturating_sub(window.before[wide].max(0) as usize)
            }
        };
    }
    after
}

struct PoolStep {
    kind: PoolKind,
    dtype: DType,
    planes: usize,
    indices: bool,
    after: [usize; 3],
    window: Window,
    machine: Machine,
}

impl Step for PoolStep {
    fn run(&self, arguments: &Arguments<'_>) {
        match self.dtype {
            DType::F32 => self.run_as::<f32>(arguments, f32::NEG_INFINITY, |x| x.into(), |x| x as f32),
            DType::F64 => self.run_as::<f64>(arguments, f64::NEG_INFINITY, |x| x, |x| x),
            DType::U8 => self.run_as::<u8>(arguments, 0, f64::from, |x| x as u8),
            _ => self.run_as::<i8>(arguments, i8::MIN, f64::from, |x| x as i8),
        }
    }
}

impl PoolStep {
    fn run_as<T: Element>(
        &self,
        arguments: &Arguments<'_>,
        lowest: T,
        widen: impl Fn(T) -> f64 + Sync,
        narrow: impl Fn(f64) -> T + Sync,
    ) {
        let Some(input) = arguments.inputs[0] else { return };
        // SAFETY: inputs are not written during the step.
        let x = unsafe { input.slice::<T>() };
        let (window, pixels, plane_len) = (&self.window, self.window.pixels(), self.window.plane_len());
        self.machine.pool.run(self.planes, &|plane| {
            // SAFETY: each part has its plane of the outputs.
            let (out, mut indices) = unsafe {
                let out = part_mut::<T>(arguments.outputs[0], plane * pixels, pixels);
                let indices = self.indices.then(|| part_mut::<i64>(arguments.outputs[1], plane * pixels, pixels));
                (out, indices)
            };
            let x = &x[plane * plane_len..(plane + 1) * plane_len];
            for (pixel, out) in out.iter_mut().enumerate() {
                let [_, height, width] = window.out;
                let place = [pixel / (height * width), pixel / width % height, pixel % width];
                match self.kind {
                    PoolKind::Max { column_major } => {
                        let (value, at) = self.max(x, place, lowest);
                        *out = value;
                        if let Some(indices) = &mut indices {
                            let at = if column_major { self.column_major(at) } else { at };
                            indices[pixel] = (plane * plane_len + at) as i64;
                        }
                    }
                    PoolKind::Average { count_include_pad } => {
                        let (mut sum, mut count) = (0f64, 0usize);
                        self.each(place, |index| {
                            sum += widen(x[index]);
                            count += 1;
                        });
                        let count = if count_include_pad { self.covered(place) } else { count };
                        *out = narrow(sum / count.max(1) as f64);
                    }
                    PoolKind::Lp { p } => {
                        let mut sum = 0f64;
                        self.each(place, |index| sum += widen(x[index]).abs().powi(p as i32));
                        *out = narrow(sum.powf(1.0 / p as f64));
                    }
                }
            }
        });
    }

    /// Calls `f` with the position of every element in the window of an output pixel.
    #[inline(always)]
    fn each(&self, place: [usize; 3], mut f: impl FnMut(usize)) {
        let window = &self.window;
        for z in 0..window.kernel[0] {
            let Some(z) = window.source(0, place[0], z) else { continue };
            for y in 0..window.kernel[1] {
                let Some(y) = window.source(1, place[1], y) else { continue };
                let row = (z * window.x[1] + y) * window.x[2];
                for x in 0..window.kernel[2] {
                    if let Some(x) = window.source(2, place[2], x) {
                        f(row + x);
                    }
                }
            }
        }
    }

    fn max<T: Element>(&self, x: &[T], place: [usize; 3], lowest: T) -> (T, usize) {
        let (mut best, mut at) = (lowest, usize::MAX);
        self.each(place, |index| {
            // The first element stands even where it is no larger than the lowest value.
            if at == usize::MAX || x[index] > best {
                (best, at) = (x[index], index);
            }
        });
        (best, if at == usize::MAX { 0 } else { at })
    }

    /// A flat position within a plane with columns first.
    fn column_major(&self, at: usize) -> usize {
        let [depth, height, width] = self.window.x;
        let (z, y, x) = (at / (height * width), at / width % height, at % width);
        // Axes of size 1 that stand for missing ones add nothing.
        (x * height + y) * depth + z
    }

    /// Elements of a window that lie inside the input or its border.
    fn covered(&self, place: [usize; 3]) -> usize {
        covered(&self.window, self.after, place)
    }
}

/// Elements of a window that lie inside the input or its border, which reaches `after` beyond it.
fn covered(window: &Window, after: [usize; 3], place: [usize; 3]) -> usize {
    (0..3)
        .map(|axis| {
            let end = (window.x[axis] + after[axis]) as isize;
            (0..window.kernel[axis])
                .filter(|tap| {
                    let position = (place[axis] * window.stride[axis] + tap * window.dilation[axis]) as isize;
                    position - window.before[axis] < end
                })
                .count()
        })
        .product()
}
