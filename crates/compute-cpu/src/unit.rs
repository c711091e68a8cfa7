use crate::kernels::Kernels;
use crate::{Isa, Pool};
use halimede_compute::{
    Capabilities, CompileError, CompileOptions, ComputeUnit, CostHint, Executable, OpDesc, Precision, Program,
};
use halimede_graph::Graph;
use std::sync::Arc;

/// The CPU as a compute unit.
pub struct CpuUnit {
    isa: Isa,
    pool: Arc<Pool>,
    bytes_max: usize,
}

/// Choices for the CPU unit.
#[derive(Debug, Clone, Default)]
pub struct CpuOptions {
    /// Threads that run one operation together; every core where `None`.
    pub threads: Option<usize>,
    /// The instruction set; the widest of the machine where `None`.
    pub isa: Option<Isa>,
    /// Memory that the tensors of one run may take; half of the machine's, or of its container's, where
    /// `None`: a step outside of the plan may hold as much again while it writes its outputs.
    pub bytes_max: Option<usize>,
}

impl CpuUnit {
    /// The unit with a pool of its own.
    pub fn new(options: &CpuOptions) -> CpuUnit {
        let cores = || std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let pool = Arc::new(Pool::new(options.threads.unwrap_or_else(cores)));
        let usable = || halimede_platform::memory::machine().usable().and_then(|bytes| usize::try_from(bytes).ok());
        let bytes_max = options.bytes_max.or_else(|| usable().map(|bytes| bytes / 2)).unwrap_or(usize::MAX);
        CpuUnit { isa: options.isa.unwrap_or_else(Isa::detect), pool, bytes_max }
    }
}

impl ComputeUnit for CpuUnit {
    fn name(&self) -> &str {
        "cpu"
    }

    fn describe(&self) -> Capabilities {
        Capabilities {
            device: std::env::consts::ARCH.to_owned(),
            features: vec![self.isa.name().to_owned()],
            threads: self.pool.threads(),
            precisions: vec![Precision::Exact],
        }
    }

    fn supports(&self, operation: &OpDesc<'_>) -> Option<CostHint> {
        Kernels::new(self.isa, self.pool.clone()).cost(operation)
    }

    fn compile(&self, part: &Graph, _options: &CompileOptions) -> Result<Arc<dyn Executable>, CompileError> {
        let kernels: Arc<dyn halimede_compute::Kernels> = Arc::new(Kernels::new(self.isa, self.pool.clone()));
        Ok(Arc::new(Program::new(part.clone(), &kernels, self.bytes_max)?))
    }
}
