use crate::OpError;
use crate::onnx::{Attributes, OnnxNode};
use halimede_tensor::DType;

/// A datatype that an integer attribute names (`TensorProto.DataType`), where the node has it.
pub fn dtype_attribute(attributes: &Attributes, name: &str) -> Result<Option<DType>, OpError> {
    let unknown = |code| OpError::invalid(format!("attribute '{name}' is {code}, which is no datatype of ONNX"));
    attributes.int(name)?.map(|code| DType::from_onnx(code).ok_or_else(|| unknown(code))).transpose()
}

/// The attribute `blocksize`, which must be positive.
pub fn block_size(node: &OnnxNode) -> Result<i64, OpError> {
    let size = node.attributes.required("blocksize", node.attributes.int("blocksize")?)?;
    // The square of anything larger overflows.
    if !(1..=1 << 31).contains(&size) {
        return Err(OpError::invalid(format!("blocksize is {size}; it must be positive")));
    }
    Ok(size)
}
