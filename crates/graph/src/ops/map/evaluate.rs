use super::columns::{Column, wrap};
use super::functions::{Real, compare, integer_binary, integer_unary, test};
use super::{Binary, Instruction, Map, Scalar, Unary};
use crate::OpError;
use crate::ops::movement::Offsets;
use halimede_tensor::{DType, Shape, Tensor, broadcast, element_count};

/// Elements computed at a time, so that the columns stay in the cache.
const BLOCK: usize = 1024;

/// Runs the program on every element.
pub(super) fn evaluate(map: &Map, inputs: &[&Tensor]) -> Result<Tensor, OpError> {
    let dtypes: Vec<DType> = inputs.iter().map(|input| input.dtype()).collect();
    let types = map.types(&dtypes)?;
    let mut shape = Shape::new();
    for input in inputs {
        shape = broadcast(&shape, input.shape())?;
    }
    let mut positions =
        inputs.iter().map(|input| Offsets::broadcast(input.shape(), &shape)).collect::<Result<Vec<_>, _>>()?;
    let count = element_count(&shape)?;
    let mut out = Tensor::zeros(types[types.len() - 1], &shape)?;
    for start in (0..count).step_by(BLOCK) {
        let len = BLOCK.min(count - start);
        let blocks: Vec<Vec<usize>> = positions.iter_mut().map(|p| p.take(len).collect()).collect();
        let mut columns: Vec<Column> = Vec::with_capacity(types.len());
        for (index, instruction) in map.instructions.iter().enumerate() {
            let column = match *instruction {
                Instruction::Input(input) => Column::load(inputs[input], &blocks[input])?,
                Instruction::Constant(scalar) => constant(scalar, len),
                Instruction::Unary(function, a) => unary(function, &columns[a], types[a]),
                Instruction::Binary(function, a, b) => binary(function, &columns[a], &columns[b], types[a])?,
                Instruction::Select(condition, yes, no) => select(&columns[condition], &columns[yes], &columns[no])?,
                Instruction::Cast(_, a) => columns[a].cast(types[a], types[index]),
            };
            columns.push(column);
        }
        columns[types.len() - 1].store(&mut out, start)?;
    }
    Ok(out)
}

fn constant(scalar: Scalar, len: usize) -> Column {
    match scalar {
        Scalar::Float(v, DType::F64) => Column::F64(vec![v; len]),
        Scalar::Float(v, dtype) => Column::F64(vec![v; len]).cast(DType::F64, dtype),
        Scalar::Int(v, dtype) => Column::Int(vec![wrap(v, dtype); len]),
        Scalar::Bool(v) => Column::Int(vec![v.into(); len]),
    }
}

fn unary(function: Unary, x: &Column, dtype: DType) -> Column {
    let to_bool = matches!(function, Unary::IsNan | Unary::IsInf);
    match x {
        Column::F32(x) if to_bool => Column::Int(x.iter().map(|&x| test(function, x)).collect()),
        Column::F64(x) if to_bool => Column::Int(x.iter().map(|&x| test(function, x)).collect()),
        Column::F32(x) => Column::F32(x.iter().map(|&x| f32::unary(function, x)).collect()),
        Column::F64(x) => Column::F64(x.iter().map(|&x| f64::unary(function, x)).collect()),
        Column::Int(x) => Column::Int(x.iter().map(|&x| wrap(integer_unary(function, x, dtype), dtype)).collect()),
    }
}

fn binary(function: Binary, a: &Column, b: &Column, dtype: DType) -> Result<Column, OpError> {
    fn zip<T: Copy, R>(a: &[T], b: &[T], f: impl Fn(T, T) -> R) -> Vec<R> {
        a.iter().zip(b).map(|(&a, &b)| f(a, b)).collect()
    }
    fn reals<T: Real>(function: Binary, a: &[T], b: &[T], wrap: fn(Vec<T>) -> Column) -> Column {
        if is_comparison(function) {
            // A comparison always gives a truth value.
            return Column::Int(zip(a, b, |a, b| compare(function, a, b).unwrap_or_default()));
        }
        wrap(zip(a, b, |a, b| T::binary(function, a, b)))
    }
    Ok(match (a, b) {
        (Column::F32(a), Column::F32(b)) => reals(function, a, b, Column::F32),
        (Column::F64(a), Column::F64(b)) => reals(function, a, b, Column::F64),
        (Column::Int(a), Column::Int(b)) if is_comparison(function) => Column::Int(zip(a, b, |a, b| {
            let answer = match dtype {
                DType::U64 => compare(function, a as u64, b as u64),
                _ => compare(function, a, b),
            };
            answer.unwrap_or_default()
        })),
        (Column::Int(a), Column::Int(b)) => {
            Column::Int(zip(a, b, |a, b| wrap(integer_binary(function, a, b, dtype), dtype)))
        }
        _ => return Err(OpError::invalid("operands of a map differ in datatype")),
    })
}

