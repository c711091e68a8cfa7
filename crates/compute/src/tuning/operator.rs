use crate::TensorDesc;
use halimede_graph::ops::{Contract, Conv, Factors, Map, Padding};
use halimede_tensor::DType;
use std::fmt;

/// An operation as far as its speed depends on it: the key of the database.
///
/// Its text is stable: `contract ab,bc>ac 128x768,768x3072 f32*f32>bf16 factors=bf16 weights=constant
/// epilogue=rows threads=1`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Operator {
    /// `contract` or `conv`.
    pub kind: &'static str,
    /// Which axes belong together, and everything else that is neither a size nor a datatype.
    pub axes: String,
    /// Shapes of both operands.
    pub sizes: [Vec<usize>; 2],
    /// Datatypes of both operands and of the result.
    pub dtypes: [DType; 3],
    /// What the operands are multiplied as; `None`: as they are.
    pub factors: Option<Factors>,
    /// Whether the right operand is known when a model is loaded.
    pub constant: bool,
    /// What happens to the result before it is stored.
    pub epilogue: Epilogue,
    /// Threads that share the work.
    pub threads: usize,
}

/// Classes of epilogues, by what they read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Epilogue {
    /// There is none.
    None,
    /// Numbers and rows: bias, scales, activation functions.
    Rows,
    /// At least one tensor as large as the result: a residual.
    Tensors,
}

impl Operator {
    /// A product; `None` where an operand is missing.
    pub fn contract(
        op: &Contract,
        inputs: &[Option<TensorDesc>],
        output: &TensorDesc,
        constant: bool,
        threads: usize,
    ) -> Option<Operator> {
        let epilogue = Epilogue::of(op.epilogue.as_ref(), inputs.get(op.first_extra()..), output);
        let (kind, axes, factors) = ("contract", labels(op), op.multiply);
        let (sizes, dtypes) = operands(inputs, output)?;
        Some(Operator { kind, axes, sizes, dtypes, factors, constant, epilogue, threads })
    }

    /// A convolution; `None` where an operand is missing.
    pub fn conv(
        op: &Conv,
        inputs: &[Option<TensorDesc>],
        output: &TensorDesc,
        constant: bool,
        threads: usize,
    ) -> Option<Operator> {
        let epilogue = Epilogue::of(op.epilogue.as_ref(), inputs.get(3..), output);
        let (kind, axes, factors) = ("conv", geometry(op), op.multiply);
        let (sizes, dtypes) = operands(inputs, output)?;
        Some(Operator { kind, axes, sizes, dtypes, factors, constant, epilogue, threads })
    }
}

/// Shapes of both operands, and datatypes of them and of the result.
fn operands(inputs: &[Option<TensorDesc>], output: &TensorDesc) -> Option<([Vec<usize>; 2], [DType; 3])> {
    let (left, right) = (inputs.first()?.as_ref()?, inputs.get(1)?.as_ref()?);
    Some(([left.shape.to_vec(), right.shape.to_vec()], [left.dtype, right.dtype, output.dtype]))
}

impl Epilogue {
    fn of(map: Option<&Map>, inputs: Option<&[Option<TensorDesc>]>, output: &TensorDesc) -> Epilogue {
        let mut inputs = inputs.unwrap_or_default().iter().flatten();
        match map {
            None => Epilogue::None,
            // A result of one element reads no more than a row.
            Some(_) if output.len() > 1 && inputs.any(|input| input.len() == output.len()) => Epilogue::Tensors,
            Some(_) => Epilogue::Rows,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Epilogue::None => "none",
            Epilogue::Rows => "rows",
            Epilogue::Tensors => "tensors",
        }
    }
}

/// The axes of a product by letters, in the order in which they are first named.
fn labels(op: &Contract) -> String {
    let mut known: Vec<u8> = Vec::new();
    let mut text = String::new();
    for (separator, labels) in [("", &op.lhs), (",", &op.rhs), (">", &op.out)] {
        text += separator;
        for label in labels {
            let index = known.iter().position(|own| own == label).unwrap_or_else(|| {
                known.push(*label);
                known.len() - 1
            });
            text.push(char::from_u32('a' as u32 + index as u32).unwrap_or('?'));
        }
    }
    text
}

