//! Inputs that the server computes from the requests of a batch, and outputs that it splits by the shape of an input.

use halimede_tensor::DType;

use super::signature::{InputSpec, OutputSpec};
use crate::{
    config::{
        DataType,
        proto::{self, batch_input::Kind},
    },
    error::Error,
};

/// Inputs of a model that no request gives: they tell the model which requests run together.
#[derive(Debug)]
pub(crate) struct BatchInput {
    pub kind: Kind,
    /// The model's inputs that are filled with it.
    pub targets: Vec<String>,
    /// 32-bit integers or floats.
    pub dtype: DType,
    pub source: Source,
    /// Whether shapes have a batch dimension. In those of a model without one, the first dimension counts as that where
    /// the shapes of inferences are asked for, as in Triton.
    pub is_batched: bool,
}

/// Rows without elements that an input may have whose rows count, so that a shape costs no memory of its own.
const EMPTY_ROWS_MAX: usize = 1 << 16;

/// An output of a model that is as long as an input, whose requests have different shapes.
#[derive(Debug)]
pub(crate) struct BatchOutput {
    pub target: String,
    /// Without the batch dimension; -1 is the same dimension of the source.
    pub dims: Vec<i64>,
    pub source: Source,
}

/// The input whose shapes count.
#[derive(Debug)]
pub(crate) struct Source {
    pub name: String,
    /// Number of its dimensions without the batch, as the model sees them.
    pub rank: usize,
}

/// What one request gives a [`Source`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Item<'a> {
    /// Inferences in the request.
    pub rows: usize,
    /// Dimensions of one inference.
    pub dims: &'a [i64],
}

impl Item<'_> {
    /// Elements of all its inferences.
    pub fn elements(&self) -> usize {
        self.dims.iter().fold(self.rows, |count, &dim| count.saturating_mul(usize::try_from(dim).unwrap_or(0)))
    }
}

impl Source {
    fn new(names: &[String], inputs: &[InputSpec]) -> Result<Self, Error> {
        let name = names.first().cloned().unwrap_or_default();
        let spec = inputs.iter().find(|input| input.name == name);
        let spec = spec.ok_or_else(|| Error::invalid(format!("unknown source input name '{name}'")))?;
        let rank = spec.reshape.as_ref().unwrap_or(&spec.dims).len();
        Ok(Self { name, rank })
    }

    /// What a request with `rows` inferences gives, whose input has the shape `shape`.
    pub fn item<'a>(&self, rows: usize, shape: &'a [i64]) -> Item<'a> {
        // The shape of a request for no inference has no batch dimension.
        Item { rows, dims: &shape[shape.len().saturating_sub(self.rank)..] }
    }
}

impl BatchInput {
    pub fn new(config: &proto::BatchInput, inputs: &[InputSpec], is_batched: bool) -> Result<Self, Error> {
        Ok(Self {
            kind: config.kind(),
            targets: config.target_name.clone(),
            dtype: if config.data_type() == DataType::TypeFp32 { DType::F32 } else { DType::I32 },
            source: Source::new(&config.source_input, inputs)?,
            is_batched,
        })
    }

    /// Shape and elements for the requests of a batch.
    ///
    /// # Errors
    /// A shape without elements has too many rows.
    pub fn values(&self, items: &[Item]) -> Result<(Vec<i64>, Vec<usize>), Error> {
        match (self.kind, self.is_batched) {
            (Kind::BatchItemShape | Kind::BatchItemShapeFlatten, false) => {
                let items = items.iter().map(|item| self.by_rows(*item)).collect::<Result<Vec<_>, _>>()?;
                Ok(self.values_of(&items, self.source.rank.saturating_sub(1)))
            }
            _ => Ok(self.values_of(items, self.source.rank)),
        }
    }