fn is_comparison(function: Binary) -> bool {
    use Binary::{Equal, Greater, GreaterOrEqual, Less, LessOrEqual};
    matches!(function, Equal | Less | LessOrEqual | Greater | GreaterOrEqual)
}

fn select(condition: &Column, yes: &Column, no: &Column) -> Result<Column, OpError> {
    fn choose<T: Copy>(condition: &[i64], yes: &[T], no: &[T]) -> Vec<T> {
        condition.iter().zip(yes.iter().zip(no)).map(|(&c, (&yes, &no))| if c != 0 { yes } else { no }).collect()
    }
    Ok(match (condition, yes, no) {
        (Column::Int(c), Column::F32(a), Column::F32(b)) => Column::F32(choose(c, a, b)),
        (Column::Int(c), Column::F64(a), Column::F64(b)) => Column::F64(choose(c, a, b)),
        (Column::Int(c), Column::Int(a), Column::Int(b)) => Column::Int(choose(c, a, b)),
        _ => return Err(OpError::invalid("operands of a map differ in datatype")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    fn run(map: &Map, inputs: &[Tensor]) -> Tensor {
        evaluate(map, &inputs.iter().collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn narrow_integers_wrap() {
        let pair = |a: u8, b: u8| [Tensor::scalar(a), Tensor::scalar(b)];
        assert_eq!(run(&Map::binary(Binary::Add), &pair(250, 10)), Tensor::scalar(4u8));
        assert_eq!(run(&Map::binary(Binary::Sub), &pair(1, 2)), Tensor::scalar(255u8));
        assert_eq!(run(&Map::unary(Unary::BitNot), &[Tensor::scalar(1u8)]), Tensor::scalar(254u8));
        assert_eq!(run(&Map::unary(Unary::Abs), &[Tensor::scalar(i8::MIN)]), Tensor::scalar(i8::MIN));
    }

    #[test]
    fn unsigned_64_bits_compare_as_such() {
        let pair = [Tensor::scalar(u64::MAX), Tensor::scalar(1u64)];
        assert_eq!(run(&Map::binary(Binary::Greater), &pair), Tensor::from_bools(&[], &[true]).unwrap());
        assert_eq!(run(&Map::binary(Binary::Max), &pair), Tensor::scalar(u64::MAX));
    }

    #[test]
    fn halves_are_rounded_at_the_end() {
        // 2048 + 1 is no f16, but (2048 + 1) - 2048 is exact in f32.
        let mut map = Map::default();
        let x = map.push(Instruction::Input(0));
        let one = map.push(Instruction::Constant(Scalar::Float(1.0, DType::F16)));
        let sum = map.push(Instruction::Binary(Binary::Add, x, one));
        map.push(Instruction::Binary(Binary::Sub, sum, x));
        assert_eq!(run(&map, &[Tensor::scalar(f16::from_f32(2048.0))]), Tensor::scalar(f16::from_f32(1.0)));
    }

    #[test]
    fn selection_and_casts() {
        let mut map = Map::default();
        let x = map.push(Instruction::Input(0));
        let zero = map.push(Instruction::Constant(Scalar::Float(0.0, DType::F32)));
        let negative = map.push(Instruction::Binary(Binary::Less, x, zero));
        let whole = map.push(Instruction::Cast(DType::I32, x));
        let none = map.push(Instruction::Constant(Scalar::Int(-1, DType::I32)));
        map.push(Instruction::Select(negative, none, whole));
        let x = Tensor::from_slice(&[3], &[-2.5f32, 2.5, 0.0]).unwrap();
        assert_eq!(run(&map, &[x]), Tensor::from_slice(&[3], &[-1i32, 2, 0]).unwrap());
    }
}
