//! Dimensions as integer expressions over named symbols.
//!
//! A dimension is kept as a polynomial in canonical form, so that two expressions that are equal by
//! the rules of addition and multiplication compare equal: `2*(batch + 1)` is `2*batch + 2`.

use smallvec::SmallVec;
use std::fmt;
use std::sync::Arc;

/// An integer that is known, or an expression over the symbols of a model's input shapes.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Dim(Repr);

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Repr {
    Known(i64),
    Sum(Arc<Sum>),
    /// See [`Dim::unknown`].
    Unknown,
}

/// `constant + Σ coefficient · product`, terms sorted by product, no coefficient zero, never empty.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Sum {
    constant: i64,
    terms: Vec<(Product, i64)>,
}

/// Sorted factors.
type Product = SmallVec<[Atom; 2]>;

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Atom {
    Symbol(Arc<str>),
    FloorDiv(Dim, Dim),
    Min(Dim, Dim),
    Max(Dim, Dim),
    /// The size two dimensions broadcast to: the other where one is 1.
    Broadcast(Dim, Dim),
}

impl Dim {
    /// A named unknown. The same name is the same number everywhere in one model.
    pub fn symbol(name: &str) -> Dim {
        Dim::atom(Atom::Symbol(name.into()))
    }

    /// A size that depends on data. Whatever is computed from it is unknown too. A shape rule gives it,
    /// and the graph names it with a symbol of its own ([`crate::Fact::name_unknowns`]), because two
    /// unknowns need not be equal.
    pub fn unknown() -> Dim {
        Dim(Repr::Unknown)
    }

    /// Whether this is [`Dim::unknown`].
    pub fn is_unknown(&self) -> bool {
        matches!(self.0, Repr::Unknown)
    }

    /// The number, where it is known.
    pub fn known(&self) -> Option<i64> {
        match self.0 {
            Repr::Known(value) => Some(value),
            Repr::Sum(_) | Repr::Unknown => None,
        }
    }

    /// Whether no assignment of sizes to the symbols can make this negative; `false` where that
    /// cannot be told.
    pub fn is_non_negative(&self) -> bool {
        match &self.0 {
            Repr::Known(value) => *value >= 0,
            Repr::Unknown => false,
            Repr::Sum(sum) => {
                let positive = |(product, coefficient): &(Product, i64)| {
                    *coefficient >= 0 && product.iter().all(Atom::is_non_negative)
                };
                sum.constant >= 0 && sum.terms.iter().all(positive)
            }
        }
    }

    /// The number as a size: known and not negative.
    pub fn size(&self) -> Option<usize> {
        self.known().and_then(|value| value.try_into().ok())
    }

    /// `self / other` rounded down; exact division of polynomials by a constant stays a polynomial.
    pub fn floor_div(&self, other: &Dim) -> Dim {
        match (self.known(), other.known()) {
            _ if self.is_unknown() || other.is_unknown() => return Dim::unknown(),
            (Some(a), Some(b)) if b > 0 => return Dim::from(a.div_euclid(b)),
            (Some(a), Some(b)) if b < 0 => return Dim::from(a.saturating_neg().div_euclid(b.saturating_neg())),
            (_, Some(1)) => return self.clone(),
            (None, Some(b)) if b > 1 => {
                if let Some(quotient) = self.divide_exactly(b) {
                    return quotient;
                }
            }
            _ => {}
        }
        if self == other {
            return Dim::from(1);
        }
        if let Some(quotient) = self.cancel(other) {
            return quotient;
        }
        Dim::atom(Atom::FloorDiv(self.clone(), other.clone()))
    }

    /// `self / other` rounded up.
    pub fn ceil_div(&self, other: &Dim) -> Dim {
        (self.clone() + other.clone() - Dim::from(1)).floor_div(other)
    }

    /// The smaller of two.
    pub fn minimum(&self, other: &Dim) -> Dim {
        match (self.known(), other.known()) {
            _ if self.is_unknown() || other.is_unknown() => Dim::unknown(),
            (Some(a), Some(b)) => Dim::from(a.min(b)),
            _ if self == other => self.clone(),
            _ => Dim::commutative(Atom::Min, self, other),
        }
    }

