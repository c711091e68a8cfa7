//! Requests of different shapes in one batch: what the model gets, and what each request gets back.

use std::sync::Arc;

use halimede_tensor::DType;
use proptest::prelude::*;

use super::batch::{Batch, Entry};
use crate::{
    InputTensor, Response, config,
    model::Signature,
    testing::{floats, request, strings, values},
    wire,
};

const RAGGED: &str = "backend: 'onnxruntime' max_batch_size: 64 \
    input { name: 'X' data_type: TYPE_FP32 dims: [ -1, -1 ] allow_ragged_batch: true } \
    batch_input { kind: BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO target_name: 'BOUNDS' data_type: TYPE_INT32 source_input: 'X' } \
    batch_input { kind: BATCH_ITEM_SHAPE target_name: [ 'SHAPES', 'AGAIN' ] data_type: TYPE_FP32 source_input: 'X' } \
    output { name: 'SAME' data_type: TYPE_FP32 dims: [ -1, -1 ] } \
    output { name: 'ROWS' data_type: TYPE_FP32 dims: 2 } \
    batch_output { target_name: 'SAME' source_input: 'X' }";

/// Requests of the model with this configuration in one batch.
fn batch(text: &str, requests: Vec<Vec<InputTensor>>) -> Batch {
    let signature = Arc::new(Signature::new(&config::parse(text, "config.pbtxt".as_ref()).unwrap()).unwrap());
    let entry = |inputs| {
        let (mut request, _) = request("m", inputs);
        let batch_size = signature.prepare(&mut request).unwrap();
        Entry::new(request, batch_size)
    };
    let entries = requests.into_iter().map(entry).collect();
    Batch::new(signature.clone(), 1, Arc::default(), entries)
}

fn finish(batch: Batch) -> Vec<Response> {
    let mut responses = Vec::new();
    batch.finish(|_, _, response| responses.push(response));
    responses
}

fn integers(data: &[u8]) -> Vec<i32> {
    data.chunks_exact(4).map(|chunk| i32::from_le_bytes(chunk.try_into().unwrap())).collect()
}

/// Elements that are all different, from `start` on.
fn counting(shape: &[i64], start: usize) -> Vec<f32> {
    (start..).take(shape.iter().product::<i64>() as usize).map(|value| value as f32).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Elements come in the order of the requests, bounds and shapes find each, and what is as long as the input goes
    /// back to the request that it came from, in its shape; all together, and some of them alone.
    #[test]
    fn what_is_gathered_is_scattered_to_where_it_came_from(
        shapes in proptest::collection::vec((1..4i64, 0..4i64, 0..4i64), 1..6),
        first in any::<prop::sample::Index>(),
    ) {
        let shapes: Vec<Vec<i64>> = shapes.iter().map(|&(rows, a, b)| vec![rows, a, b]).collect();
        let mut given: Vec<Vec<f32>> = Vec::new();
        for shape in &shapes {
            given.push(counting(shape, given.iter().map(Vec::len).sum()));
        }
        let inputs = shapes.iter().zip(&given).map(|(shape, given)| vec![floats("X", shape, given)]);
        let mut batch = batch(RAGGED, inputs.collect());
        for which in [0..shapes.len(), first.index(shapes.len())..shapes.len()] {
            let gathered = batch.gather_of(which.clone(), "X").unwrap().unwrap();
            let expected: Vec<f32> = given[which.clone()].concat();
            prop_assert_eq!(&gathered.shape, &[expected.len() as i64]);
            prop_assert_eq!(values(&gathered.data), expected.clone());

            let bounds = integers(&batch.gather_of(which.clone(), "BOUNDS").unwrap().unwrap().data);
            for (index, window) in which.clone().zip(bounds.windows(2)) {
                prop_assert_eq!(&expected[window[0] as usize..window[1] as usize], &given[index][..]);
            }
            prop_assert_eq!(bounds.len(), which.len() + 1);

            let rows: i64 = shapes[which.clone()].iter().map(|shape| shape[0]).sum();
            for name in ["SHAPES", "AGAIN"] {
                let told = batch.gather_of(which.clone(), name).unwrap().unwrap();
                prop_assert_eq!((&told.shape[..], told.dtype), (&[rows, 2][..], DType::F32));
                let mut told = values(&told.data).into_iter();
                for shape in &shapes[which.clone()] {
                    for _ in 0..shape[0] {
                        prop_assert_eq!(told.next().zip(told.next()), Some((shape[1] as f32, shape[2] as f32)));
                    }
                }
            }
        }

        let gathered = batch.gather("X").unwrap().unwrap();
        batch.scatter("SAME", gathered.dtype, &gathered.shape, gathered.data).unwrap();
        let told = batch.gather("SHAPES").unwrap().unwrap();
        batch.scatter("ROWS", told.dtype, &told.shape, told.data).unwrap();
        for (response, (shape, given)) in finish(batch).iter().zip(shapes.iter().zip(&given)) {
            let [same, rows] = &response.outputs[..] else { panic!("{response:?}") };
            prop_assert_eq!((&same.shape, values(&same.data)), (shape, given.clone()));
            prop_assert_eq!(&rows.shape, &[shape[0], 2]);
            prop_assert_eq!(values(&rows.data), [shape[1] as f32, shape[2] as f32].repeat(shape[0] as usize));
        }
    }
}

