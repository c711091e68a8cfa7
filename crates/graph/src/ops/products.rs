use super::inputs::required;
use super::{Contract, Facts, TensorOp, Tensors};
use crate::{Fact, OpError};
use halimede_tensor::Tensor;
use smallvec::{SmallVec, smallvec};

/// Products of one left operand with several right ones, each with an epilogue and an output of its own.
///
/// ```text
/// output i = epilogue i (left · right i)
/// ```
///
/// Inputs: the left operand, then for each part in turn what its product reads beside that. Outputs: one for each part.
#[derive(Debug, Clone, PartialEq)]
pub struct Products {
    /// At least one. All multiply the same [`super::Factors`].
    pub parts: Vec<ProductPart>,
}

/// One of several products of a left operand.
#[derive(Debug, Clone, PartialEq)]
pub struct ProductPart {
    /// The name of the node that it was: whoever decides in how many bits it is multiplied knows it by that.
    pub name: String,
    /// What it computes.
    pub product: Contract,
    /// How many inputs it has beside the left operand.
    pub inputs: usize,
}

impl Products {
    /// The inputs of each part, as its product takes them.
    pub fn inputs_of<'a, T: Clone>(
        &'a self,
        inputs: &'a [Option<T>],
    ) -> impl Iterator<Item = SmallVec<[Option<T>; 8]>> + 'a {
        let mut next = 1;
        self.parts.iter().map(move |part| {
            let own = next..next + part.inputs;
            next = own.end;
            // Inputs that are left out at the end may not be there at all.
            let own = inputs.get(own.start..own.end.min(inputs.len())).unwrap_or_default();
            inputs.iter().take(1).chain(own).cloned().collect()
        })
    }
}

impl TensorOp for Products {
    fn infer(&self, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
        required(inputs, 0)?;
        let mut facts = smallvec![];
        for (part, inputs) in self.parts.iter().zip(self.inputs_of(inputs)) {
            facts.extend(part.product.infer(&inputs)?);
        }
        Ok(facts)
    }

    fn evaluate(&self, inputs: &[Option<&Tensor>]) -> Result<Tensors, OpError> {
        required(inputs, 0)?;
        let mut tensors = smallvec![];
        for (part, inputs) in self.parts.iter().zip(self.inputs_of(inputs)) {
            tensors.extend(part.product.evaluate(&inputs)?);
        }
        Ok(tensors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{Binary, Map};

    #[test]
    fn each_part_has_its_own_weights_epilogue_and_output() {
        let part = |epilogue: Option<Map>| ProductPart {
            name: String::new(),
            inputs: 1 + usize::from(epilogue.is_some()),
            product: Contract { epilogue, ..Contract::matmul(0) },
        };
        let op = Products { parts: vec![part(Some(Map::binary(Binary::Add))), part(None)] };
        let x = Tensor::from_slice(&[1, 2], &[1f32, 10.0]).unwrap();
        let (w, v) =
            (Tensor::from_slice(&[2, 1], &[2f32, 3.0]).unwrap(), Tensor::from_slice(&[2, 2], &[1f32; 4]).unwrap());
        let bias = Tensor::from_slice(&[1], &[0.5f32]).unwrap();
        let inputs = [&x, &w, &bias, &v].map(Some);
        let made = op.evaluate(&inputs).unwrap();
        assert_eq!(made[0], Tensor::from_slice(&[1, 1], &[32.5f32]).unwrap());
        assert_eq!(made[1], Tensor::from_slice(&[1, 2], &[11f32, 11.0]).unwrap());
        assert!(op.evaluate(&inputs[..1]).is_err(), "weights are missing");
        let facts = [x, w, bias, v].map(Fact::constant);
        let known = op.infer(&facts.each_ref().map(Some)).unwrap();
        let shapes: Vec<_> = known.iter().map(|fact| fact.known_shape().unwrap().to_vec()).collect();
        assert_eq!(shapes, [[1, 1], [1, 2]]);
    }
}
