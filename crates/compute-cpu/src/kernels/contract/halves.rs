//! Products of f16 by constant weights, which are kept in half of the bytes of f32.
//!
//! ```text
//! few rows, for which the weights take longest to come, or all     the matrix unit
//! more rows, where that is faster                                  the system's library
//! ```
//!
//! Both round the rows: what one of them cannot hold is infinite in the other, too, and the guard sees it whatever its samples'
//! rows are.

use super::bnns::BnnsStep;
use super::layout::Layout;
use super::{ContractKernel, Packed, Right, tiled_step};
use crate::kernels::Machine;
use crate::kernels::epilogue::Epilogue;
use crate::kernels::tiled::Finish;
use half::f16;
use halimede_compute::{Prepared, TensorDesc};
use halimede_graph::OpError;
use halimede_tensor::DType;

impl ContractKernel {
    pub(super) fn prepare_halves(
        &self,
        lhs: &TensorDesc,
        rhs: &TensorDesc,
        inputs: &[Option<TensorDesc>],
        output: &TensorDesc,
        machine: Machine,
    ) -> Result<Prepared, OpError> {
        let (DType::F32, DType::F32, Some(halves)) = (lhs.dtype, rhs.dtype, machine.halves) else {
            return Err(OpError::unsupported(format!("products of {} and {} in f16 here", lhs.dtype, rhs.dtype)));
        };
        let Some(Packed::Halves(weights)) = self.weights.as_ref() else {
            return Err(OpError::unsupported("packed weights in another layout"));
        };
        let Some(layout) = Layout::new(&self.op, &lhs.shape, &rhs.shape, &output.shape, true)
            .filter(|_| weights.shape == rhs.shape[..])
        else {
            return Err(OpError::unsupported("this form of product in f16"));
        };
        let (map, isa, weights) = (self.op.epilogue.as_ref(), machine.isa, weights.clone());
        let rows = layout.m * layout.batches();
        // Sums of nothing are no matter of a library's.
        if let Some(bnns) = halves.by_library(rows).filter(|_| layout.k > 0 && output.dtype == DType::F32) {
            let epilogue = Epilogue::new(map, inputs.get(2..).unwrap_or_default(), output, isa)?;
            return Ok(BnnsStep { layout, weights, epilogue, machine, bnns }.prepared());
        }
        let finish = Finish::<f16>::new(map, inputs, None, 2, output, isa)?;
        Ok(tiled_step::<f16, f32, f32>((layout, Right::Packed(weights), finish, machine, halves.unit)))
    }
}
