//! Where a trace goes on that began elsewhere, and where others go on with it: the header `traceparent` (W3C Trace Context,
//! Level 1).

use std::collections::BTreeMap;

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

/// The identifiers of a trace and of spans in it, of those that somebody knows before they are sent.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// The span of the client that the trace belongs to.
    pub parent: Option<Parent>,
    trace_id: Option<[u8; 16]>,
    /// Spans of requests, by the requests' numbers.
    spans: BTreeMap<u64, [u8; 8]>,
}

/// Makes an identifier; none is all zeros.
pub(super) type NewId<'a> = &'a mut dyn FnMut() -> u64;

impl Names {
    pub fn of(parent: Option<Parent>) -> Self {
        Self { parent, trace_id: parent.map(|parent| parent.trace_id), spans: BTreeMap::new() }
    }

    /// The identifier of the trace, the same each time.
    pub fn trace_id(&mut self, new_id: NewId<'_>) -> [u8; 16] {
        *self.trace_id.get_or_insert_with(|| (u128::from(new_id()) << 64 | u128::from(new_id())).to_be_bytes())
    }

    /// The span of a request, the same each time.
    pub fn span_id(&mut self, request: u64, new_id: NewId<'_>) -> [u8; 8] {
        *self.spans.entry(request).or_insert_with(|| new_id().to_be_bytes())
    }

    /// What lets others go on with the trace within the span of a request.
    pub fn traceparent(&mut self, request: u64, new_id: NewId<'_>) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        format!("00-{}-{}-01", hex(&self.trace_id(new_id)), hex(&self.span_id(request, new_id)))
    }
}

/// A random number that is not 0.
pub(super) fn new_id() -> u64 {
    loop {
        match getrandom::u64() {
            Ok(0) => {}
            Ok(id) => return id,
            // Without the system's random numbers, the clock's: not secret, and different all the same.
            Err(_) => {
                let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
                return (now.as_nanos() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            }
        }
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
    fn names_stay_and_are_headers_that_can_be_read() {
        let mut last = 0;
        let mut new_id = || {
            last += 1;
            last
        };
        let mut names = Names::default();
        let text = names.traceparent(5, &mut new_id);
        assert_eq!(text, "00-00000000000000010000000000000002-0000000000000003-01");
        assert_eq!(names.traceparent(5, &mut new_id), text);
        assert_ne!(names.traceparent(6, &mut new_id), text);
        let parent = Parent::parse(&text).unwrap();
        assert_eq!((names.trace_id(&mut new_id), names.span_id(5, &mut new_id)), (parent.trace_id, parent.span_id));
        assert_eq!(Names::of(Some(parent)).trace_id(&mut new_id), parent.trace_id);
    }

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