    /// The larger of two.
    pub fn maximum(&self, other: &Dim) -> Dim {
        match (self.known(), other.known()) {
            _ if self.is_unknown() || other.is_unknown() => Dim::unknown(),
            (Some(a), Some(b)) => Dim::from(a.max(b)),
            _ if self == other => self.clone(),
            _ => Dim::commutative(Atom::Max, self, other),
        }
    }

    /// The size two dimensions broadcast to; `None` where they cannot.
    pub fn broadcast(&self, other: &Dim) -> Option<Dim> {
        match (self.known(), other.known()) {
            _ if self == other => Some(self.clone()),
            (Some(1), _) => Some(other.clone()),
            (_, Some(1)) => Some(self.clone()),
            (Some(_), Some(_)) => None,
            // An unknown beside a size above 1 must be that size (or 1) for the model to be right.
            (Some(_), None) => Some(self.clone()),
            (None, Some(_)) => Some(other.clone()),
            // The first or last element of an axis beside the axis, which may have none.
            (None, None) if self.is_one_of(other) => Some(other.clone()),
            (None, None) if other.is_one_of(self) => Some(self.clone()),
            (None, None) if self.is_unknown() || other.is_unknown() => Some(Dim::unknown()),
            (None, None) => Some(Dim::commutative(Atom::Broadcast, self, other)),
        }
    }

    /// The expression with every symbol that `value` knows replaced.
    pub fn evaluate(&self, value: &dyn Fn(&str) -> Option<i64>) -> Dim {
        let Repr::Sum(sum) = &self.0 else { return self.clone() };
        let mut total = Dim::from(sum.constant);
        for (product, coefficient) in &sum.terms {
            let mut term = Dim::from(*coefficient);
            for atom in product {
                term = term * atom.evaluate(value);
            }
            total = total + term;
        }
        total
    }

    /// Calls `each` with every symbol that the expression speaks of, again for each time.
    pub fn symbols(&self, each: &mut dyn FnMut(&str)) {
        for atom in self.parts().into_iter().flat_map(|(_, terms)| terms).flat_map(|(product, _)| product) {
            match atom {
                Atom::Symbol(name) => each(name),
                Atom::FloorDiv(a, b) | Atom::Min(a, b) | Atom::Max(a, b) | Atom::Broadcast(a, b) => {
                    a.symbols(each);
                    b.symbols(each);
                }
            }
        }
    }

    fn atom(atom: Atom) -> Dim {
        Dim(Repr::Sum(Arc::new(Sum { constant: 0, terms: vec![(smallvec::smallvec![atom], 1)] })))
    }

    fn commutative(make: fn(Dim, Dim) -> Atom, a: &Dim, b: &Dim) -> Dim {
        let (a, b) = if a <= b { (a, b) } else { (b, a) };
        Dim::atom(make(a.clone(), b.clone()))
    }

    /// The quotient where `divisor` divides the constant and every coefficient.
    fn divide_exactly(&self, divisor: i64) -> Option<Dim> {
        let Repr::Sum(sum) = &self.0 else { return None };
        let exact = sum.constant % divisor == 0 && sum.terms.iter().all(|(_, c)| c % divisor == 0);
        exact.then(|| {
            let terms = sum.terms.iter().map(|(p, c)| (p.clone(), c / divisor)).collect();
            Dim(Repr::Sum(Arc::new(Sum { constant: sum.constant / divisor, terms })))
        })
    }

    /// The quotient of a single-term dividend by a single-term divisor whose factors it contains.
    fn cancel(&self, other: &Dim) -> Option<Dim> {
        let (Repr::Sum(a), Repr::Sum(b)) = (&self.0, &other.0) else { return None };
        let ([(dividend, coefficient)], [(divisor, by)]) = (&a.terms[..], &b.terms[..]) else { return None };
        if a.constant != 0 || b.constant != 0 || coefficient % by != 0 {
            return None;
        }
        let mut rest = dividend.clone();
        for factor in divisor {
            rest.remove(rest.iter().position(|atom| atom == factor)?);
        }
        Some(Dim::from_terms(0, vec![(rest, coefficient / by)]))
    }

