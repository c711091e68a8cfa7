use std::f64::consts::TAU;

/// A complex number.
pub type Complex = [f64; 2];

/// Which way a discrete Fourier transform runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transform {
    /// `Σ x[n] e^(-2πi·kn/N)`.
    Forward,
    /// `1/N · Σ x[k] e^(2πi·kn/N)`.
    Inverse,
    /// The inverse of a real signal's first half of frequencies, as real numbers.
    RealInverse,
}

impl Transform {
    /// The transform's matrix as `[rows, parts, bins, outputs]`: what each input, real and (with two
    /// parts) imaginary, adds to each output, real and (unless that is all) imaginary. `length` is N.
    pub fn matrix(self, rows: usize, parts: usize, bins: usize, length: usize) -> Vec<f64> {
        let outputs = self.outputs();
        let turns: Vec<Complex> = (0..length).map(|turn| unit(turn, length)).collect();
        let mut matrix = Vec::with_capacity(rows * parts * bins * outputs);
        for row in 0..rows {
            for part in 0..parts {
                for bin in 0..bins {
                    let [cos, sin] = turns[(row % length) * (bin % length) % length];
                    // Row `part` of the 2x2 matrix that multiplies by the unit number.
                    let entries = match (self, part) {
                        (Transform::Forward, 0) => [cos, -sin],
                        (Transform::Forward, _) => [sin, cos],
                        (_, 0) => [cos, sin],
                        (_, _) => [-sin, cos],
                    };
                    let weight = self.weight(row, length);
                    matrix.extend(entries[..outputs].iter().map(|entry| entry * weight));
                }
            }
        }
        matrix
    }

    /// Numbers per output element.
    pub fn outputs(self) -> usize {
        if self == Transform::RealInverse { 1 } else { 2 }
    }

    fn weight(self, row: usize, length: usize) -> f64 {
        match self {
            Transform::Forward => 1.0,
            Transform::Inverse => 1.0 / length as f64,
            // Every frequency but the first, and the middle one of an even length, stands for two.
            Transform::RealInverse if row == 0 || 2 * row == length => 1.0 / length as f64,
            Transform::RealInverse => 2.0 / length as f64,
        }
    }
}

/// `Σ x[n] e^(∓2πi·kn/N)` in O(N log N): by halves where N is a power of two, else as a convolution of
/// such a length (Bluestein).
pub fn fft(x: &[Complex], inverse: bool) -> Vec<Complex> {
    let length = x.len();
    let conjugated = |x: &[Complex]| x.iter().map(|&[re, im]| [re, -im]).collect::<Vec<_>>();
    if inverse {
        return conjugated(&fft(&conjugated(x), false));
    }
    if length.is_power_of_two() || length == 0 {
        return by_halves(x);
    }
    // kn = (k² + n² - (k - n)²) / 2
    let chirp: Vec<Complex> = (0..length)
        .map(|n| {
            let square = (n as u128 * n as u128 % (2 * length as u128)) as usize;
            let [cos, sin] = unit(square, 2 * length);
            [cos, -sin]
        })
        .collect();
    let padded = (2 * length - 1).next_power_of_two();
    let mut signal = vec![[0.0; 2]; padded];
    let mut kernel = vec![[0.0; 2]; padded];
    for n in 0..length {
        signal[n] = multiply(x[n], chirp[n]);
        let [re, im] = chirp[n];
        kernel[n] = [re, -im];
        kernel[(padded - n) % padded] = [re, -im];
    }
    let product: Vec<Complex> =
        by_halves(&signal).into_iter().zip(by_halves(&kernel)).map(|(a, b)| multiply(a, b)).collect();
    let convolved = conjugated(&by_halves(&conjugated(&product)));
    let scale = 1.0 / padded as f64;
    (0..length).map(|k| multiply([convolved[k][0] * scale, convolved[k][1] * scale], chirp[k])).collect()
}

fn by_halves(x: &[Complex]) -> Vec<Complex> {
    let length = x.len();
    if length < 2 {
        return x.to_vec();
    }
    let every_other = |from: usize| x.iter().skip(from).step_by(2).copied().collect::<Vec<_>>();
    let (even, odd) = (by_halves(&every_other(0)), by_halves(&every_other(1)));
    let mut out = vec![[0.0; 2]; length];
    for k in 0..length / 2 {
        let [cos, sin] = unit(k, length);
        let [re, im] = multiply(odd[k], [cos, -sin]);
        out[k] = [even[k][0] + re, even[k][1] + im];
        out[k + length / 2] = [even[k][0] - re, even[k][1] - im];
    }
    out
}

/// `e^(2πi · turn / of)`.
fn unit(turn: usize, of: usize) -> Complex {
    let angle = TAU * turn as f64 / of as f64;
    [angle.cos(), angle.sin()]
}

fn multiply([a, b]: Complex, [c, d]: Complex) -> Complex {
    [a * c - b * d, a * d + b * c]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_and_plain_transforms_agree() {
        for length in [1, 2, 5, 8, 12, 17] {
            let x: Vec<Complex> = (0..length).map(|n| [(n * n % 7) as f64, (n % 3) as f64]).collect();
            for (transform, inverse) in [(Transform::Forward, false), (Transform::Inverse, true)] {
                let matrix = transform.matrix(length, 2, length, length);
                let fast = fft(&x, inverse);
                for bin in 0..length {
                    for output in 0..2 {
                        let entry = |n: usize, part: usize| matrix[((n * 2 + part) * length + bin) * 2 + output];
                        let plain: f64 = (0..length).map(|n| x[n][0] * entry(n, 0) + x[n][1] * entry(n, 1)).sum();
                        let scale = if inverse { 1.0 / length as f64 } else { 1.0 };
                        assert!((plain - fast[bin][output] * scale).abs() < 1e-9, "length {length} bin {bin}");
                    }
                }
            }
        }
    }
}
