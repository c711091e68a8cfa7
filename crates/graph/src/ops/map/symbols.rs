//! A map over expressions instead of numbers: shapes on their way through a model.

use super::{Binary, Instruction, Map, Scalar, Unary};
use crate::{Dim, Fact};
use halimede_tensor::DType;

/// The output's elements as expressions, where all inputs' are; the inputs are scalars or have the
/// output's `count` of elements along one axis.
pub(super) fn elements(map: &Map, inputs: &[&Fact], count: Option<usize>) -> Option<Vec<Dim>> {
    let count = count?;
    let columns: Vec<Vec<Dim>> = inputs
        .iter()
        .map(|fact| {
            let exact = fact.dtype.is_some_and(|d| d.is_integer() || d == DType::Bool);
            let mut dims = fact.dims().filter(|_| exact && fact.rank().is_some_and(|rank| rank <= 1))?;
            if dims.len() == 1 {
                dims = vec![dims[0].clone(); count];
            }
            (dims.len() == count).then_some(dims)
        })
        .collect::<Option<_>>()?;
    (0..count).map(|index| element(map, &|input| columns.get(input).map(|c| c[index].clone()))).collect()
}

fn element(map: &Map, input: &dyn Fn(usize) -> Option<Dim>) -> Option<Dim> {
    // What cannot be told stays `None` until something reads it: the branch not taken of a selection.
    let mut results: Vec<Option<Dim>> = Vec::with_capacity(map.instructions.len());
    for instruction in &map.instructions {
        let result = |reg: usize| results.get(reg)?.clone();
        let value = match *instruction {
            Instruction::Input(index) => input(index),
            Instruction::Constant(Scalar::Int(v, _)) => Some(Dim::from(v)),
            Instruction::Constant(Scalar::Bool(v)) => Some(truth(v)),
            Instruction::Constant(Scalar::Float(..)) => None,
            Instruction::Unary(function, a) => result(a).and_then(|a| unary(function, a)),
            Instruction::Binary(function, a, b) => match (result(a), result(b)) {
                (Some(a), Some(b)) => binary(function, a, b),
                _ => None,
            },
            Instruction::Select(condition, yes, no) => match result(condition).and_then(|c| c.known()) {
                Some(0) => result(no),
                Some(_) => result(yes),
                // Both branches agree.
                None => result(yes).filter(|yes| Some(yes) == result(no).as_ref()),
            },
            Instruction::Cast(DType::I64 | DType::I32 | DType::U64 | DType::U32, a) => result(a),
            Instruction::Cast(..) => None,
        };
        results.push(value);
    }
    results.pop().flatten()
}

fn truth(value: bool) -> Dim {
    Dim::from(i64::from(value))
}

fn unary(function: Unary, a: Dim) -> Option<Dim> {
    match function {
        Unary::Neg => Some(-a),
        Unary::Abs if a.is_non_negative() => Some(a),
        Unary::Abs => a.known().map(|a| Dim::from(a.saturating_abs())),
        Unary::Sign => a.known().map(|a| Dim::from(a.signum())),
        Unary::Not => a.known().map(|a| truth(a == 0)),
        Unary::Floor | Unary::Ceil | Unary::Round => Some(a),
        _ => None,
    }
}

fn binary(function: Binary, a: Dim, b: Dim) -> Option<Dim> {
    use Binary::*;
    let below = |a: &Dim, b: &Dim| {
        let gap = b.clone() - a.clone();
        if (gap.clone() - Dim::from(1)).is_non_negative() {
            Some(true)
        } else {
            (-gap).is_non_negative().then_some(false)
        }
    };
    let (x, y) = (a.known(), b.known());
    match function {
        Add => Some(a + b),
        Sub => Some(a - b),
        Mul => Some(a * b),
        Div => match (x, y) {
            (_, Some(0)) => Some(Dim::from(0)),
            (Some(x), Some(y)) => Some(Dim::from(x.wrapping_div(y))),
            // Toward zero and down are one for what is not negative.
            _ if a.is_non_negative() && b.is_non_negative() => Some(a.floor_div(&b)),
            // Sizes minus a little, as in the formula of a convolution's output.
            _ if y.is_some_and(|y| y > 0) => Some(a.floor_div(&b)),
            _ => None,
        },
        Mod | Fmod => match (x, y) {
            (_, Some(0)) => Some(Dim::from(0)),
            (_, Some(1)) => Some(Dim::from(0)),
            (Some(x), Some(y)) if function == Fmod => Some(Dim::from(x.wrapping_rem(y))),
            (_, Some(y)) if y > 0 && a.is_non_negative() => Some(a.clone() - a.floor_div(&b) * b),
            _ => None,
        },
        Min => Some(match below(&a, &b) {
            Some(true) => a,
            Some(false) => b,
            None => a.minimum(&b),
        }),
        Max => Some(match below(&a, &b) {
            Some(true) => b,
            Some(false) => a,
            None => a.maximum(&b),
        }),
        And => both(x, y, |x, y| x && y, false),
        Or => both(x, y, |x, y| x || y, true),
        Xor => Some(truth((x? != 0) != (y? != 0))),
        Equal if a == b && !a.is_unknown() => Some(truth(true)),
        Equal => match (below(&a, &b), below(&b, &a)) {
            (Some(true), _) | (_, Some(true)) => Some(truth(false)),
            (Some(false), Some(false)) => Some(truth(true)),
            _ => None,
        },
        Less => below(&a, &b).map(truth),
        Greater => below(&b, &a).map(truth),
        LessOrEqual => below(&b, &a).map(|below| truth(!below)),
        GreaterOrEqual => below(&a, &b).map(|below| truth(!below)),
        Pow | BitAnd | BitOr | BitXor | Shl | Shr | Atan2 => None,
    }
}

