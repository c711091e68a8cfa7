//! Headers that change how bodies are read and written.

use halimede_serving::Error;
use hyper::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderMap, HeaderName};

/// Bytes of JSON in front of the binary tensors.
pub(super) const INFERENCE_HEADER_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");

/// How a body is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Identity,
    Gzip,
    /// The zlib format, as HTTP calls it.
    Deflate,
}

/// The compression of the request.
///
/// # Errors
/// One that the server does not know.
pub(super) fn content_encoding(headers: &HeaderMap) -> Result<Encoding, Error> {
    match headers.get(CONTENT_ENCODING).map(|value| value.as_bytes()) {
        None | Some(b"" | b"identity") => Ok(Encoding::Identity),
        Some(b"gzip") => Ok(Encoding::Gzip),
        Some(b"deflate") => Ok(Encoding::Deflate),
        Some(_) => Err(Error::unsupported("Unsupported compression type")),
    }
}

/// The compression that the client likes best, by weight; the first of equal ones.
pub(super) fn accepted_encoding(headers: &HeaderMap) -> Encoding {
    let Some(accepted) = headers.get(ACCEPT_ENCODING).and_then(|value| value.to_str().ok()) else {
        return Encoding::Identity;
    };
    let mut best = (Encoding::Identity, 0.0);
    for choice in accepted.split(',') {
        let choice = choice.trim_start_matches(' ');
        let (name, weight) = match choice.split_once(";q=") {
            None => (choice, 1.0),
            Some((name, weight)) => match weight.trim().parse::<f64>() {
                Ok(weight) => (name, weight),
                Err(_) => continue,
            },
        };
        let encoding = match name {
            "identity" => Encoding::Identity,
            "gzip" => Encoding::Gzip,
            "deflate" => Encoding::Deflate,
            _ => continue,
        };
        if weight > best.1 {
            best = (encoding, weight);
        }
    }
    best.0
}

/// How many bytes of a body of `content_length` are JSON. 0 says that the body is one raw tensor.
pub(super) fn inference_header_length(headers: &HeaderMap, content_length: usize) -> Result<usize, Error> {
    let Some(value) = headers.get(&INFERENCE_HEADER_LENGTH) else { return Ok(content_length) };
    let text = String::from_utf8_lossy(value.as_bytes());
    let length = leading_integer(&text);
    usize::try_from(length).ok().filter(|length| *length <= content_length).ok_or_else(|| {
        Error::invalid(format!("inference header size should be in range (0, {content_length}), got: {text}"))
    })
}

/// C's `atoi`: white space, a sign, digits; 0 where there are none.
fn leading_integer(text: &str) -> i64 {
    let text = text.trim_start();
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let magnitude = digits
        .bytes()
        .take_while(u8::is_ascii_digit)
        .fold(0i64, |all, digit| all.saturating_mul(10).saturating_add(i64::from(digit - b'0')));
    if negative { -magnitude } else { magnitude }
}
