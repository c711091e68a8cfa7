//! How integers become numbers and numbers integers, in maps: what quantised models put around products.

use super::{Binary, Instruction, Map, Reg, Scalar, Unary};
use halimede_tensor::DType;
use smallvec::SmallVec;

/// What a sum of integers is multiplied by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scale {
    /// A number.
    Number(f32),
    /// An input of the map.
    Input(usize),
}

/// A map on an i32 result, split at the point from which on it computes in f32:
///
/// ```text
/// rest(f32(result + bias) · scale · …)
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Scaled {
    /// The input that is added to the result before it is converted, in i32.
    pub bias: Option<usize>,
    /// The factors after that.
    pub scales: SmallVec<[Scale; 2]>,
    /// What follows; its input 0 is the scaled result.
    pub rest: Map,
}

impl Scaled {
    /// Splits a map whose input 0 is the i32 result; `None` where it uses that otherwise.
    pub fn of(map: &Map) -> Option<Scaled> {
        let instructions = &map.instructions;
        let mut at = instructions.iter().position(|instruction| *instruction == Instruction::Input(0))?;
        let (mut bias, mut scales) = (None, SmallVec::new());
        let mut converted = false;
        while let Some(next) = map.only_reader(at) {
            let other = |a: Reg, b: Reg| if a == at { b } else { a };
            match instructions[next] {
                Instruction::Binary(Binary::Add, a, b) if !converted && bias.is_none() => {
                    let Instruction::Input(input) = instructions[other(a, b)] else { return None };
                    bias = Some(input);
                }
                Instruction::Cast(DType::F32, _) if !converted => converted = true,
                // What is rounded next is divided by the distance of a grid's points: that is no scale of the result.
                Instruction::Binary(Binary::Mul, ..) if converted && map.is_rounded_next(next) => break,
                Instruction::Binary(Binary::Mul, a, b) if converted => {
                    let Some(mut more) = map.factors(other(a, b)) else { break };
                    scales.append(&mut more);
                }
                _ if converted => break,
                _ => return None,
            }
            at = next;
        }
        converted.then(|| Scaled { bias, scales, rest: map.from(at) })
    }
}

impl Map {
    /// The one instruction that reads a result, where there is one.
    fn only_reader(&self, of: Reg) -> Option<Reg> {
        let mut readers = (0..self.instructions.len()).filter(|&at| self.instructions[at].operands().contains(&of));
        readers.next().filter(|_| readers.next().is_none())
    }

    /// Whether a result is rounded, and nothing else becomes of it.
    fn is_rounded_next(&self, of: Reg) -> bool {
        self.only_reader(of)
            .is_some_and(|reader| matches!(self.instructions[reader], Instruction::Unary(Unary::Round, _)))
    }

    /// The factors of a product of inputs and numbers alone.
    fn factors(&self, at: Reg) -> Option<SmallVec<[Scale; 2]>> {
        match self.instructions[at] {
            Instruction::Input(input) if input > 0 => Some(SmallVec::from_slice(&[Scale::Input(input)])),
            Instruction::Constant(Scalar::Float(number, DType::F32)) => {
                Some(SmallVec::from_slice(&[Scale::Number(number as f32)]))
            }
            Instruction::Binary(Binary::Mul, a, b) => {
                let mut factors = self.factors(a)?;
                factors.append(&mut self.factors(b)?);
                Some(factors)
            }
            _ => None,
        }
    }

    /// The part of the map after an instruction, whose result becomes input 0.
    fn from(&self, start: Reg) -> Map {
        let mut needed = vec![false; self.instructions.len()];
        needed[self.instructions.len() - 1] = true;
        for at in (0..self.instructions.len()).rev() {
            if needed[at] && at != start {
                for operand in self.instructions[at].operands() {
                    needed[operand] = true;
                }
            }
        }
        let mut rest = Map::default();
        let mut places = vec![0; self.instructions.len()];
        for (at, instruction) in self.instructions.iter().enumerate().filter(|(at, _)| needed[*at]) {
            let instruction = if at == start { Instruction::Input(0) } else { instruction.moved(&places) };
            places[at] = rest.push(instruction);
        }
        rest
    }

