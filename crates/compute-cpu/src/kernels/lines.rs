//! Blocked values for kernels that treat each channel by itself: lines of channels are images that have so many.

use halimede_compute::layout::LINE_BYTES;
use halimede_compute::{Arguments, Prepared, Step, TensorDesc};

/// A tensor whose channels lie last as images of a line of channels each, in the order in which they lie where it is
/// blocked; `None` where channels fill no whole lines.
pub(super) fn in_lines(desc: &TensorDesc) -> Option<TensorDesc> {
    let (line, mut shape) = (LINE_BYTES / desc.dtype.size(), desc.shape.clone());
    let channels = shape.last_mut().filter(|channels| channels.is_multiple_of(line))?;
    let lines = std::mem::replace(channels, line) / line;
    shape[0] *= lines;
    Some(TensorDesc { dtype: desc.dtype, shape })
}

/// A step that makes a line of `line` bytes of each line of channels and image; afterwards the lines of an image follow
/// each other.
pub(super) struct ImagesOfLines {
    pub images: usize,
    pub lines: usize,
    pub line: usize,
    pub inner: Box<dyn Step>,
    /// Bytes that the inner step wants.
    pub workspace: usize,
}

impl ImagesOfLines {
    fn bytes(&self) -> usize {
        self.images * self.lines * self.line
    }

    pub fn prepared(self) -> Prepared {
        let workspace = self.bytes().next_multiple_of(LINE_BYTES) + self.workspace;
        Prepared { step: Box::new(self), workspace }
    }
}

impl Step for ImagesOfLines {
    fn run(&self, arguments: &Arguments<'_>) {
        let made = arguments.workspace.part(0, self.bytes());
        let workspace = arguments.workspace.part(self.bytes().next_multiple_of(LINE_BYTES), self.workspace);
        self.inner.run(&Arguments { outputs: &[made], workspace, ..*arguments });
        assert_eq!(arguments.outputs[0].len(), self.bytes());
        // SAFETY: the inner step is done, and nobody else writes either of them.
        let (made, output) = unsafe { (made.slice::<u8>(), arguments.outputs[0].slice_mut::<u8>()) };
        for (number, to) in output.chunks_exact_mut(self.line).enumerate() {
            let (image, line) = (number / self.lines, number % self.lines);
            to.copy_from_slice(&made[(line * self.images + image) * self.line..][..self.line]);
        }
    }
}
