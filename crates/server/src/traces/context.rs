//! Where a trace goes on that began elsewhere, and where others go on with it: the headers `traceparent` and `tracestate`
//! (W3C Trace Context, Level 1).

use std::collections::BTreeMap;

/// The longest `tracestate` that is kept; W3C asks for 512 at least.
const STATE_BYTES_MAX: usize = 2048;
/// Members of a `tracestate`, by W3C.
const STATE_MEMBERS_MAX: usize = 32;

/// The headers of a request that say to which trace it belongs.
pub(crate) trait TraceHeaders {
    /// The values of a header; `None` for one that is no text.
    fn texts(&self, name: &'static str) -> impl Iterator<Item = Option<&str>>;
}

/// The span of a client that a request belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Parent {
    pub trace_id: [u8; 16],
    pub span_id: [u8; 8],
    /// What other systems say of the trace, `tracestate`; empty: nothing.
    pub state: String,
}

impl Parent {
    /// Reads the headers; `None` where there is no `traceparent`.
    pub fn of(headers: &impl TraceHeaders) -> Option<Self> {
        let parent = Self::parse(headers.texts("traceparent").next()??)?;
        let texts: Option<Vec<&str>> = headers.texts("tracestate").collect();
        let state = texts.and_then(|texts| state(&texts)).unwrap_or_default();
        Some(Self { state, ..parent })
    }

    /// Reads `traceparent`; `None` where it is not one, which W3C asks to be treated as none at all.
    fn parse(header: &str) -> Option<Self> {
        let mut parts = header.trim().split('-');
        let mut hex = |bytes: usize| parts.next().filter(|part| part.len() == 2 * bytes).and_then(digits);
        let (version, trace_id, span_id, _flags) = (hex(1)?, hex(16)?, hex(8)?, hex(1)?);
        // Versions to come may say more; this one does not.
        if version == [0xff] || (version == [0] && parts.next().is_some()) {
            return None;
        }
        let (trace_id, span_id) = (trace_id.try_into().ok()?, span_id.try_into().ok()?);
        (trace_id != [0; 16] && span_id != [0; 8]).then_some(Self { trace_id, span_id, state: String::new() })
    }
}

/// The members of all headers `tracestate`, as one; `None` where one is malformed, which leaves nothing of them. Of a list that is
/// too long the last members go, as W3C asks.
fn state(headers: &[&str]) -> Option<String> {
    let members = headers.iter().flat_map(|header| header.split(',')).map(|member| member.trim_matches([' ', '\t']));
    let (mut all, mut count, mut is_cut) = (String::new(), 0, false);
    for member in members.filter(|member| !member.is_empty()) {
        count += 1;
        if count > STATE_MEMBERS_MAX || !is_member(member) {
            return None;
        }
        is_cut |= all.len() + 1 + member.len() > STATE_BYTES_MAX;
        if !is_cut {
            all.extend((!all.is_empty()).then_some(','));
            all.push_str(member);
        }
    }
    Some(all)
}

/// Whether it is `key=value`, or `tenant@system=value`.
fn is_member(member: &str) -> bool {
    let Some((key, value)) = member.split_once('=') else { return false };
    let is_key = |key: &str, len_max: usize| {
        let is_of_key = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'*' | b'/');
        key.len() <= len_max
            && key.starts_with(|first: char| first.is_ascii_lowercase() || first.is_ascii_digit())
            && key.bytes().all(is_of_key)
    };
    let is_known = match key.split_once('@') {
        Some((tenant, system)) => is_key(tenant, 241) && is_key(system, 14),
        None => is_key(key, 256),
    };
    let is_of_value = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'=';
    is_known && !value.is_empty() && value.len() <= 256 && value.bytes().all(is_of_value)
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
        Self { trace_id: parent.as_ref().map(|parent| parent.trace_id), parent, spans: BTreeMap::new() }
    }

    /// What other systems say of the trace; empty: nothing.
    pub fn state(&self) -> &str {
        self.parent.as_ref().map_or("", |parent| &parent.state)
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
        assert_eq!(Names::of(Some(parent.clone())).trace_id(&mut new_id), parent.trace_id);
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

    #[test]
    fn states_of_other_systems() {
        for (headers, expected) in [
            (&["a=1,b=2"][..], "a=1,b=2"),
            (&[" a=1 ,\tb=x y ,, "], "a=1,b=x y"),
            (&["a=1", "t@v=2"], "a=1,t@v=2"),
            (&["0-_*/=!~"], "0-_*/=!~"),
            (&[""], ""),
            (&[], ""),
        ] {
            assert_eq!(state(headers).as_deref(), Some(expected), "{headers:?}");
        }
        for wrong in ["a", "a=", "=1", "A=1", "a=1,B=2", "a=1=2", "a=ö", "a=\u{7f}", "@v=1", "t@=1", "t@v@w=1", "_a=1"]
        {
            assert_eq!(state(&["z=1", wrong]), None, "{wrong}");
        }
        let many = |count: usize, value: &str| -> String {
            (0..count).map(|number| format!("k{number}={value}")).collect::<Vec<_>>().join(",")
        };
        assert_eq!(state(&[&many(32, "v")]), Some(many(32, "v")));
        assert_eq!(state(&[&many(33, "v")]), None);
        assert_eq!(state(&[&format!("a={}", "v".repeat(257))]), None);
        // W3C's least is kept whole; of a longer one whole members are.
        let least = format!("{},{}", many(1, &"v".repeat(252)), many(1, &"v".repeat(253)));
        assert_eq!((least.len(), state(&[&least])), (512, Some(least.clone())));
        let value = "v".repeat(256);
        assert_eq!(state(&[&many(32, &value)]), Some(many(7, &value)));
    }
}
