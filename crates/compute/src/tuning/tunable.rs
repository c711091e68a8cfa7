use super::{Config, Operator, Space};

/// What a kernel expects of a configuration: seconds, or anything that grows with them.
pub type Cost = Box<dyn Fn(&Config) -> f64>;

/// What can be chosen about a kernel for certain shapes.
pub struct Tunable {
    /// The operation.
    pub operator: Operator,
    /// The configurations that the kernel has for it.
    pub space: Space,
    /// The one among them that was chosen; `None` where that is left to the kernel.
    pub chosen: Option<Config>,
    /// What each of them would cost.
    pub cost: Cost,
}
