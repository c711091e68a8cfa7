use super::file::Piece;
use super::store::Writer;
use halimede_tensor::{Buffer, DType, Element, Held, Region, Tensor, TensorError};
use parking_lot::Mutex;
use std::io;
use std::vec;

/// Where kernels get their packed weights while a graph is compiled.
#[derive(Debug, Default)]
pub struct Packer {
    state: Mutex<State>,
    packed: Mutex<Held>,
    /// Where what no file has is packed.
    region: Mutex<Region>,
}

#[derive(Debug, Default)]
enum State {
    /// Every piece is packed into memory.
    #[default]
    Memory,
    /// It is also written to a file.
    Writing(Writer),
    /// It was packed before, and lies in a file.
    Mapped { file: Buffer, pieces: vec::IntoIter<Piece> },
    /// The file held something else, or could not be written.
    Failed(io::Error),
}

impl Packer {
    pub(super) fn writing(writer: Writer) -> Packer {
        State::Writing(writer).into()
    }

    pub(super) fn mapped(file: Buffer, pieces: Vec<Piece>) -> Packer {
        State::Mapped { file, pieces: pieces.into_iter() }.into()
    }

    /// A tensor of `len` elements, which `pack` fills where no file has them; it is given zeros. `layout` names what is
    /// packed, so that one piece is not taken for another.
    pub fn pack<T: Element>(
        &self,
        layout: &str,
        len: usize,
        pack: impl FnOnce(&mut [T]),
    ) -> Result<Tensor, TensorError> {
        let packed = self.piece(layout, len, pack)?;
        *self.packed.lock() += packed.held();
        Ok(packed)
    }

    /// Bytes of all that was packed or found so far.
    pub(crate) fn packed(&self) -> Held {
        *self.packed.lock()
    }

    fn piece<T: Element>(&self, layout: &str, len: usize, pack: impl FnOnce(&mut [T])) -> Result<Tensor, TensorError> {
        let layout = layout_hash(layout, T::DTYPE);
        if let Some(bytes) = self.next(layout, len.saturating_mul(size_of::<T>())) {
            return Tensor::from_buffer(T::DTYPE, &[len], bytes);
        }
        let bytes = self.region.lock().zeroed(len.saturating_mul(size_of::<T>()))?;
        let mut packed = Tensor::from_buffer(T::DTYPE, &[len], bytes)?;
        pack(packed.slice_mut()?);
        let mut state = self.state.lock();
        if let State::Writing(writer) = &mut *state
            && let Err(error) = writer.write(layout, packed.bytes()?)
        {
            *state = State::Failed(error);
        }
        Ok(packed)
    }

    /// A constant in memory that nobody writes to: where it lies in the model's file it is copied, or found in one of ours.
    pub(crate) fn owned(&self, constant: &Tensor) -> Result<Tensor, TensorError> {
        // A row of the table for every number would cost more than it saves.
        const LEAST_BYTES: usize = 4096;
        let lying = match constant.bytes() {
            Ok(bytes) if bytes.len() >= LEAST_BYTES && constant.is_foreign() => bytes,
            _ => return constant.owned(),
        };
        let copy = self.piece::<u8>("constant", lying.len(), |bytes| bytes.copy_from_slice(lying))?;
        Tensor::from_buffer(constant.dtype(), constant.shape(), copy.buffer()?.clone())
    }

    /// Ends packing: what asks later, while the model runs, packs into memory.
    ///
    /// # Errors
    /// The file was not written, or did not hold what was asked for.
    pub fn finish(&self) -> io::Result<()> {
        match std::mem::take(&mut *self.state.lock()) {
            State::Memory => Ok(()),
            State::Writing(writer) => writer.finish(),
            State::Mapped { pieces, .. } if pieces.len() == 0 => Ok(()),
            State::Mapped { .. } => Err(misfit()),
            State::Failed(error) => Err(error),
        }
    }

    /// The bytes of the next piece of a file.
    fn next(&self, layout: u64, len: usize) -> Option<Buffer> {
        let mut state = self.state.lock();
        let State::Mapped { file, pieces } = &mut *state else { return None };
        let fits = |piece: &Piece| piece.layout == layout && piece.bytes.len() == len;
        let piece = pieces.next().filter(fits).and_then(|piece| file.part(piece.bytes.start, len));
        if piece.is_none() {
            *state = State::Failed(misfit());
        }
        piece
    }
}

impl From<State> for Packer {
    fn from(state: State) -> Packer {
        Packer { state: Mutex::new(state), ..Packer::default() }
    }
}

fn misfit() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it holds other pieces than were asked for")
}

fn layout_hash(layout: &str, dtype: DType) -> u64 {
    xxhash_rust::xxh3::xxh3_64(format!("{layout} {dtype}").as_bytes())
}
