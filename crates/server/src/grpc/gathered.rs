//! Long messages are handed over once they are there. Tonic makes room for a whole message when it sees its head, which a
//! client can send without the rest.

use std::{
    collections::VecDeque,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use hyper::body::{Body, Frame, SizeHint};

use super::MESSAGE_BYTES_MAX;

/// Messages of more bytes are gathered: room for a shorter one is there at once, and its bytes are copied as they come.
const GATHERED_FROM: usize = 4 << 20;

/// Bytes of a message's head: whether it is compressed, and its length, big end first.
const HEAD_BYTES: usize = 5;

/// A body of messages, of which each long one comes in one go.
#[derive(Debug)]
pub(super) struct Gathered<B> {
    body: B,
    /// Data that came, in order. The first `ready` bytes may be handed over.
    data: VecDeque<Bytes>,
    ready: usize,
    /// Bytes behind them, of a message that is not whole or of a head.
    held: usize,
    head: [u8; HEAD_BYTES],
    /// Bytes of the head that are known.
    head_len: usize,
    /// What is missing of the current message.
    missing: usize,
    /// Whether the current message is a long one.
    is_long: bool,
    /// What came behind the data.
    last: Option<Frame<Bytes>>,
    is_over: bool,
}

impl<B> Gathered<B> {
    pub fn new(body: B) -> Self {
        Self {
            body,
            data: VecDeque::new(),
            ready: 0,
            held: 0,
            head: [0; HEAD_BYTES],
            head_len: 0,
            missing: 0,
            is_long: false,
            last: None,
            is_over: false,
        }
    }

    /// Goes over data that came, and finds out how much of all may be handed over.
    fn count(&mut self, mut rest: &[u8]) {
        while !rest.is_empty() {
            if self.missing == 0 {
                let part = rest.len().min(HEAD_BYTES - self.head_len);
                self.head[self.head_len..self.head_len + part].copy_from_slice(&rest[..part]);
                self.head_len += part;
                self.held += part;
                rest = &rest[part..];
                if self.head_len < HEAD_BYTES {
                    break;
                }
                self.head_len = 0;
                let [_, len @ ..] = self.head;
                self.missing = u32::from_be_bytes(len) as usize;
                // What is longer than may be is refused by who reads it.
                self.is_long = (GATHERED_FROM + 1..=MESSAGE_BYTES_MAX).contains(&self.missing);
            } else {
                let part = rest.len().min(self.missing);
                self.missing -= part;
                self.held += part;
                rest = &rest[part..];
            }
            if self.missing == 0 || !self.is_long {
                self.ready += std::mem::take(&mut self.held);
            }
        }
    }

    /// Takes data. What may be handed over at once, as most may, comes back and is not kept.
    fn take(&mut self, data: Bytes) -> Option<Bytes> {
        self.count(&data);
        if self.data.is_empty() && self.ready == data.len() {
            self.ready = 0;
            return Some(data).filter(|data| !data.is_empty());
        }
        self.data.push_back(data);
        self.next()
    }

    /// The next piece that may be handed over.
    fn next(&mut self) -> Option<Bytes> {
        if self.ready == 0 {
            return None;
        }
        let first = self.data.front_mut()?;
        let piece = first.split_to(first.len().min(self.ready));
        if !first.has_remaining() {
            self.data.pop_front();
        }
        self.ready -= piece.len();
        Some(piece)
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Gathered<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        loop {
            if let Some(piece) = self.next() {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            if self.is_over {
                return Poll::Ready(self.last.take().map(Ok));
            }
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        if let Some(piece) = self.take(data) {
                            return Poll::Ready(Some(Ok(Frame::data(piece))));
                        }
                    }
                    Err(frame) => self.last = Some(frame),
                },
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => self.is_over = true,
            }
            if self.last.is_some() || self.is_over {
                self.is_over = true;
                // That a message stays incomplete is for who reads it to tell, who sees no head of a long one.
                let held = std::mem::take(&mut self.held);
                self.ready += if self.is_long && self.missing > 0 { held.min(1) } else { held };
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ready == 0 && self.held == 0 && self.last.is_none() && (self.is_over || self.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::{BodyExt as _, StreamBody};
    use proptest::prelude::*;

    use super::*;

    fn message(len: usize) -> Vec<u8> {
        let bytes: Vec<u8> = (0..len).map(|place| (place % 251) as u8).collect();
        [&[0][..], &(len as u32).to_be_bytes(), &bytes].concat()
    }

    /// What is handed over, in pieces, of data that comes in pieces and does not end.
    fn handed_over(pieces: &[&[u8]]) -> Vec<usize> {
        let mut gathered = Gathered::new(());
        let mut lens = Vec::new();
        for piece in pieces {
            let first = gathered.take(Bytes::copy_from_slice(piece));
            lens.extend(first.into_iter().chain(std::iter::from_fn(|| gathered.next())).map(|piece| piece.len()));
        }
        lens
    }

    #[test]
    fn short_messages_come_as_they_are_and_long_ones_when_they_are_whole() {
        let short = message(100);
        assert_eq!(handed_over(&[&short]), [105]);
        assert_eq!(handed_over(&[&short[..50], &short[50..]]), [50, 55]);
        // A head in parts waits for its rest.
        assert_eq!(handed_over(&[&short[..2], &short[2..4], &short[4..]]), [2, 2, 101]);
        let long = message(GATHERED_FROM + 1);
        let half = long.len() / 2;
        assert!(handed_over(&[&long[..half]]).is_empty());
        assert_eq!(handed_over(&[&long[..half], &long[half..]]), [half, long.len() - half]);
        // What is whole ahead of it is handed over.
        let both = [&short[..], &long[..half]].concat();
        assert_eq!(handed_over(&[&both]), [105]);
        // Longer than may be: who reads sees the head.
        assert_eq!(handed_over(&[&[0, 255, 255, 255, 255]]), [5]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn all_bytes_come_in_order(lens in prop::collection::vec(0usize..200, 0..8), cut in 0usize..50, step in 1usize..300) {
            let mut all: Vec<u8> = lens.iter().flat_map(|&len| message(len)).collect();
            let short = all.len();
            all.extend(message(GATHERED_FROM + 1));
            all.truncate(all.len() - cut);
            let step = if all.len() > 1 << 20 { step << 12 } else { step };
            let pieces: Vec<_> = all.chunks(step)
                .map(|piece| Ok::<_, Infallible>(Frame::data(Bytes::copy_from_slice(piece))))
                .collect();
            let body = Gathered::new(StreamBody::new(tokio_stream::iter(pieces)));
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let found = runtime.block_on(body.collect()).unwrap().to_bytes();
            // Of a long message that stays incomplete, the first byte says that there was one.
            let expected = if cut == 0 { all.len() } else { short + 1 };
            prop_assert!(found == all[..expected]);
        }
    }
}
