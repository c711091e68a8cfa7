//! Compressed bodies.

use std::io::{Read, Write};

use bytes::Bytes;
use flate2::{
    Compression,
    read::{MultiGzDecoder, ZlibDecoder},
    write::{GzEncoder, ZlibEncoder},
};
use halimede_serving::Error;

use super::super::headers::Encoding;

/// What `body` was before compression, if that has no more than `bytes_max`.
pub(super) fn decompress(encoding: Encoding, body: &[u8], bytes_max: usize) -> Result<Bytes, Error> {
    if body.is_empty() {
        return Err(Error::invalid("nothing to be decompressed"));
    }
    // The first bytes tell the formats apart, whatever the header says.
    let is_gzip = body.starts_with(&[0x1f, 0x8b]);
    let mut decoder: Box<dyn Read> = match (is_gzip, encoding) {
        (true, _) => Box::new(MultiGzDecoder::new(body)),
        (false, _) => Box::new(ZlibDecoder::new(body)),
    };
    let mut plain = Vec::with_capacity(body.len().saturating_mul(4).min(bytes_max).min(1 << 20));
    decoder
        .by_ref()
        .take(bytes_max as u64 + 1)
        .read_to_end(&mut plain)
        .map_err(|error| Error::invalid(format!("unable to decompress the request: {error}")))?;
    if plain.len() > bytes_max {
        return Err(Error::invalid(format!(
            "Decompressed data size exceeds the maximum allowed value of {bytes_max} bytes. Use --http-max-input-size \
             to increase the limit."
        )));
    }
    Ok(Bytes::from(plain))
}

/// Compresses the parts of a body, one behind the other.
pub(super) fn compress<'a>(encoding: Encoding, parts: impl Iterator<Item = &'a [u8]>) -> std::io::Result<Vec<u8>> {
    match encoding {
        Encoding::Identity => Ok(parts.flatten().copied().collect()),
        Encoding::Gzip => {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
            parts.into_iter().try_for_each(|part| encoder.write_all(part))?;
            encoder.finish()
        }
        Encoding::Deflate => {
            let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
            parts.into_iter().try_for_each(|part| encoder.write_all(part))?;
            encoder.finish()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_compressed_comes_back_within_limits() {
        for encoding in [Encoding::Gzip, Encoding::Deflate] {
            let packed = compress(encoding, [&b"abc"[..], &[0; 10_000]].into_iter()).unwrap();
            let plain = decompress(encoding, &packed, 10_003).unwrap();
            assert_eq!((&plain[..3], plain.len()), (&b"abc"[..], 10_003));
            let error = decompress(encoding, &packed, 10_002).unwrap_err();
            assert!(error.message.starts_with("Decompressed data size exceeds"), "{error}");
            assert!(decompress(encoding, b"no such thing", 100).is_err());
            assert!(decompress(encoding, &packed[..packed.len() / 2], 20_000).is_err());
        }
    }
}
