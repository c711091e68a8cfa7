/// The generator of NumPy's `RandomState`, the Mersenne Twister MT19937, for operators whose reference
/// draws from it under a seed that the model states.
pub struct RandomState {
    state: [u32; SIZE],
    next: usize,
}

const SIZE: usize = 624;
const SHIFT: usize = 397;

impl RandomState {
    /// The generator seeded as `RandomState(seed)` is.
    pub fn new(seed: u32) -> RandomState {
        let mut state = [seed; SIZE];
        for i in 1..SIZE {
            let before = state[i - 1];
            state[i] = (before ^ (before >> 30)).wrapping_mul(1_812_433_253).wrapping_add(i as u32);
        }
        RandomState { state, next: SIZE }
    }

    /// Uniform in `0..1`, with 53 random bits.
    pub fn uniform(&mut self) -> f64 {
        let (high, low) = (self.bits() >> 5, self.bits() >> 6);
        (f64::from(high) * 67_108_864.0 + f64::from(low)) / 9_007_199_254_740_992.0
    }

    fn bits(&mut self) -> u32 {
        if self.next == SIZE {
            self.refill();
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }

    fn refill(&mut self) {
        for i in 0..SIZE {
            let joined = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % SIZE] & 0x7fff_ffff);
            let twist = if joined & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[i] = self.state[(i + SHIFT) % SIZE] ^ (joined >> 1) ^ twist;
        }
        self.next = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_what_numpy_draws() {
        // numpy.random.RandomState(0).uniform(size=3), NumPy 2.
        let mut random = RandomState::new(0);
        for expected in [0.5488135039273248, 0.7151893663724195, 0.6027633760716439] {
            assert_eq!(random.uniform(), expected);
        }
    }
}
