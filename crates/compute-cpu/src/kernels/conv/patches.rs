use super::window::Window;
use smallvec::SmallVec;

/// Pixels of one row of the output that lie in a panel.
struct Run {
    /// The first of them in the panel, and how many they are.
    to: usize,
    len: usize,
    /// Its place in the output: plane, row, column.
    at: [usize; 3],
}

/// What a run sees by one tap: so many zeros, numbers of a channel from a place on, and zeros to its end.
struct Seen {
    to: usize,
    zeros: usize,
    count: usize,
    from: usize,
    end: usize,
}

/// Packs rows `from..` (as many as fill the panel) of the patch matrix for the pixels
/// `first..first + nr`: one row per input channel and tap, zeros in the border and beyond the last pixel.
pub(super) fn pack_patches(window: &Window, x: &[f32], from: usize, first: usize, nr: usize, panel: &mut [f32]) {
    let (taps, plane) = (window.taps(), window.plane_len());
    let count = nr.min(window.pixels() - first);
    if taps == 1 && window.stride == [1; 3] && window.before == [0; 3] && window.out == window.x {
        for (index, line) in panel.chunks_exact_mut(nr).enumerate() {
            line[..count].copy_from_slice(&x[(from + index) * plane..][first..first + count]);
            line[count..].fill(0.0);
        }
        return;
    }
    let runs = runs(window, first, count);
    let rows = panel.len() / nr;
    for tap in 0..taps {
        // Where a tap falls is the same in every channel.
        let seen: SmallVec<[Seen; 8]> = runs.iter().map(|run| seen(window, run, tap)).collect();
        let row = (tap + taps - from % taps) % taps;
        for row in (row..rows).step_by(taps) {
            let channel = &x[(from + row) / taps * plane..][..plane];
            let line = &mut panel[row * nr..][..nr];
            line[count..].fill(0.0);
            for &Seen { to, zeros, count, from, end } in &seen {
                line[to..to + zeros].fill(0.0);
                let (target, source) = (&mut line[to + zeros..end], channel.get(from..).unwrap_or_default());
                let (target, rest) = target.split_at_mut(count);
                match window.stride[2] {
                    1 => target.copy_from_slice(&source[..count]),
                    stride => {
                        for (target, source) in target.iter_mut().zip(source.iter().step_by(stride)) {
                            *target = *source;
                        }
                    }
                }
                rest.fill(0.0);
            }
        }
    }
}

/// So many pixels of the output, the first of which is given, by the rows in which they lie.
fn runs(window: &Window, first: usize, count: usize) -> SmallVec<[Run; 8]> {
    let [_, height, width] = window.out;
    let (mut runs, mut to) = (SmallVec::new(), 0);
    while to < count {
        let (row, column) = ((first + to) / width, (first + to) % width);
        let len = (width - column).min(count - to);
        runs.push(Run { to, len, at: [row / height, row % height, column] });
        to += len;
    }
    runs
}

/// What a run sees by a tap.
fn seen(window: &Window, run: &Run, tap: usize) -> Seen {
    let ([tap_z, tap_y, tap_x], [z, y, column]) = (window.tap(tap), run.at);
    let end = run.to + run.len;
    let (z, y) = (window.source(0, z, tap_z), window.source(1, y, tap_y));
    let (inside, last) = window.columns_inside(tap_x, column, column + run.len);
    match (z, y) {
        (Some(z), Some(y)) if inside < last => {
            let place = inside * window.stride[2] + tap_x * window.dilation[2];
            let from = (z * window.x[1] + y) * window.x[2] + place.wrapping_add_signed(-window.before[2]);
            Seen { to: run.to, zeros: inside - column, count: last - inside, from, end }
        }
        _ => Seen { to: run.to, zeros: run.len, count: 0, from: 0, end },
    }
}
