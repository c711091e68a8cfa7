//! What a unit that runs kernels one by one gives for each node.

use crate::layout::{Layouts, Stances};
use crate::tuning::Tunable;
use halimede_graph::OpError;
use halimede_tensor::{DType, Shape, View, element_count};
use smallvec::SmallVec;

/// A datatype and a shape.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TensorDesc {
    /// Datatype; never String.
    pub dtype: DType,
    /// Dimensions, outermost first.
    pub shape: Shape,
}

impl TensorDesc {
    /// Size in bytes. Shapes in a plan were checked when it was made, so the product fits.
    pub fn bytes(&self) -> usize {
        self.len() * self.dtype.size()
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        element_count(&self.shape).unwrap_or(usize::MAX / 16)
    }

    /// Whether some dimension is 0.
    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }
}

/// A node compiled by a unit: code chosen, weights packed, good for any shapes.
pub trait Kernel: Send + Sync {
    /// A name for listings, such as `gemm f32 avx512`.
    fn name(&self) -> &str;

    /// Chooses blocking and partition for shapes. An error means that the inputs are wrong.
    fn prepare(&self, inputs: &[Option<TensorDesc>], outputs: &[TensorDesc]) -> Result<Prepared, OpError>;

    /// How operands of these shapes may lie; `None` where all of them are row-major.
    fn stances(&self, _inputs: &[Option<TensorDesc>], _outputs: &[TensorDesc]) -> Option<Stances> {
        None
    }

    /// [`Kernel::prepare`] where operands lie as [`Kernel::stances`] allows. Of a band that is asked for, shapes have its rows; only
    /// convolutions and pooling with the channels last are asked for such.
    fn prepare_laid_out(
        &self,
        inputs: &[Option<TensorDesc>],
        outputs: &[TensorDesc],
        layouts: &Layouts,
    ) -> Result<Prepared, OpError> {
        match layouts.are_plain() {
            true => self.prepare(inputs, outputs),
            false => Err(OpError::unsupported("blocked operands, or parts of images")),
        }
    }

    /// What can be chosen about the kernel for shapes; `None` where nothing can.
    fn tunable(&self, _inputs: &[Option<TensorDesc>], _outputs: &[TensorDesc]) -> Option<Tunable> {
        None
    }

    /// Pairs (input, output) that may share memory when they have equal sizes: the step reads each
    /// element of the input before, or when, it writes that element of the output.
    fn in_place(&self) -> SmallVec<[(usize, usize); 2]> {
        SmallVec::new()
    }

    /// Where in the first output, in bytes, a step puts each of its inputs as it is, operands lying so: `None` where it does
    /// something else. Such an input may have been made there, and then the step leaves it alone.
    fn joins(
        &self,
        _inputs: &[Option<TensorDesc>],
        _outputs: &[TensorDesc],
        _layouts: &Layouts,
    ) -> Option<SmallVec<[usize; 4]>> {
        None
    }

    /// Inputs that were packed into the kernel and are not read when it runs: their original bytes may
    /// be dropped from memory.
    fn consumed(&self) -> SmallVec<[usize; 2]> {
        SmallVec::new()
    }

    /// Bytes of weights in this kernel's own layout.
    fn packed_bytes(&self) -> usize {
        0
    }
}

/// A step that is ready for one set of shapes.
pub struct Prepared {
    /// The step.
    pub step: Box<dyn Step>,
    /// Bytes of scratch memory it wants.
    pub workspace: usize,
}

/// Runs. Nothing is allocated here.
pub trait Step: Send + Sync {
    /// Whether the inputs' values are what the operator takes, such as indices that lie inside. Called
    /// before every run.
    fn check(&self, _arguments: &Arguments<'_>) -> Result<(), OpError> {
        Ok(())
    }

    /// Reads `arguments.inputs`, writes every byte of `arguments.outputs`; of a blocked one every row and, where it has one, the
    /// border, while what lies behind the rows of a piece is nobody's. Its size is [`Layout::bytes`](crate::layout::Layout::bytes); of a
    /// band it ends somewhere behind its last row.
    ///
    /// The plan promises: views have the sizes that the step was prepared for and are aligned to 64
    /// bytes (constants and request inputs: to their element); outputs and workspace overlap nothing
    /// else that is read or written meanwhile, but for the pairs of [`Kernel::in_place`] and what [`Kernel::joins`].
    fn run(&self, arguments: &Arguments<'_>);

    /// The step as tasks, where it is a loop over such: those of several steps may then run in one loop.
    fn tasks(&self) -> Option<&dyn Tasks> {
        None
    }
}

/// A step as tasks that threads share. [`Step::run`] begins, and runs each once.
pub trait Tasks: Send + Sync {
    /// How many there are.
    fn count(&self) -> usize;

    /// Threads that may run them at the same time.
    fn threads(&self) -> usize;

    /// Steps that read the same left operand and give the same text may have one workspace: a thread then finds there what it
    /// made of the operand for another one. `None` where the workspace belongs to the step alone.
    fn sharing(&self) -> Option<String> {
        None
    }

    /// Makes ready what all tasks read. It runs alone.
    fn begin(&self, arguments: &Arguments<'_>);

    /// Runs a task by the thread of this number, which lies below [`Tasks::threads`] and which no other call has meanwhile.
    fn run_task(&self, arguments: &Arguments<'_>, thread: usize, task: usize);
}

/// What one run of a step reads and writes.
pub struct Arguments<'a> {
    /// Inputs in the node's order; `None` where missing or packed away. For reading only.
    pub inputs: &'a [Option<View<'a>>],
    /// Outputs in the node's order, for writing.
    pub outputs: &'a [View<'a>],
    /// Scratch memory with arbitrary contents.
    pub workspace: View<'a>,
    /// Some output is a tensor that the caches near a core do not hold, or a slice of one.
    pub is_far: bool,
}
