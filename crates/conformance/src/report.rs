use serde::Serialize;

/// What passed, what failed and why.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// Cases that gave the expected outputs.
    pub passed: usize,
    /// Cases that did not.
    pub failed: usize,
    /// Cases that could not be checked: no data.
    pub skipped: usize,
    /// Passed cases of which every computing node ran on a kernel of the unit.
    pub on_kernels: usize,
    /// One per failed case.
    pub failures: Vec<Failure>,
    /// Names of the cases that passed.
    #[serde(skip)]
    pub passes: Vec<String>,
    /// Names of the cases that passed without a kernel for every node.
    #[serde(skip)]
    pub by_reference: Vec<String>,
}

/// Why a case failed.
#[derive(Debug, Clone, Serialize)]
pub struct Failure {
    /// The case.
    pub case: String,
    /// The operator, with its domain where that is not ONNX's own; empty where the failure has none.
    pub operator: String,
    /// The opset of the operator's domain; 0 where the failure has no operator.
    pub opset: i64,
    /// What went wrong, with the worst element where elements differ.
    pub reason: String,
}

impl Failure {
    /// A failure of an operator that is named as in the graph: `Conv (opset 17)`.
    pub fn new(case: &str, operator: Option<&str>, reason: impl Into<String>) -> Failure {
        let operator = operator.unwrap_or_default();
        let (name, opset) = match operator.rsplit_once(" (opset ") {
            Some((name, opset)) => (name, opset.trim_end_matches(')').parse().unwrap_or(0)),
            None => (operator, 0),
        };
        Failure { case: case.to_owned(), operator: name.to_owned(), opset, reason: reason.into() }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.operator.as_str(), self.opset) {
            ("", _) => write!(f, "{}: {}", self.case, self.reason),
            (operator, 0) => write!(f, "{}: {operator}: {}", self.case, self.reason),
            (operator, opset) => write!(f, "{}: {operator} (opset {opset}): {}", self.case, self.reason),
        }
    }
}

impl Report {
    /// The summary in one line.
    pub fn summary(&self) -> String {
        format!(
            "{} passed, {} failed, {} skipped; of those passed {} on kernels, {} by reference evaluation",
            self.passed,
            self.failed,
            self.skipped,
            self.on_kernels,
            self.passed - self.on_kernels
        )
    }
}
