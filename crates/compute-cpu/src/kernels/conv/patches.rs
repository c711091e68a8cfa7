use super::window::Window;

/// Packs rows `from..` (as many as fill the panel) of the patch matrix for the pixels
/// `first..first + nr`: one row per input channel and tap, zeros in the border and beyond the last pixel.
pub(super) fn pack_patches(window: &Window, x: &[f32], from: usize, first: usize, nr: usize, panel: &mut [f32]) {
    let (taps, plane, width) = (window.taps(), window.plane_len(), window.x[2]);
    let [_, out_height, out_width] = window.out;
    let count = nr.min(window.pixels() - first);
    let whole = taps == 1 && window.stride == [1; 3] && window.before == [0; 3] && window.out == window.x;
    for (index, line) in panel.chunks_exact_mut(nr).enumerate() {
        let (channel, tap) = ((from + index) / taps, (from + index) % taps);
        let channel_x = &x[channel * plane..(channel + 1) * plane];
        line[count..].fill(0.0);
        if whole {
            line[..count].copy_from_slice(&channel_x[first..first + count]);
            continue;
        }
        let [tap_z, tap_y, tap_x] = window.tap(tap);
        let mut done = 0;
        while done < count {
            let pixel = first + done;
            let (row, column) = (pixel / out_width, pixel % out_width);
            let run = (out_width - column).min(count - done);
            let target = &mut line[done..done + run];
            done += run;
            let (z, y) = (window.source(0, row / out_height, tap_z), window.source(1, row % out_height, tap_y));
            let (Some(z), Some(y)) = (z, y) else {
                target.fill(0.0);
                continue;
            };
            let source = &channel_x[(z * window.x[1] + y) * width..][..width];
            let (inside, end) = window.columns_inside(tap_x, column, column + run);
            target[..inside - column].fill(0.0);
            target[end - column..].fill(0.0);
            if inside == end {
                continue;
            }
            let start = inside * window.stride[2] + tap_x * window.dilation[2];
            let start = start.wrapping_add_signed(-window.before[2]);
            let target = &mut target[inside - column..end - column];
            match window.stride[2] {
                1 => target.copy_from_slice(&source[start..start + target.len()]),
                stride => {
                    for (target, source) in target.iter_mut().zip(source[start..].iter().step_by(stride)) {
                        *target = *source;
                    }
                }
            }
        }
    }
}