#[test]
fn only_who_wants_an_output_gets_its_part() {
    let input = |length: i64, start| vec![floats("X", &[1, 1, length], &counting(&[length], start))];
    let mut batch = batch(RAGGED, vec![input(2, 0), input(3, 2), input(1, 5)]);
    batch.entries_mut()[1].request.outputs = vec![crate::RequestedOutput { name: "ROWS".into(), classification: 0 }];
    let gathered = batch.gather("X").unwrap().unwrap();
    batch.scatter("SAME", gathered.dtype, &gathered.shape, gathered.data).unwrap();
    let outputs: Vec<_> = finish(batch).into_iter().map(|response| response.outputs).collect();
    assert_eq!((outputs[0].len(), outputs[1].len(), outputs[2].len()), (1, 0, 1));
    assert_eq!(values(&outputs[2][0].data), [5.0]);
}

#[test]
fn strings_are_split_by_the_shapes_of_their_inputs() {
    let text = "backend: 'onnxruntime' max_batch_size: 8 \
        input { name: 'X' data_type: TYPE_STRING dims: -1 allow_ragged_batch: true } \
        output { name: 'SAME' data_type: TYPE_STRING dims: -1 } batch_output { target_name: 'SAME' source_input: 'X' }";
    let words = [&["a", ""][..], &["long words", "b", "\u{e9}"], &[]];
    let inputs = words.iter().map(|words| vec![strings("X", &[1, words.len() as i64], words)]);
    let mut batch = batch(text, inputs.collect());
    let gathered = batch.gather("X").unwrap().unwrap();
    assert_eq!(gathered.shape, [5]);
    batch.scatter("SAME", gathered.dtype, &gathered.shape, gathered.data).unwrap();
    for (response, words) in finish(batch).iter().zip(words) {
        let found: Vec<&[u8]> = wire::strings(&response.outputs[0].data).map(Result::unwrap).collect();
        assert_eq!(found, words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>());
    }
}

#[test]
fn the_shape_that_the_model_sees_counts() {
    let text = "backend: 'onnxruntime' max_batch_size: 8 \
        input { name: 'X' data_type: TYPE_FP32 dims: [ -1, 4 ] reshape { shape: [ -1, 2, 2 ] } allow_ragged_batch: true } \
        batch_input { kind: BATCH_ITEM_SHAPE_FLATTEN target_name: 'SHAPES' data_type: TYPE_INT32 source_input: 'X' } \
        output { name: 'SAME' data_type: TYPE_FP32 dims: [ -1, 4 ] reshape { shape: [ -1, 2, 2 ] } } \
        batch_output { target_name: 'SAME' source_input: 'X' }";
    let mut batch = batch(text, [3, 1].map(|n| vec![floats("X", &[1, n, 4], &counting(&[n, 4], 0))]).into());
    assert_eq!(integers(&batch.gather("SHAPES").unwrap().unwrap().data), [3, 2, 2, 1, 2, 2]);
    let gathered = batch.gather("X").unwrap().unwrap();
    batch.scatter("SAME", gathered.dtype, &gathered.shape, gathered.data).unwrap();
    let shapes: Vec<_> = finish(batch).into_iter().map(|mut response| response.outputs.remove(0).shape).collect();
    assert_eq!(shapes, [[1, 3, 4], [1, 1, 4]]);
}

/// The shape of such a request has no batch dimension any more.
#[test]
fn a_request_for_no_inference_may_share_the_batch() {
    let text = RAGGED.replace("dims: [ -1, -1 ]", "dims: -1").replace("BATCH_ITEM_SHAPE", "BATCH_ITEM_SHAPE_FLATTEN");
    let inputs = vec![vec![floats("X", &[0, 2], &[1.0, 2.0])], vec![floats("X", &[2, 1], &[3.0, 4.0])]];
    let mut batch = batch(&text, inputs);
    let gathered = batch.gather("X").unwrap().unwrap();
    assert_eq!((&gathered.shape[..], values(&gathered.data)), (&[4][..], vec![1.0, 2.0, 3.0, 4.0]));
    assert_eq!(values(&batch.gather("SHAPES").unwrap().unwrap().data), [2.0, 1.0, 1.0]);
    batch.scatter("SAME", gathered.dtype, &gathered.shape, gathered.data).unwrap();
    let outputs: Vec<_> = finish(batch).into_iter().map(|mut response| response.outputs.remove(0)).collect();
    assert_eq!((&outputs[0].shape[..], values(&outputs[0].data)), (&[1, 2][..], vec![1.0, 2.0]));
    assert_eq!((&outputs[1].shape[..], values(&outputs[1].data)), (&[2, 1][..], vec![3.0, 4.0]));
}

#[test]
fn outputs_that_do_not_fit_are_errors() {
    let input = |length: i64| vec![floats("X", &[1, 1, length], &counting(&[length], 0))];
    for lengths in [&[2, 3][..], &[5]] {
        let mut batch = batch(RAGGED, lengths.iter().map(|length| input(*length)).collect());
        let short = floats("", &[4], &[0.0; 4]).data;
        let parts = lengths.iter().map(|length| format!("[1,1,{length}]")).collect::<Vec<_>>().join(", ");
        assert_eq!(
            batch.scatter("SAME", DType::F32, &[4], short.clone()).unwrap_err().message,
            format!("model '' gave output 'SAME' of shape [4], which is too short for its requests: {parts}")
        );
        // Alone, too: in company it would be an error.
        let rows = lengths.len();
        assert_eq!(
            batch.scatter("ROWS", DType::F32, &[4], short).unwrap_err().message,
            format!(
                "model '' gave output 'ROWS' of shape [4] for a batch of {rows}; its first dimension must be the batch"
            )
        );
    }
}
