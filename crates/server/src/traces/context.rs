//! Where a trace goes on that began elsewhere: the header `traceparent` (W3C Trace Context, Level 1).

/// The span of a client that a request belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parent {
    pub trace_id: [u8; 16],
    pub span_id: [u8; 8],
}

impl Parent {
    /// Reads `traceparent`; `None` where it is not one, which W3C asks to be treated as none at all.
    pub fn parse(header: &str) -> Option<Self> {
        let mut parts = header.trim().split('-');
        let mut hex = |bytes: usize| parts.next().filter(|part| part.len() == 2 * bytes).and_then(digits);
        let (version, trace_id, span_id, _flags) = (hex(1)?, hex(16)?, hex(8)?, hex(1)?);
        // Versions to come may say more; this one does not.
        if version == [0xff] || (version == [0] && parts.next().is_some()) {
            return None;
        }
        let (trace_id, span_id) = (trace_id.try_into().ok()?, span_id.try_into().ok()?);
        (trace_id != [0; 16] && span_id != [0; 8]).then_some(Self { trace_id, span_id })
    }
}

/// The bytes of hexadecimal digits, which are small letters.
fn digits(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    text.as_bytes().chunks(2).map(|pair| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let parent = Parent::parse(good).unwrap();
        assert_eq!((parent.trace_id[0], parent.trace_id[15], parent.span_id[7]), (0x0a, 0x9c, 0x31));
        let more = "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-comes";
        assert_eq!(Parent::parse(more), Some(parent));
        for wrong in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c8031-b7ad6b7169203331-01",
            "00-öaf7651916cd43dd8448eb211c80319-b7ad6b7169203331-01",
        ] {
            assert_eq!(Parent::parse(wrong), None, "{wrong}");
        }
    }
}
