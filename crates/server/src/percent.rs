//! Percent-encoding (RFC 3986, 2.1), of names in paths, variables of OpenTelemetry and messages of gRPC.

/// The bytes of a percent-encoded text, and whether it was one: a `%` that begins nothing stays.
pub(crate) fn decoded(text: &str) -> (Vec<u8>, bool) {
    let digit = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16)).map(|digit| digit as u8);
    let (bytes, mut decoded, mut is_encoded, mut at) = (text.as_bytes(), Vec::with_capacity(text.len()), true, 0);
    while let Some(&byte) = bytes.get(at) {
        let pair = (byte == b'%').then(|| Some(digit(bytes.get(at + 1))? << 4 | digit(bytes.get(at + 2))?));
        decoded.push(pair.flatten().unwrap_or(byte));
        is_encoded &= pair != Some(None);
        at += if pair.flatten().is_some() { 3 } else { 1 };
    }
    (decoded, is_encoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percent_sign_that_begins_nothing_stays() {
        for (text, expected, is_encoded) in [
            ("", "", true),
            ("a%20b%25", "a b%", true),
            ("100%", "100%", false),
            ("%2%41", "%2A", false),
            ("%+1", "%+1", false),
            ("%C3%bc", "ü", true),
            ("%ü", "%ü", false),
        ] {
            assert_eq!(decoded(text), (expected.as_bytes().to_vec(), is_encoded), "{text}");
        }
    }
}
