//! How messages are decoded: by prost, once it is clear that they cannot grow without bound. An input
//! without content takes two bytes of a message and hundreds of bytes of memory. Long ones are read and written beside the
//! loop of their connection.

use std::marker::PhantomData;

use bytes::Buf;
use prost::Message;
use tonic::{
    Status,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

use crate::event_loops::{BYTES_MAX, aside};

/// Most strings and messages that lie directly in a message: inputs, outputs, tensors, parameters.
const PARTS_MAX: usize = 1 << 16;

/// The codec of every method.
#[derive(Debug, Clone)]
pub(crate) struct BoundedCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for BoundedCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T: Message + Send + 'static, U: Message + Default + Send + 'static> Codec for BoundedCodec<T, U> {
    type Encode = T;
    type Decode = U;
    type Encoder = LongEncoder<T>;
    type Decoder = BoundedDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        LongEncoder(ProstCodec::<T, U>::default().encoder())
    }

    fn decoder(&mut self) -> Self::Decoder {
        BoundedDecoder(ProstCodec::<T, U>::default().decoder())
    }
}

/// Decodes messages of at most [`PARTS_MAX`] parts.
#[derive(Debug)]
pub(crate) struct BoundedDecoder<U>(ProstDecoder<U>);

impl<U: Message + Default> Decoder for BoundedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        aside(source.remaining() > BYTES_MAX, || {
            check(source.chunk())?;
            self.0.decode(source)
        })
    }
}

/// Encodes messages; long ones beside the loop.
#[derive(Debug)]
pub(crate) struct LongEncoder<T>(ProstEncoder<T>);

impl<T: Message> Encoder for LongEncoder<T> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, message: T, target: &mut EncodeBuf<'_>) -> Result<(), Status> {
        aside(message.encoded_len() > BYTES_MAX, || self.0.encode(message, target))
    }
}

/// Refuses a message of too many parts. Of one that breaks the format, what comes before that place
/// counts; prost reads no further either.
pub(crate) fn check(message: &[u8]) -> Result<(), Status> {
    let mut rest = message;
    let mut parts = 0;
    while let Some(is_part) = skip_field(&mut rest) {
        parts += usize::from(is_part);
        if parts > PARTS_MAX {
            return Err(Status::invalid_argument(format!(
                "the message holds more than {PARTS_MAX} inputs, outputs, tensors or parameters"
            )));
        }
    }
    Ok(())
}

/// Goes over the next field; whether it is a string or a message. `None` at the end.
fn skip_field(rest: &mut &[u8]) -> Option<bool> {
    let tag = varint(rest)?;
    let len = match tag & 7 {
        0 => {
            varint(rest)?;
            return Some(false);
        }
        1 => 8,
        2 => varint(rest)?,
        5 => 4,
        // Groups, which the protocol does not have; prost skips them.
        _ => 0,
    };
    *rest = rest.get(usize::try_from(len).ok()?..)?;
    Some(tag & 7 == 2)
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, others) = rest.split_first()?;
        *rest = others;
        value |= u64::from(byte & 0x7f) << shift;
        if *byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::proto::{ModelInferRequest, model_infer_request::InferInputTensor};

    #[test]
    fn parts_are_counted() {
        let request = |inputs| ModelInferRequest {
            model_name: "m".to_owned(),
            inputs: vec![InferInputTensor::default(); inputs],
            ..ModelInferRequest::default()
        };
        assert!(check(&request(PARTS_MAX - 1).encode_to_vec()).is_ok());
        let status = check(&request(PARTS_MAX).encode_to_vec()).unwrap_err();
        assert_eq!(status.code(), tonic::Code::InvalidArgument);
        assert!(status.message().contains("more than 65536 inputs"), "{status}");
    }

    #[test]
    fn broken_messages_are_left_to_prost() {
        for message in [&b"\xff\xff"[..], b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x0a\x05a", b"\x0d\x00"] {
            assert!(check(message).is_ok());
            assert!(ModelInferRequest::decode(message).is_err());
        }
    }
}