/// What moves the window of a convolution.
fn geometry(op: &Conv) -> String {
    let layout = if op.channels_last { "channels-last" } else { "channels-first" };
    let transposed = if op.transposed.is_some() { "transposed-" } else { "" };
    let padding = match &op.padding {
        Padding::Explicit(sizes) => by_x(sizes),
        Padding::SameUpper => "upper".to_owned(),
        Padding::SameLower => "lower".to_owned(),
    };
    let (strides, dilations) = (by_x(&op.strides), by_x(&op.dilations));
    format!("{transposed}{layout},stride={strides},dilation={dilations},padding={padding},groups={}", op.groups)
}

fn by_x(sizes: &[impl ToString]) -> String {
    sizes.iter().map(ToString::to_string).collect::<Vec<_>>().join("x")
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Operator { kind, axes, sizes: [left, right], dtypes: [a, b, c], .. } = self;
        let factors = match self.factors {
            None => "own",
            Some(Factors::Bf16) => "bf16",
            Some(Factors::F16) => "f16",
            Some(Factors::Integers) => "integers",
        };
        let weights = if self.constant { "constant" } else { "vary" };
        let (left, right) = (by_x(left), by_x(right));
        write!(f, "{kind} {axes} {left},{right} {a}*{b}>{c} factors={factors} weights={weights} ")?;
        write!(f, "epilogue={} threads={}", self.epilogue.name(), self.threads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smallvec::smallvec;

    fn desc(dtype: DType, shape: &[usize]) -> TensorDesc {
        TensorDesc { dtype, shape: shape.into() }
    }

    #[test]
    fn products_have_a_text() {
        let mut op = Contract::matmul(1);
        op.multiply = Some(Factors::Bf16);
        op.epilogue = Some(Map::default());
        let inputs = [desc(DType::F32, &[2, 8, 16]), desc(DType::F32, &[1, 16, 4])].map(Some);
        let output = desc(DType::Bf16, &[2, 8, 4]);
        let operator = Operator::contract(&op, &inputs, &output, true, 2).unwrap();
        let text = "contract abc,acd>abd 2x8x16,1x16x4 f32*f32>bf16 factors=bf16 weights=constant epilogue=rows \
                    threads=2";
        assert_eq!(operator.to_string(), text);
        let residual = [&inputs[..], &[Some(desc(DType::F32, &[2, 8, 4]))]].concat();
        let other = Operator::contract(&op, &residual, &output, true, 2).unwrap();
        assert_eq!(other.epilogue, Epilogue::Tensors);
        // Other labels for the same axes.
        let swapped = Contract::new(smallvec![7, 3, 9], smallvec![7, 9, 1], smallvec![7, 3, 1]);
        assert_eq!(labels(&swapped), "abc,acd>abd");
    }

    #[test]
    fn convolutions_have_a_text() {
        let op = Conv {
            strides: smallvec![2, 1],
            dilations: smallvec![1, 1],
            padding: Padding::Explicit(smallvec![1, 1, 0, 1]),
            groups: 1,
            transposed: None,
            channels_last: true,
            multiply: None,
            epilogue: None,
        };
        let inputs = [desc(DType::F32, &[1, 8, 8, 3]), desc(DType::F32, &[4, 3, 3, 3])].map(Some);
        let operator = Operator::conv(&op, &inputs, &desc(DType::F32, &[1, 4, 8, 4]), true, 1).unwrap();
        let text = "conv channels-last,stride=2x1,dilation=1x1,padding=1x1x0x1,groups=1 1x8x8x3,4x3x3x3 \
                    f32*f32>f32 factors=own weights=constant epilogue=none threads=1";
        assert_eq!(operator.to_string(), text);
    }
}
