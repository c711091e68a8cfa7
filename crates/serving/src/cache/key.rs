//! What responses are kept by.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::{request::Request, wire::datatype_name};

/// What a request asks: the model, its inputs and the outputs that it wants. Two requests with the same key
/// have the same answer, and nobody can make another with a key that is given.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheKey([u8; 32]);

impl CacheKey {
    /// The key of a request whose inputs are complete. `scope` tells models of the same name apart.
    pub(crate) fn new(scope: &str, version: i64, request: &Request) -> Self {
        let mut hash = Sha256::new();
        let mut text = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        text(scope.as_bytes());
        text(request.model.as_bytes());
        text(&version.to_le_bytes());
        let mut inputs: Vec<_> = request.inputs.iter().collect();
        inputs.sort_by(|a, b| a.name.cmp(&b.name));
        text(&(inputs.len() as u64).to_le_bytes());
        for input in inputs {
            text(input.name.as_bytes());
            text(input.dtype.map_or("", datatype_name).as_bytes());
            let shape: Vec<u8> = input.shape.iter().flat_map(|dim| dim.to_le_bytes()).collect();
            text(&shape);
            text(&input.data);
        }
        let mut outputs: Vec<_> = request.outputs.iter().collect();
        outputs.sort_by(|a, b| a.name.cmp(&b.name));
        for output in outputs {
            text(output.name.as_bytes());
            text(&output.classification.to_le_bytes());
        }
        Self(hash.finalize().into())
    }

    /// The bytes of the key.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// Hexadecimal digits.
impl fmt::Display for CacheKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for CacheKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CacheKey({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        request::RequestedOutput,
        testing::{floats, request, strings},
    };

    #[test]
    fn what_changes_the_answer_changes_the_key() {
        let key = |change: &dyn Fn(&mut Request)| {
            let (mut request, _waiting) =
                request("m", [floats("A", &[1, 2], &[1.0, 2.0]), floats("B", &[1, 1], &[3.0])]);
            change(&mut request);
            CacheKey::new("", 1, &request)
        };
        let plain = key(&|_| {});
        assert_eq!(plain, key(&|_| {}));
        // Neither the order of inputs nor who asks matters.
        assert_eq!(plain, key(&|request| request.inputs.reverse()));
        assert_eq!(plain, key(&|request| request.id = "id".to_owned()));
        let output = |name: &str, classification| RequestedOutput { name: name.to_owned(), classification };
        let changes: &[&dyn Fn(&mut Request)] = &[
            &|request| request.model = "n".to_owned(),
            &|request| request.inputs[0] = floats("A", &[1, 2], &[1.0, 2.5]),
            &|request| request.inputs[0].shape = vec![2, 1],
            &|request| request.inputs[0].dtype = Some(halimede_tensor::DType::I32),
            &|request| request.inputs[0].name = "AB".to_owned(),
            &|request| drop(request.inputs.pop()),
            &|request| request.outputs = vec![output("X", 0)],
            &|request| request.outputs = vec![output("X", 1)],
            &|request| request.outputs = vec![output("X", 0), output("Y", 0)],
            // The same bytes, cut elsewhere.
            &|request| request.inputs = vec![strings("A", &[2], &["ab", "c"])],
            &|request| request.inputs = vec![strings("A", &[2], &["a", "bc"])],
        ];
        let mut keys: Vec<CacheKey> = changes.iter().map(|change| key(change)).collect();
        keys.push(plain);
        let (request, _waiting) = request("m", []);
        keys.extend([CacheKey::new("s", 1, &request), CacheKey::new("", 2, &request), CacheKey::new("", 1, &request)]);
        keys.sort();
        let count = keys.len();
        keys.dedup();
        assert_eq!(keys.len(), count);
    }
}