/// A truth function of which one operand may decide alone.
fn both(x: Option<i64>, y: Option<i64>, f: fn(bool, bool) -> bool, decides: bool) -> Option<Dim> {
    match (x.map(|x| x != 0), y.map(|y| y != 0)) {
        (Some(x), Some(y)) => Some(truth(f(x, y))),
        (Some(x), None) | (None, Some(x)) if x == decides => Some(truth(decides)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::TensorOp;

    fn vector(dims: &[Dim]) -> Fact {
        Fact::tensor(DType::I64, [Dim::from(dims.len())]).and_elements(Some(dims.to_vec()))
    }

    fn run(map: &Map, inputs: &[Fact]) -> Option<Vec<Dim>> {
        map.infer(&inputs.iter().map(Some).collect::<Vec<_>>()).unwrap()[0].dims()
    }

    #[test]
    fn arithmetic_follows_sizes() {
        let (n, s) = (Dim::symbol("n"), Dim::symbol("s"));
        let product = run(&Map::binary(Binary::Mul), &[vector(&[n.clone(), s.clone()]), vector(&[Dim::from(2)])]);
        assert_eq!(product, Some(vec![n.clone() * Dim::from(2), s.clone() * Dim::from(2)]));
        let half = run(&Map::binary(Binary::Div), &[vector(&[n.clone() * Dim::from(4)]), vector(&[Dim::from(2)])]);
        assert_eq!(half, Some(vec![n.clone() * Dim::from(2)]));
        let of_floats = Map::binary(Binary::Mul);
        let float = Fact::tensor(DType::F32, [Dim::from(2)]);
        assert_eq!(run(&of_floats, &[float.clone(), float]), None);
    }

    #[test]
    fn minus_one_is_no_size() {
        // Where(shape == -1, ones, shape), as exporters write Expand.
        let (n, minus) = (Dim::symbol("n"), Dim::from(-1));
        let mut map = Map::default();
        let shape = map.push(Instruction::Input(0));
        let one = map.push(Instruction::Input(1));
        let wild = map.push(Instruction::Constant(Scalar::Int(-1, DType::I64)));
        let is_wild = map.push(Instruction::Binary(Binary::Equal, shape, wild));
        map.push(Instruction::Select(is_wild, one, shape));
        let inputs = [vector(&[n.clone(), minus]), vector(&[Dim::from(1), Dim::from(1)])];
        assert_eq!(run(&map, &inputs), Some(vec![n, Dim::from(1)]));
    }

    #[test]
    fn comparisons_that_need_no_numbers() {
        let n = Dim::symbol("n");
        let compare = |function, a: &Dim, b: &Dim| {
            run(&Map::binary(function), &[vector(std::slice::from_ref(a)), vector(std::slice::from_ref(b))])
        };
        let more = n.clone() + Dim::from(1);
        assert_eq!(compare(Binary::Less, &n, &more), Some(vec![Dim::from(1)]));
        assert_eq!(compare(Binary::GreaterOrEqual, &n, &more), Some(vec![Dim::from(0)]));
        assert_eq!(compare(Binary::Equal, &n, &n), Some(vec![Dim::from(1)]));
        assert_eq!(compare(Binary::Equal, &n, &Dim::from(3)), None);
        assert_eq!(compare(Binary::Max, &n, &more), Some(vec![more]));
    }
}