    /// `item` with its first dimension as the number of inferences.
    fn by_rows<'a>(&self, item: Item<'a>) -> Result<Item<'a>, Error> {
        let (rows, dims) = item.dims.split_first().map_or((1, item.dims), |(rows, dims)| (*rows, dims));
        let item = Item { rows: usize::try_from(rows).unwrap_or(0), dims };
        if item.elements() == 0 && item.rows > EMPTY_ROWS_MAX {
            return Err(Error::invalid(format!(
                "input '{}' has {rows} rows without elements; up to {EMPTY_ROWS_MAX} can be counted",
                self.source.name
            )));
        }
        Ok(item)
    }

    /// Shape and elements for items whose shapes have `rank` dimensions.
    fn values_of(&self, items: &[Item], rank: usize) -> (Vec<i64>, Vec<usize>) {
        let counts = items.iter().map(Item::elements);
        let ends = counts.clone().scan(0usize, |end, count| {
            *end = end.saturating_add(count);
            Some(*end)
        });
        // In Triton they have no values at all.
        let zeros = |count: usize| vec![0; count];
        let dim = |dim: &i64| usize::try_from(*dim).unwrap_or(0);
        let shapes = || items.iter().flat_map(|item| (0..item.rows).flat_map(|_| item.dims.iter().map(dim)));
        let values: Vec<usize> = match self.kind {
            Kind::BatchElementCount => counts.collect(),
            Kind::BatchAccumulatedElementCount => ends.collect(),
            Kind::BatchAccumulatedElementCountWithZero => [0].into_iter().chain(ends).collect(),
            Kind::BatchMaxElementCountAsShape => zeros(counts.max().unwrap_or(0)),
            Kind::BatchItemShape | Kind::BatchItemShapeFlatten => shapes().collect(),
        };
        let shape = match self.kind {
            Kind::BatchItemShape => {
                vec![items.iter().map(|item| item.rows).sum::<usize>() as i64, rank as i64]
            }
            _ => vec![values.len() as i64],
        };
        (shape, values)
    }

    /// Elements as the model takes them. Integers beyond 32 bits lose their high bits, as in Triton.
    pub fn bytes(&self, values: &[usize]) -> Vec<u8> {
        match self.dtype {
            DType::F32 => values.iter().flat_map(|&value| (value as f32).to_le_bytes()).collect(),
            _ => values.iter().flat_map(|&value| (value as i32).to_le_bytes()).collect(),
        }
    }
}

impl BatchOutput {
    /// One for each target.
    pub fn all(config: &proto::BatchOutput, outputs: &[OutputSpec], inputs: &[InputSpec]) -> Result<Vec<Self>, Error> {
        let targets = outputs.iter().filter(|output| config.target_name.contains(&output.name));
        let split = |output: &OutputSpec| {
            Ok(Self {
                target: output.name.clone(),
                dims: output.reshape.as_ref().unwrap_or(&output.dims).clone(),
                source: Source::new(&config.source_input, inputs)?,
            })
        };
        targets.map(split).collect()
    }

