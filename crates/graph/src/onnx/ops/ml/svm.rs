//! Support vector machines: kernels and the sums over support vectors.

use crate::OpError;
use crate::onnx::Attributes;

/// How alike two rows are.
pub enum Kernel {
    /// The dot product.
    Linear,
    /// `(γ x·y + c)^d`.
    Polynomial { gamma: f64, constant: f64, degree: f64 },
    /// `e^(-γ |x - y|²)`.
    Radial { gamma: f64 },
    /// `tanh(γ x·y + c)`.
    Sigmoid { gamma: f64, constant: f64 },
}

impl Kernel {
    /// Reads `kernel_type` and `kernel_params` (γ, c, d).
    pub fn read(attributes: &Attributes) -> Result<Kernel, OpError> {
        let parameters = attributes.floats("kernel_params")?.unwrap_or_default();
        let parameter = |index: usize| parameters.get(index).map_or(0.0, |&value| f64::from(value));
        let (gamma, constant, degree) = (parameter(0), parameter(1), parameter(2));
        Ok(match attributes.text_or("kernel_type", "LINEAR")? {
            "LINEAR" => Kernel::Linear,
            "POLY" => Kernel::Polynomial { gamma, constant, degree },
            "RBF" => Kernel::Radial { gamma },
            "SIGMOID" => Kernel::Sigmoid { gamma, constant },
            other => return Err(OpError::invalid(format!("kernel_type is '{other}', which ONNX does not know"))),
        })
    }

    /// The likeness of a row and a support vector.
    pub fn of(&self, row: &[f64], support: &[f32]) -> f64 {
        let pairs = || row.iter().zip(support).map(|(&x, &y)| (x, f64::from(y)));
        let dot = || pairs().map(|(x, y)| x * y).sum::<f64>();
        match self {
            Kernel::Linear => dot(),
            Kernel::Polynomial { gamma, constant, degree } => (gamma * dot() + constant).powf(*degree),
            Kernel::Radial { gamma } => (-gamma * pairs().map(|(x, y)| (x - y) * (x - y)).sum::<f64>()).exp(),
            Kernel::Sigmoid { gamma, constant } => (gamma * dot() + constant).tanh(),
        }
    }
}
