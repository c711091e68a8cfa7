use super::{Size, reshape};
use crate::ops::{Binary, Expr, Map, Op, Pad, PadMode};
use crate::{Builder, OpError, ValueId};
use halimede_tensor::DType;

/// Which keys each query sees, on its way into an attention: truth values and added numbers, both
/// broadcasting to `[batch, heads, queries, keys]`.
#[derive(Debug, Clone, Copy, Default)]
pub struct AttentionMask {
    allowed: Option<ValueId>,
    bias: Option<ValueId>,
}

/// The places of the queries among the keys.
#[derive(Debug, Clone, Copy)]
pub struct Places {
    /// `0, 1, 2, …` as `[queries, 1]`, moved behind the keys that came before.
    query: ValueId,
    /// `0, 1, 2, …` as `[keys]`.
    key: ValueId,
}

impl Places {
    /// Query 0 stands at key `offset`, an i64 value that broadcasts to `[batch, 1, queries, 1]`.
    pub fn new(b: &mut Builder, queries: Size, keys: Size, offset: Option<ValueId>) -> Result<Places, OpError> {
        let query = queries.positions(b)?;
        let mut query = b.reshape(query, &[-1, 1])?;
        if let Some(offset) = offset {
            query = b.binary(Binary::Add, query, offset)?;
        }
        Ok(Places { query, key: keys.positions(b)? })
    }
}

impl AttentionMask {
    /// Adds a mask of a model: truth values, or numbers to be added. Where it speaks of fewer than
    /// `keys` keys, the others are hidden.
    pub fn given(&mut self, b: &mut Builder, mask: ValueId, keys: Size) -> Result<(), OpError> {
        let Some(last) = b.rank(mask).and_then(|rank| rank.checked_sub(1)) else {
            return Err(OpError::unsupported("an attention mask of unknown or no dimensions"));
        };
        let boolean = b.dtype(mask)? == DType::Bool;
        let mask = if covers(b, mask, last, keys)? {
            mask
        } else {
            let spoken = Size::of(b, mask, last)?;
            let missing = keys.minus(b, spoken)?;
            let pads = super::shape(b, &[Size::Known(0), missing])?;
            let axes = b.ints(&[last as i64]);
            let hidden = if boolean { 0.0 } else { f64::NEG_INFINITY };
            let dtype = b.dtype(mask)?;
            let hidden = b.scalar(hidden, dtype)?;
            let inputs = [Some(mask), Some(pads), Some(hidden), Some(axes)];
            b.add_with_optional(Op::Pad(Pad { mode: PadMode::Constant }), &inputs)?
        };
        if boolean {
            return self.allow(b, mask);
        }
        self.bias = Some(match self.bias {
            Some(bias) => b.binary(Binary::Add, bias, mask)?,
            None => mask,
        });
        Ok(())
    }

    /// Lets a query see no key after its own place.
    pub fn causal(&mut self, b: &mut Builder, places: Places) -> Result<(), OpError> {
        let allowed = b.binary(Binary::LessOrEqual, places.key, places.query)?;
        self.allow(b, allowed)
    }

    /// Lets a query see at most so many keys before and after its own place; negative for no limit.
    pub fn window(&mut self, b: &mut Builder, places: Places, left: i64, right: i64) -> Result<(), OpError> {
        let distance = Expr::input(1) - Expr::input(0);
        if left >= 0 {
            let allowed = distance.with(Binary::GreaterOrEqual, -left as f64);
            let allowed = b.map(&allowed, &[places.query, places.key])?;
            self.allow(b, allowed)?;
        }
        if right >= 0 {
            let allowed = distance.with(Binary::LessOrEqual, right as f64);
            let allowed = b.map(&allowed, &[places.query, places.key])?;
            self.allow(b, allowed)?;
        }
        Ok(())
    }

    /// Hides what stands behind the first `lengths[batch]` keys.
    pub fn lengths(&mut self, b: &mut Builder, lengths: ValueId, keys: Size) -> Result<(), OpError> {
        let lengths = b.cast(lengths, DType::I64)?;
        let lengths = b.reshape(lengths, &[-1, 1, 1, 1])?;
        let places = keys.positions(b)?;
        let allowed = b.binary(Binary::Less, places, lengths)?;
        self.allow(b, allowed)
    }

    /// The mask as one value: truth values where no numbers are added, else numbers.
    pub fn value(self, b: &mut Builder) -> Result<Option<ValueId>, OpError> {
        let (Some(allowed), Some(bias)) = (self.allowed, self.bias) else { return Ok(self.allowed.or(self.bias)) };
        let dtype = b.dtype(bias)?;
        let hidden: Map = Expr::input(0).select(Expr::input(1), f64::NEG_INFINITY).map(dtype);
        Ok(Some(b.add(Op::Map(hidden), &[allowed, bias])?))
    }

    /// The mask as numbers to be added to scores of that datatype.
    pub fn numbers(self, b: &mut Builder, dtype: DType) -> Result<Option<ValueId>, OpError> {
        let Some(mask) = self.value(b)? else { return Ok(None) };
        if b.dtype(mask)? != DType::Bool {
            return Ok(Some(b.cast(mask, dtype)?));
        }
        let hidden: Map = Expr::input(0).select(0.0, f64::NEG_INFINITY).map(dtype);
        Ok(Some(b.add(Op::Map(hidden), &[mask])?))
    }

    fn allow(&mut self, b: &mut Builder, allowed: ValueId) -> Result<(), OpError> {
        self.allowed = Some(match self.allowed {
            Some(before) => b.binary(Binary::And, before, allowed)?,
            None => allowed,
        });
        Ok(())
    }
}

/// Whether a mask surely has an entry for every key.
fn covers(b: &mut Builder, mask: ValueId, last: usize, keys: Size) -> Result<bool, OpError> {
    let spoken = b.fact(mask).shape.as_ref().map(|shape| shape[last].clone());
    let needed = match keys {
        Size::Known(size) => Some(crate::Dim::from(size)),
        Size::Value(value) => b.fact(value).dims().and_then(|dims| dims.into_iter().next()),
    };
    Ok(matches!((spoken, needed), (Some(spoken), Some(needed)) if spoken == needed))
}

/// Splits the last axis of `[batch, places, heads · size]` and puts the heads in front:
/// `[batch, heads, places, size]`.
pub fn split_heads(b: &mut Builder, x: ValueId, heads: i64) -> Result<ValueId, OpError> {
    if heads <= 0 {
        return Err(OpError::invalid(format!("the number of heads is {heads}; it must be positive")));
    }
    if let Some(hidden) = b.fact(x).shape.as_ref().and_then(|shape| shape.last()?.known())
        && hidden % heads != 0
    {
        return Err(OpError::invalid(format!("a hidden size of {hidden} does not divide into {heads} heads")));
    }
    let split = b.reshape(x, &[0, 0, heads, -1])?;
    b.transpose(split, &[0, 2, 1, 3])
}

/// Undoes [`split_heads`].
pub fn join_heads(b: &mut Builder, x: ValueId) -> Result<ValueId, OpError> {
    let by_place = b.transpose(x, &[0, 2, 1, 3])?;
    let sizes = [Size::of(b, by_place, 0)?, Size::of(b, by_place, 1)?];
    let (heads, size) = (Size::of(b, by_place, 2)?, Size::of(b, by_place, 3)?);
    let hidden = heads.times(b, size)?;
    reshape(b, by_place, &[sizes[0], sizes[1], hidden])
}