    /// The shape for a request that gives `item`, with the batch dimension where `is_batched`. `None` where the source
    /// has fewer dimensions.
    pub fn shape(&self, item: Item, is_batched: bool) -> Option<Vec<i64>> {
        let dim = |(axis, &dim): (usize, &i64)| if dim == -1 { item.dims.get(axis).copied() } else { Some(dim) };
        let rows = is_batched.then_some(Some(item.rows as i64));
        rows.into_iter().chain(self.dims.iter().enumerate().map(dim)).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn source(rank: usize) -> Source {
        Source { name: "INPUT".into(), rank }
    }

    fn computed(kind: Kind, items: &[Item]) -> (Vec<i64>, Vec<usize>) {
        let rank = items.first().map_or(0, |item| item.dims.len());
        of_kind(kind, rank, true).values(items).unwrap()
    }

    fn of_kind(kind: Kind, rank: usize, is_batched: bool) -> BatchInput {
        BatchInput { kind, targets: Vec::new(), dtype: DType::I32, source: source(rank), is_batched }
    }

    #[test]
    fn the_first_dimension_of_a_model_without_batches_counts_its_rows() {
        let item = [Item { rows: 1, dims: &[3, 2, 5] }];
        let values = |kind, items: &[Item]| of_kind(kind, items[0].dims.len(), false).values(items);
        assert_eq!(values(Kind::BatchItemShape, &item).unwrap(), (vec![3, 2], vec![2, 5, 2, 5, 2, 5]));
        assert_eq!(values(Kind::BatchItemShapeFlatten, &item).unwrap(), (vec![6], vec![2, 5, 2, 5, 2, 5]));
        assert_eq!(values(Kind::BatchElementCount, &item).unwrap(), (vec![1], vec![30]));
        let flat = [Item { rows: 1, dims: &[4] }];
        assert_eq!(values(Kind::BatchItemShape, &flat).unwrap(), (vec![4, 0], vec![]));
    }

    #[test]
    fn rows_without_elements_are_not_counted_for_ever() {
        let empty = |rows| {
            let dims = [rows, 0];
            of_kind(Kind::BatchItemShape, 2, false).values(&[Item { rows: 1, dims: &dims }])
        };
        assert_eq!(empty(3).unwrap(), (vec![3, 1], vec![0, 0, 0]));
        assert_eq!(
            empty(i64::MAX).unwrap_err().message,
            "input 'INPUT' has 9223372036854775807 rows without elements; up to 65536 can be counted"
        );
    }

    #[test]
    fn every_kind_says_what_the_protocol_says() {
        let item = |rows, dims| Item { rows, dims };
        let counts = [item(1, &[2][..]), item(1, &[4]), item(2, &[1]), item(1, &[3])];
        // The example of the protocol's description.
        let shapes = [item(2, &[3, 1][..]), item(1, &[2, 2])];
        for (kind, items, shape, values) in [
            (Kind::BatchElementCount, &counts[..], &[4][..], &[2, 4, 2, 3][..]),
            (Kind::BatchAccumulatedElementCount, &counts, &[4], &[2, 6, 8, 11]),
            (Kind::BatchAccumulatedElementCountWithZero, &counts, &[5], &[0, 2, 6, 8, 11]),
            (Kind::BatchMaxElementCountAsShape, &counts, &[4], &[0, 0, 0, 0]),
            (Kind::BatchItemShape, &shapes, &[3, 2], &[3, 1, 3, 1, 2, 2]),
            (Kind::BatchItemShapeFlatten, &shapes, &[6], &[3, 1, 3, 1, 2, 2]),
            (Kind::BatchElementCount, &[item(1, &[0])], &[1], &[0]),
            (Kind::BatchMaxElementCountAsShape, &[item(1, &[0])], &[0], &[]),
        ] {
            assert_eq!(computed(kind, items), (shape.to_vec(), values.to_vec()), "{kind:?} of {items:?}");
        }
    }

    #[test]
    fn elements_are_integers_or_floats() {
        let bytes = |dtype| BatchInput { dtype, ..of_kind(Kind::BatchElementCount, 1, true) }.bytes(&[3, 70_000]);
        assert_eq!(bytes(DType::I32), [3i32, 70_000].map(i32::to_le_bytes).concat());
        assert_eq!(bytes(DType::F32), [3f32, 70_000.0].map(f32::to_le_bytes).concat());
    }

    #[test]
    fn an_output_has_the_dimensions_of_its_source() {
        let split = |dims: &[i64]| BatchOutput { target: String::new(), dims: dims.to_vec(), source: source(2) };
        let item = Item { rows: 2, dims: &[3, 5] };
        assert_eq!(split(&[-1, 5]).shape(item, true), Some(vec![2, 3, 5]));
        assert_eq!(split(&[7, -1]).shape(item, true), Some(vec![2, 7, 5]));
        assert_eq!(split(&[-1, -1]).shape(item, false), Some(vec![3, 5]));
        assert_eq!(split(&[-1, -1, -1]).shape(item, true), None);
    }

    #[test]
    fn the_shape_of_no_inference_has_no_batch_dimension() {
        let one = source(1);
        assert_eq!(one.item(2, &[2, 3]), Item { rows: 2, dims: &[3] });
        assert_eq!(one.item(1, &[3]), Item { rows: 1, dims: &[3] });
    }

    fn items() -> impl Strategy<Value = Vec<(usize, Vec<i64>)>> {
        (1..4usize).prop_flat_map(|rank| {
            proptest::collection::vec((1..4usize, proptest::collection::vec(0..5i64, rank)), 1..6)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// What a model does with the counts: it finds each request in the elements that lie one after the other.
        #[test]
        fn counts_find_every_request_again(owned in items()) {
            let items: Vec<Item> = owned.iter().map(|(rows, dims)| Item { rows: *rows, dims }).collect();
            let (_, counts) = computed(Kind::BatchElementCount, &items);
            let (_, bounds) = computed(Kind::BatchAccumulatedElementCountWithZero, &items);
            let (_, ends) = computed(Kind::BatchAccumulatedElementCount, &items);
            prop_assert_eq!(&bounds[1..], &ends);
            for (index, item) in items.iter().enumerate() {
                prop_assert_eq!(bounds[index] + counts[index], bounds[index + 1]);
                prop_assert_eq!(counts[index], item.rows * item.dims.iter().product::<i64>() as usize);
            }
            let (longest, _) = computed(Kind::BatchMaxElementCountAsShape, &items);
            prop_assert_eq!(longest, [*counts.iter().max().unwrap() as i64]);
        }

        /// A row of shapes for every inference, both flat and not.
        #[test]
        fn shapes_come_once_for_every_inference(owned in items()) {
            let items: Vec<Item> = owned.iter().map(|(rows, dims)| Item { rows: *rows, dims }).collect();
            let (shape, values) = computed(Kind::BatchItemShape, &items);
            let (flat, same) = computed(Kind::BatchItemShapeFlatten, &items);
            prop_assert_eq!(&values, &same);
            prop_assert_eq!(shape.iter().product::<i64>(), flat[0]);
            let rank = shape[1] as usize;
            let mut rows = values.chunks_exact(rank);
            for (count, dims) in &owned {
                for _ in 0..*count {
                    prop_assert!(rows.next().unwrap().iter().zip(dims).all(|(&value, &dim)| value as i64 == dim));
                }
            }
            prop_assert!(rows.next().is_none());
        }
    }
}
