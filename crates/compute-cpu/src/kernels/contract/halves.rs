//! Products of f16: weights are kept in half of the bytes of f32.
//!
//! ```text
//! few rows, for which the weights take longest to come          the matrix unit
//! more rows, where blocks of f16 gain nothing on this machine
//!     multiply whole matrices of f16                            the system's library, where that is faster than f32
//!     widen the weights, multiply f32                           the system's library, or own kernels
//! ```
//!
//! The last form does not round the rows: it is at least as near to the product of f32.

use super::blas::BlasStep;
use super::bnns::BnnsStep;
use super::layout::{Layout, Operand};
use super::{ContractKernel, GemmStep, Packed, Right, tiled_step};
use crate::blas::Lying;
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
        let weights = match &self.weights {
            Some(Packed::Halves(weights)) if weights.shape == rhs.shape[..] => Some(weights.clone()),
            Some(_) => return Err(OpError::unsupported("packed weights in another layout")),
            None => None,
        };
        let Some(layout) = Layout::new(&self.op, &lhs.shape, &rhs.shape, &output.shape, weights.is_some()) else {
            return Err(OpError::unsupported("this form of product in f16"));
        };
        let (map, isa) = (self.op.epilogue.as_ref(), machine.isa);
        let weights = match weights {
            Some(weights) if layout.m * layout.batches() > halves.rows_max => weights,
            weights => {
                let finish = Finish::<f16>::new(map, inputs, None, 2, output, isa)?;
                let step = (layout, Right::from(weights), finish, machine, halves.unit);
                return Ok(tiled_step::<f16, f32, f32>(step));
            }
        };
        if output.dtype != DType::F32 {
            return Err(OpError::unsupported(format!("a result in {}", output.dtype)));
        }
        let epilogue = Epilogue::new(map, inputs.get(2..).unwrap_or_default(), output, isa)?;
        // Sums of nothing are no matter of a library's.
        if let Some(bnns) = halves.bnns.filter(|_| layout.k > 0) {
            return Ok(BnnsStep { layout, weights, epilogue, machine, bnns }.prepared());
        }
        // Rows, once they are wide.
        let mut wide = layout.clone();
        wide.right = Operand { free: 1, k: layout.n };
        if let Some(blas) = machine.blas
            && let Some(operands) = BlasStep::operands(&wide)
        {
            debug_assert_eq!(operands[1], Lying::rows(layout.n));
            return Ok(BlasStep { layout: wide, operands, halves: Some(weights), epilogue, machine, blas }.prepared());
        }
        let right = Right::Halves(weights);
        Ok(GemmStep::new(layout, right, epilogue, machine, self.micro, output.len()).prepared(2))
    }
}