    fn from_terms(mut constant: i64, mut terms: Vec<(Product, i64)>) -> Dim {
        terms.sort();
        let mut merged: Vec<(Product, i64)> = Vec::with_capacity(terms.len());
        for (product, coefficient) in terms {
            match merged.last_mut() {
                _ if product.is_empty() => constant = constant.saturating_add(coefficient),
                Some((last, sum)) if *last == product => *sum = sum.saturating_add(coefficient),
                _ => merged.push((product, coefficient)),
            }
        }
        merged.retain(|(_, coefficient)| *coefficient != 0);
        if merged.is_empty() { Dim::from(constant) } else { Dim(Repr::Sum(Arc::new(Sum { constant, terms: merged }))) }
    }

    /// Whether this is `min(1, other)`.
    fn is_one_of(&self, other: &Dim) -> bool {
        let Some((0, [(product, 1)])) = self.parts() else { return false };
        let is_one = |(a, b): (&Dim, &Dim)| a.known() == Some(1) && b == other;
        matches!(&product[..], [Atom::Min(a, b)] if is_one((a, b)) || is_one((b, a)))
    }

    /// Constant and terms; `None` of an unknown.
    fn parts(&self) -> Option<(i64, &[(Product, i64)])> {
        match &self.0 {
            Repr::Known(value) => Some((*value, &[])),
            Repr::Sum(sum) => Some((sum.constant, &sum.terms)),
            Repr::Unknown => None,
        }
    }
}

impl Atom {
    fn is_non_negative(&self) -> bool {
        match self {
            Atom::Symbol(_) => true,
            Atom::FloorDiv(a, b) | Atom::Min(a, b) | Atom::Broadcast(a, b) => {
                a.is_non_negative() && b.is_non_negative()
            }
            Atom::Max(a, b) => a.is_non_negative() || b.is_non_negative(),
        }
    }

    fn evaluate(&self, value: &dyn Fn(&str) -> Option<i64>) -> Dim {
        match self {
            Atom::Symbol(name) => value(name).map_or_else(|| Dim::atom(self.clone()), Dim::from),
            Atom::FloorDiv(a, b) => a.evaluate(value).floor_div(&b.evaluate(value)),
            Atom::Min(a, b) => a.evaluate(value).minimum(&b.evaluate(value)),
            Atom::Max(a, b) => a.evaluate(value).maximum(&b.evaluate(value)),
            Atom::Broadcast(a, b) => {
                let (a, b) = (a.evaluate(value), b.evaluate(value));
                a.broadcast(&b).unwrap_or_else(|| Dim::commutative(Atom::Broadcast, &a, &b))
            }
        }
    }
}

impl From<i64> for Dim {
    fn from(value: i64) -> Dim {
        Dim(Repr::Known(value))
    }
}

impl From<i32> for Dim {
    fn from(value: i32) -> Dim {
        Dim::from(i64::from(value))
    }
}

impl From<usize> for Dim {
    fn from(value: usize) -> Dim {
        Dim(Repr::Known(i64::try_from(value).unwrap_or(i64::MAX)))
    }
}

impl std::ops::Add for Dim {
    type Output = Dim;
    fn add(self, other: Dim) -> Dim {
        let (Some((a, x)), Some((b, y))) = (self.parts(), other.parts()) else { return Dim::unknown() };
        Dim::from_terms(a.saturating_add(b), [x, y].concat())
    }
}

impl std::ops::Neg for Dim {
    type Output = Dim;
    fn neg(self) -> Dim {
        self * Dim::from(-1)
    }
}

impl std::ops::Sub for Dim {
    type Output = Dim;
    fn sub(self, other: Dim) -> Dim {
        self + -other
    }
}