    /// Appends `clamp(round(x / scale)) · scale` less the last factor: the nearest multiple of the scale that a
    /// quantised number less its zero point can hold, counted in scales.
    fn push_steps(&mut self, x: Reg, scale: f32, zero: i32, to: DType) -> Reg {
        let (low, high) = if to == DType::U8 { (0, 255) } else { (-128, 127) };
        let number = |map: &mut Map, number: f64| map.push(Instruction::Constant(Scalar::Float(number, DType::F32)));
        let inverse = number(self, f64::from(1.0 / scale));
        let steps = self.push(Instruction::Binary(Binary::Mul, x, inverse));
        let steps = self.push(Instruction::Unary(Unary::Round, steps));
        let low = number(self, f64::from(low - zero));
        let steps = self.push(Instruction::Binary(Binary::Max, steps, low));
        let high = number(self, f64::from(high - zero));
        self.push(Instruction::Binary(Binary::Min, steps, high))
    }

    /// Appends `saturate(round(x / scale) + zero)` of a finite f32 as U8 or I8.
    pub fn push_quantize(&mut self, x: Reg, scale: f32, zero: i32, to: DType) -> Reg {
        let steps = self.push_steps(x, scale, zero, to);
        let zero = self.push(Instruction::Constant(Scalar::Float(zero.into(), DType::F32)));
        let sum = self.push(Instruction::Binary(Binary::Add, steps, zero));
        self.push(Instruction::Cast(to, sum))
    }

    /// Whether the result is what [`Map::push_quantize`] appends: whole, and within the range of its datatype.
    pub fn quantizes(&self) -> bool {
        let number = |at: Reg| match self.instructions[at] {
            Instruction::Constant(Scalar::Float(number, DType::F32)) => Some(number),
            _ => None,
        };
        // The operand of a function of it and a number, and that number.
        let with_number = |at: Reg, function: Binary| match self.instructions[at] {
            Instruction::Binary(of, x, y) if of == function => Some((x, number(y)?)),
            _ => None,
        };
        let parts = || {
            let Some(Instruction::Cast(to @ (DType::U8 | DType::I8), sum)) = self.instructions.last() else {
                return None;
            };
            let (steps, zero) = with_number(*sum, Binary::Add)?;
            let (steps, high) = with_number(steps, Binary::Min)?;
            let (steps, low) = with_number(steps, Binary::Max)?;
            let range = if *to == DType::U8 { (0.0, 255.0) } else { (-128.0, 127.0) };
            let whole = matches!(self.instructions[steps], Instruction::Unary(Unary::Round, _));
            Some(whole && (low + zero, high + zero) == range)
        };
        parts().unwrap_or(false)
    }

    /// Appends the nearest multiple of the scale that a quantised number can stand for: a quantisation and a
    /// dequantisation in one.
    pub fn push_snap(&mut self, x: Reg, scale: f32, zero: i32, to: DType) -> Reg {
        let steps = self.push_steps(x, scale, zero, to);
        let scale = self.push(Instruction::Constant(Scalar::Float(scale.into(), DType::F32)));
        self.push(Instruction::Binary(Binary::Mul, steps, scale))
    }

    /// Appends `(x - zero) · scale` of an integer in f32.
    pub fn push_dequantize(&mut self, x: Reg, scale: f32, zero: i32) -> Reg {
        let x = self.push(Instruction::Cast(DType::F32, x));
        let zero = self.push(Instruction::Constant(Scalar::Float(zero.into(), DType::F32)));
        let steps = self.push(Instruction::Binary(Binary::Sub, x, zero));
        let scale = self.push(Instruction::Constant(Scalar::Float(scale.into(), DType::F32)));
        self.push(Instruction::Binary(Binary::Mul, steps, scale))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantisation_is_no_scale() {
        for has_bias in [false, true] {
            let mut map = Map::default();
            let sum = map.push(Instruction::Input(0));
            let sum = map.push(Instruction::Cast(DType::F32, sum));
            let scale = map.push(Instruction::Input(1));
            let mut x = map.push(Instruction::Binary(Binary::Mul, sum, scale));
            if has_bias {
                let bias = map.push(Instruction::Input(2));
                x = map.push(Instruction::Binary(Binary::Add, x, bias));
            }
            map.push_quantize(x, 0.25, 128, DType::U8);
            let Scaled { bias, scales, rest } = Scaled::of(&map).expect("it scales its sums");
            assert_eq!((bias, scales.as_slice()), (None, &[Scale::Input(1)][..]));
            // What follows is a quantisation of its input as it is.
            let mut expected = Map::default();
            let mut x = expected.push(Instruction::Input(0));
            if has_bias {
                let bias = expected.push(Instruction::Input(2));
                x = expected.push(Instruction::Binary(Binary::Add, x, bias));
            }
            expected.push_quantize(x, 0.25, 128, DType::U8);
            assert_eq!(rest, expected);
        }
    }
}
