use crate::OpError;
use crate::onnx::Attributes;
use crate::ops::Call;
use halimede_tensor::DType;
use std::hash::{BuildHasher, Hasher};

/// A generator of random numbers (xoshiro256++, Blackman and Vigna), good enough to sample with and
/// unfit for secrets.
pub struct Random {
    state: [u64; 4],
    /// The second number of the last pair of normal ones.
    spare: Option<f64>,
}

impl Random {
    /// From the attribute `seed`, the same numbers each time; without it, others each time.
    pub fn new(attributes: &Attributes) -> Result<Random, OpError> {
        let seed = match attributes.float("seed")? {
            Some(seed) => u64::from(seed.to_bits()),
            // The standard library keys each of its hash tables at random.
            None => std::collections::hash_map::RandomState::new().build_hasher().finish(),
        };
        Ok(Random::seeded(seed))
    }

    fn seeded(seed: u64) -> Random {
        // SplitMix64 spreads the seed over the state.
        let mut at = seed;
        let mut next = || {
            at = at.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (at ^ (at >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        };
        Random { state: [next(), next(), next(), next()], spare: None }
    }

    fn bits(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let (c, d) = (c ^ a, d ^ b);
        self.state = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        result
    }

    /// Evenly from 0 up to but without 1.
    pub fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Normally with mean 0 and deviation 1 (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        let (sin, cos) = (std::f64::consts::TAU * self.uniform()).sin_cos();
        self.spare = Some(radius * sin);
        radius * cos
    }
}

/// The attribute `dtype` of a call, or what stands in for it.
pub fn dtype_or(call: &Call, default: DType) -> Result<DType, OpError> {
    let Some(code) = call.attributes.int("dtype")? else { return Ok(default) };
    DType::from_onnx(code).ok_or_else(|| OpError::invalid(format!("dtype is {code}, which is no datatype of ONNX")))
}

/// The attribute `shape` of a call.
pub fn shape_attribute(call: &Call) -> Result<Vec<usize>, OpError> {
    let shape = call.attributes.required("shape", call.attributes.ints("shape")?)?;
    let negative = |size| OpError::invalid(format!("shape {shape:?} holds the negative size {size}"));
    shape.iter().map(|&size| usize::try_from(size).map_err(|_| negative(size))).collect()
}

/// `mean + scale · normal` by the attributes of the normal operators.
pub fn normal_numbers(call: &Call, count: usize) -> Result<Vec<f64>, OpError> {
    let mean = f64::from(call.attributes.float_or("mean", 0.0)?);
    let scale = f64::from(call.attributes.float_or("scale", 1.0)?);
    let mut random = Random::new(&call.attributes)?;
    Ok((0..count).map(|_| mean + scale * random.normal()).collect())
}

/// Evenly between `low` and `high` by the attributes of the uniform operators.
pub fn uniform_numbers(call: &Call, count: usize) -> Result<Vec<f64>, OpError> {
    let low = f64::from(call.attributes.float_or("low", 0.0)?);
    let high = f64::from(call.attributes.float_or("high", 1.0)?);
    let mut random = Random::new(&call.attributes)?;
    Ok((0..count).map(|_| low + (high - low) * random.uniform()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_moments_of_their_distribution() {
        let mut random = Random::seeded(7);
        let moments = |numbers: &[f64]| {
            let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
            (mean, numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / numbers.len() as f64)
        };
        let uniform: Vec<f64> = (0..20_000).map(|_| random.uniform()).collect();
        let normal: Vec<f64> = (0..20_000).map(|_| random.normal()).collect();
        let ((a, b), (c, d)) = (moments(&uniform), moments(&normal));
        assert!((a - 0.5).abs() < 0.01 && (b - 1.0 / 12.0).abs() < 0.005, "{a} {b}");
        assert!(c.abs() < 0.03 && (d - 1.0).abs() < 0.05, "{c} {d}");
    }
}