impl std::ops::Mul for Dim {
    type Output = Dim;
    fn mul(self, other: Dim) -> Dim {
        let (Some((a, x)), Some((b, y))) = (self.parts(), other.parts()) else { return Dim::unknown() };
        let mut terms = Vec::with_capacity(x.len() + y.len() + x.len() * y.len());
        terms.extend(x.iter().map(|(p, c)| (p.clone(), c.saturating_mul(b))));
        terms.extend(y.iter().map(|(p, c)| (p.clone(), c.saturating_mul(a))));
        for (p, c) in x {
            for (q, d) in y {
                let mut product: Product = p.iter().chain(q).cloned().collect();
                product.sort();
                terms.push((product, c.saturating_mul(*d)));
            }
        }
        Dim::from_terms(a.saturating_mul(b), terms)
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((constant, terms)) = self.parts() else { return f.write_str("?") };
        for (index, (product, coefficient)) in terms.iter().enumerate() {
            let sign = if *coefficient < 0 {
                "-"
            } else if index > 0 {
                "+"
            } else {
                ""
            };
            write!(f, "{sign}")?;
            if coefficient.abs() != 1 {
                write!(f, "{}*", coefficient.abs())?;
            }
            for (index, atom) in product.iter().enumerate() {
                write!(f, "{}{atom}", if index > 0 { "*" } else { "" })?;
            }
        }
        match (terms.is_empty(), constant) {
            (true, _) => write!(f, "{constant}"),
            (false, 0) => Ok(()),
            (false, _) => write!(f, "{constant:+}"),
        }
    }
}

impl fmt::Display for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Atom::Symbol(name) => f.write_str(name),
            Atom::FloorDiv(a, b) => write!(f, "floor(({a})/({b}))"),
            Atom::Min(a, b) => write!(f, "min({a},{b})"),
            Atom::Max(a, b) => write!(f, "max({a},{b})"),
            Atom::Broadcast(a, b) => write!(f, "broadcast({a},{b})"),
        }
    }
}

impl fmt::Debug for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_expressions_compare_equal() {
        let (n, s, two) = (Dim::symbol("n"), Dim::symbol("s"), Dim::from(2));
        assert_eq!((n.clone() + s.clone()) * two.clone(), s.clone() * two.clone() + n.clone() + n.clone());
        assert_eq!(n.clone() - n.clone(), Dim::from(0));
        assert_eq!((n.clone() * s.clone() * Dim::from(8)).floor_div(&(s * two)), n * Dim::from(4));
    }

    #[test]
    fn evaluation_replaces_symbols() {
        let s = Dim::symbol("s");
        let out = (s + Dim::from(2) - Dim::from(3)).floor_div(&Dim::from(2)) + Dim::from(1);
        assert_eq!(out.to_string(), "floor((s-1)/(2))+1");
        assert_eq!(out.evaluate(&|_| Some(10)).known(), Some(5));
    }

    #[test]
    fn an_unknown_makes_everything_unknown() {
        let (n, u) = (Dim::symbol("n"), Dim::unknown());
        for result in
            [n.clone() + u.clone(), u.clone() - u.clone(), u.floor_div(&n), n.maximum(&u), u.evaluate(&|_| Some(1))]
        {
            assert!(result.is_unknown(), "{result}");
        }
        assert_eq!(u.broadcast(&Dim::from(4)), Some(Dim::from(4)));
        assert!(u.broadcast(&n).unwrap().is_unknown());
    }

    #[test]
    fn signs_that_need_no_numbers() {
        let n = Dim::symbol("n");
        assert!((n.clone() * Dim::from(2) + Dim::from(1)).is_non_negative());
        assert!(!(n.clone() - Dim::from(1)).is_non_negative());
        assert!((n - Dim::from(1)).maximum(&Dim::from(0)).is_non_negative());
    }

    #[test]
    fn division_rounds_down_for_every_sign() {
        let floor = |a: i64, b: i64| Dim::from(a).floor_div(&Dim::from(b)).known();
        assert_eq!([floor(7, 2), floor(-7, 2), floor(7, -2), floor(-7, -2)], [Some(3), Some(-4), Some(-4), Some(3)]);
    }

    #[test]
    fn broadcasting_prefers_the_known_size() {
        let n = Dim::symbol("n");
        assert_eq!(n.broadcast(&Dim::from(1)), Some(n.clone()));
        assert_eq!(n.broadcast(&Dim::from(4)), Some(Dim::from(4)));
        assert_eq!(Dim::from(3).broadcast(&Dim::from(4)), None);
        let first = n.minimum(&Dim::from(1));
        assert_eq!((first.broadcast(&n), n.broadcast(&first)), (Some(n.clone()), Some(n.clone())));
        assert_ne!(first.broadcast(&Dim::symbol("m")), Some(n));
    }
}
