use super::CastOptions;
use crate::DType;

/// How a number becomes a power of two (ONNX Cast `round_mode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ExponentRounding {
    /// Away from zero.
    #[default]
    Up,
    /// Toward zero.
    Down,
    /// To the nearest, halves up.
    Nearest,
}

/// A float of at most 8 bits.
#[derive(Debug, Clone, Copy)]
pub struct MiniFloat {
    exponent_bits: u32,
    mantissa_bits: u32,
    bias: i32,
    special: Special,
}

/// Which bit patterns are no finite numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Special {
    /// The highest exponent holds infinity and NaN, as in IEEE 754.
    Ieee,
    /// Only the pattern of all ones, of either sign, is NaN (the suffix "fn").
    AllOnes,
    /// Only negative zero, as NaN (the suffix "fnuz").
    NegativeZero,
    /// None.
    Nothing,
    /// No sign, no mantissa, all ones is NaN (f8e8m0).
    PowersOfTwo,
}

impl MiniFloat {
    /// The format of a float datatype below 16 bits.
    pub const fn of(dtype: DType) -> Option<MiniFloat> {
        let (exponent_bits, mantissa_bits, bias, special) = match dtype {
            DType::F8E4M3Fn => (4, 3, 7, Special::AllOnes),
            DType::F8E4M3FnUz => (4, 3, 8, Special::NegativeZero),
            DType::F8E5M2 => (5, 2, 15, Special::Ieee),
            DType::F8E5M2FnUz => (5, 2, 16, Special::NegativeZero),
            DType::F8E8M0 => (8, 0, 127, Special::PowersOfTwo),
            DType::F4E2M1 => (2, 1, 1, Special::Nothing),
            _ => return None,
        };
        Some(MiniFloat { exponent_bits, mantissa_bits, bias, special })
    }

    /// The number of a bit pattern.
    pub fn decode(self, bits: u8) -> f32 {
        if self.special == Special::PowersOfTwo {
            return if bits == 255 { f32::NAN } else { power_of_two(i32::from(bits) - self.bias) as f32 };
        }
        let sign_bit = self.sign_bit();
        let (negative, code) = (bits & sign_bit != 0, bits & (sign_bit - 1));
        let magnitude = match self.special {
            Special::AllOnes if code == sign_bit - 1 => f64::NAN,
            Special::NegativeZero if negative && code == 0 => f64::NAN,
            Special::Ieee if code > self.largest() + 1 => f64::NAN,
            Special::Ieee if code > self.largest() => f64::INFINITY,
            _ => {
                let (exponent, mantissa) = (code >> self.mantissa_bits, code & ((1 << self.mantissa_bits) - 1));
                // Subnormal numbers have the exponent of 1 without its leading bit.
                let leading = if exponent == 0 { 0 } else { 1 << self.mantissa_bits };
                let scale = i32::from(exponent.max(1)) - self.bias - self.mantissa_bits as i32;
                f64::from(mantissa + leading) * power_of_two(scale)
            }
        };
        (if negative { -magnitude } else { magnitude }) as f32
    }

    /// The numbers of all bit patterns.
    pub fn table(self) -> [f32; 256] {
        let mut table = [0.0; 256];
        for (bits, number) in table.iter_mut().enumerate().take(1 << self.bits()) {
            *number = self.decode(bits as u8);
        }
        table
    }

    /// The bit pattern of the nearest number, halves to even.
    pub fn encode(self, x: f64, options: CastOptions) -> u8 {
        if self.special == Special::PowersOfTwo {
            return encode_power_of_two(x as f32, options);
        }
        let sign = if x.is_sign_negative() { self.sign_bit() } else { 0 };
        if x.is_nan() {
            return self.not_a_number(sign);
        }
        let magnitude = x.abs();
        let lowest = 1 - self.bias;
        let code = if magnitude.is_infinite() {
            u64::MAX
        } else {
            // Within one binade codes are equally spaced, and a carry moves into the next binade.
            let exponent = exponent_of(magnitude).max(lowest);
            let steps = (magnitude * power_of_two(self.mantissa_bits as i32 - exponent)).round_ties_even();
            (((exponent - lowest) as u64) << self.mantissa_bits) + steps as u64
        };
        let largest = self.largest();
        match code {
            0 if self.special == Special::NegativeZero => 0,
            code if code <= largest.into() => sign | code as u8,
            _ if options.saturate || self.special == Special::Nothing => sign | largest,
            _ if self.special == Special::Ieee => sign | (largest + 1),
            _ => self.not_a_number(sign),
        }
    }

    /// The largest finite number.
    pub fn max(self) -> f32 {
        self.decode(self.largest())
    }

    fn bits(self) -> u32 {
        let sign = if self.special == Special::PowersOfTwo { 0 } else { 1 };
        self.exponent_bits + self.mantissa_bits + sign
    }

    fn sign_bit(self) -> u8 {
        1 << (self.exponent_bits + self.mantissa_bits)
    }

