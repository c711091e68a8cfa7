use crate::onnx::{OnnxNode, Outputs};
use crate::ops::{Op, Rnn, RnnActivation, RnnDirection, RnnKind};
use crate::{Builder, OpError, ValueId};

/// Lowers a recurrent layer whose inputs, outputs and attributes are those of ONNX's opset 14, with
/// these activations per direction where the node names none.
pub fn lower_recurrent(
    node: &OnnxNode,
    b: &mut Builder,
    kind: RnnKind,
    activations: &[&str],
) -> Result<Option<Outputs>, OpError> {
    let direction = match node.attributes.text_or("direction", "forward")? {
        "forward" => RnnDirection::Forward,
        "reverse" => RnnDirection::Reverse,
        "bidirectional" => RnnDirection::Bidirectional,
        other => {
            return Err(OpError::invalid(format!(
                "direction is '{other}'; ONNX knows forward, reverse and bidirectional"
            )));
        }
    };
    let directions = if direction == RnnDirection::Bidirectional { 2 } else { 1 };
    let Some(hidden) = hidden_size(node, b)? else { return Ok(None) };
    let op = Rnn {
        kind,
        direction,
        hidden,
        activations: read_activations(node, activations, directions)?,
        clip: node.attributes.float_or("clip", 0.0)?,
        batch_first: node.attributes.flag_or("layout", false)?,
    };
    let inputs: Vec<Option<ValueId>> = (0..node.inputs.len()).map(|index| node.optional(index)).collect();
    for required in 0..3 {
        node.input(required)?;
    }
    Ok(Some(b.add_all(Op::Rnn(op), &inputs)?))
}

/// The attribute, or else the last size of the recurrent weights `[directions, gates · hidden, hidden]`.
fn hidden_size(node: &OnnxNode, b: &Builder) -> Result<Option<usize>, OpError> {
    if let Some(size) = node.attributes.int("hidden_size")? {
        let positive = usize::try_from(size).ok().filter(|&size| size > 0);
        return positive
            .map(Some)
            .ok_or_else(|| OpError::invalid(format!("hidden_size is {size}; it must be positive")));
    }
    let weights = node.input(2)?;
    Ok(b.fact(weights).shape.as_ref().and_then(|shape| shape.last()?.size()))
}

fn read_activations(node: &OnnxNode, default: &[&str], directions: usize) -> Result<Vec<RnnActivation>, OpError> {
    let names: Vec<String> = match node.attributes.strings("activations")? {
        Some(names) => names.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect(),
        None => std::iter::repeat_n(default, directions).flatten().map(|&name| name.to_owned()).collect(),
    };
    if names.len() != default.len() * directions {
        let needed = default.len() * directions;
        return Err(OpError::invalid(format!("{} activations are named; this layer needs {needed}", names.len())));
    }
    // Only the activations that have a parameter take the next number of its list.
    let mut alphas = node.attributes.floats("activation_alpha")?.unwrap_or_default().iter().copied();
    let mut betas = node.attributes.floats("activation_beta")?.unwrap_or_default().iter().copied();
    let mut alpha = |default: f32| alphas.next().unwrap_or(default);
    let mut beta = |default: f32| betas.next().unwrap_or(default);
    let read = |name: &String| {
        Ok(match name.to_ascii_lowercase().as_str() {
            "sigmoid" => RnnActivation::Sigmoid,
            "tanh" => RnnActivation::Tanh,
            "relu" => RnnActivation::Relu,
            "softsign" => RnnActivation::Softsign,
            "softplus" => RnnActivation::Softplus,
            "affine" => RnnActivation::Affine(alpha(1.0), beta(0.0)),
            "leakyrelu" => RnnActivation::LeakyRelu(alpha(0.01)),
            "thresholdedrelu" => RnnActivation::ThresholdedRelu(alpha(1.0)),
            "scaledtanh" => RnnActivation::ScaledTanh(alpha(1.0), beta(1.0)),
            "hardsigmoid" => RnnActivation::HardSigmoid(alpha(0.2), beta(0.5)),
            "elu" => RnnActivation::Elu(alpha(1.0)),
            _ => return Err(OpError::invalid(format!("activation '{name}' is not one of ONNX"))),
        })
    };
    names.iter().map(read).collect()
}