    /// The pattern of the largest finite number.
    fn largest(self) -> u8 {
        match self.special {
            Special::Ieee => (((1 << self.exponent_bits) - 1) << self.mantissa_bits) - 1,
            Special::AllOnes => self.sign_bit() - 2,
            Special::NegativeZero | Special::Nothing => self.sign_bit() - 1,
            Special::PowersOfTwo => 254,
        }
    }

    fn not_a_number(self, sign: u8) -> u8 {
        match self.special {
            Special::Ieee => sign | (self.largest() + 3),
            Special::AllOnes => sign | (self.sign_bit() - 1),
            // A format without NaN gets its negative zero.
            Special::NegativeZero | Special::Nothing => self.sign_bit(),
            Special::PowersOfTwo => 255,
        }
    }
}

/// The exponent of the nearest power of two not above, at least -1023.
fn exponent_of(magnitude: f64) -> i32 {
    (magnitude.to_bits() >> 52) as i32 - 1023
}

/// `2^exponent` for the exponents of f64's normal numbers.
fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023).clamp(1, 2046) as u64) << 52)
}

/// The biased exponent of an f32 is the pattern itself.
fn encode_power_of_two(x: f32, options: CastOptions) -> u8 {
    let bits = x.to_bits();
    let (exponent, fraction) = ((bits >> 23 & 0xff) as u8, bits & 0x7f_ffff);
    if exponent == 255 {
        return 255;
    }
    // Code 0 is 2^-127, which f32 holds as the subnormal 0x400000; further up the fraction starts at 0.
    let (exact, half) = if exponent == 0 { (0x40_0000, 0x60_0000) } else { (0, 0x40_0000) };
    let up = match options.exponent_rounding {
        ExponentRounding::Up => fraction > exact,
        ExponentRounding::Down => false,
        ExponentRounding::Nearest => fraction >= half,
    };
    match exponent {
        254 if up && options.saturate => 254,
        _ => exponent + u8::from(up),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(dtype: DType) -> MiniFloat {
        MiniFloat::of(dtype).unwrap()
    }

    #[test]
    fn every_number_survives_the_way_there_and_back() {
        for dtype in DType::ALL {
            let Some(format) = MiniFloat::of(dtype) else { continue };
            for bits in 0..1u32 << format.bits() {
                let number = format.decode(bits as u8);
                let options = CastOptions { saturate: false, ..CastOptions::default() };
                let again = format.encode(number.into(), options);
                if number.is_nan() {
                    assert!(format.decode(again).is_nan(), "{dtype} {bits:#x}");
                } else {
                    assert_eq!(again, bits as u8, "{dtype} {bits:#x}");
                }
            }
        }
    }

    #[test]
    fn largest_numbers() {
        let largest = [
            (DType::F8E4M3Fn, 448.0),
            (DType::F8E4M3FnUz, 240.0),
            (DType::F8E5M2, 57344.0),
            (DType::F8E5M2FnUz, 57344.0),
            (DType::F4E2M1, 6.0),
        ];
        for (dtype, max) in largest {
            assert_eq!(format(dtype).max(), max, "{dtype}");
            assert_eq!(format(dtype).encode(1e30, CastOptions::default()), format(dtype).largest(), "{dtype}");
        }
    }

    #[test]
    fn outside_the_range_without_saturation() {
        let open = CastOptions { saturate: false, ..CastOptions::default() };
        for dtype in [DType::F8E4M3Fn, DType::F8E4M3FnUz, DType::F8E5M2FnUz] {
            assert!(format(dtype).decode(format(dtype).encode(f64::INFINITY, open)).is_nan(), "{dtype}");
            assert!(format(dtype).decode(format(dtype).encode(-1e9, open)).is_nan(), "{dtype}");
        }
        let e5m2 = format(DType::F8E5M2);
        assert_eq!(e5m2.decode(e5m2.encode(-1e9, open)), f32::NEG_INFINITY);
    }

    #[test]
    fn halves_round_to_even() {
        let e4m3 = format(DType::F8E4M3Fn);
        let round = |x: f64| e4m3.decode(e4m3.encode(x, CastOptions::default()));
        // Between 16 and 32 the step is 2; the smallest number is 2^-9.
        assert_eq!([round(17.0), round(19.0), round(21.0)], [16.0, 20.0, 20.0]);
        assert_eq!([round(2f64.powi(-10)), round(1.5 * 2f64.powi(-9))], [0.0, 2f32.powi(-8)]);
        // 464 lies halfway between 448 and the missing 480: past it counts as out of range.
        assert_eq!(e4m3.encode(464.0, CastOptions { saturate: false, ..Default::default() }), 0x7e);
    }

    #[test]
    fn powers_of_two() {
        let code = |x: f64, exponent_rounding| {
            format(DType::F8E8M0).encode(x, CastOptions { saturate: true, exponent_rounding })
        };
        use ExponentRounding::{Down, Nearest, Up};
        assert_eq!([code(3.0, Up), code(3.0, Down), code(3.0, Nearest)], [129, 128, 129]);
        assert_eq!([code(2.5, Up), code(2.5, Nearest), code(4.0, Up)], [129, 128, 129]);
        assert_eq!([code(3.4e38, Up), code(0.0, Up), code(f64::NAN, Up)], [254, 0, 255]);
    }
}
