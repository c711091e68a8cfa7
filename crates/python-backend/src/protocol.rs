//! The messages between the server and the host of a model.
//!
//! A message is its length in four bytes, little end first, and so many bytes of JSON. One that brings bytes of tensors along has the
//! highest bit of its length set, and the length of the JSON, in four bytes more, before it and the bytes behind it. The server sends
//! [`Task`]s one after the other, [`Answer`]s to calls and [`Gone`]; the host sends [`Message`]s. Tensors are named by
//! segment, offset and length ([`TensorEntry`]). The descriptor of a new segment comes over a socket of its own, with the first of
//! the four bytes of its number, which is sent before the message that speaks of it. What the host sends counts as bytes from
//! outside.

use std::{io, sync::Arc};

use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use crate::segment::Segment;

/// Longest message that is read.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// Bytes that are read at once, so that the length of a message alone takes no memory.
const CHUNK_BYTES: usize = 16 << 10;

/// Memory for messages that is kept while there are none.
const KEPT_BYTES_MAX: usize = 64 << 10;

/// The number of a request that stands in for one of a sequence that has none now: nobody waits for its response.
pub(crate) const STAND_IN: u64 = 0;

/// The bit of a message's length that says that bytes of tensors lie in it.
const WITH_BYTES: u32 = 1 << 31;

/// The number of a segment that is none: what lies there lies in the bytes that come with the message.
pub(crate) const IN_MESSAGE: u32 = 0;

/// Tensors of an answer that have no more bytes, all together, come in the message. A segment is a file of two processes, and whoever
/// reads answers slowly, or keeps them, may have any number of them.
pub(crate) const IN_MESSAGE_BYTES_MAX: usize = 64 << 10;

/// A tensor in shared memory: name, number of the datatype, shape, number of the segment, offset and length
/// in bytes. Of no bytes: segment, offset and length are 0.
pub(crate) type TensorEntry = (String, i32, Vec<i64>, u32, usize, usize);

/// A segment that the host is to map, as number and length in bytes.
#[derive(Debug, Clone)]
pub(crate) struct NewSegment(pub Arc<Segment>);

impl Serialize for NewSegment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.0.number(), self.0.bytes()).serialize(serializer)
    }
}

/// What the server asks for. Each but `Execute` and `Tidy` is answered by `Done` or `Failed`.
#[derive(Debug, Serialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub(crate) enum Task<'a> {
    /// Import the model: `file` of its version, or the script in the folder `backend`.
    Load { directory: &'a str, version: String, file: &'a str, backend: Option<&'a str> },
    /// Complete the configuration, a text of JSON; the answer's value is one.
    Complete { config: &'a str },
    /// Make the model.
    Initialize { arguments: Arguments<'a>, is_decoupled: bool },
    /// Run a batch. Answered by `Executed`.
    Execute {
        requests: Vec<RequestEntry<'a>>,
        #[serde(flatten)]
        memory: Memory,
    },
    /// Let go of memory for outputs that is free, but for a little. Not answered.
    Tidy,
    /// End the model and the process.
    Finalize,
}

/// Segments for inputs that are no more, which is told where no batch comes that would tell it.
#[derive(Debug, Serialize)]
pub(crate) struct Gone {
    pub gone: Vec<u32>,
}

/// What `initialize` is called with; all values are texts.
#[derive(Debug, Serialize)]
pub(crate) struct Arguments<'a> {
    pub model_config: &'a str,
    pub model_instance_kind: &'a str,
    pub model_instance_name: &'a str,
    pub model_instance_device_id: &'a str,
    pub model_repository: &'a str,
    pub model_version: &'a str,
    pub model_name: &'a str,
}

/// One request of a batch: an array of its fields in this order, which is read faster than an object.
#[derive(Debug)]
pub(crate) struct RequestEntry<'a> {
    /// The number by which responses name it; one for all that stand in for requests.
    pub request: u64,
    pub id: &'a str,
    pub model: &'a str,
    pub version: i64,
    /// The number or the text of its sequence.
    pub correlation_id: Value,
    pub flags: u32,
    pub timeout: u64,
    /// A text of JSON.
    pub parameters: String,
    /// The outputs that are wanted.
    pub outputs: Vec<&'a str>,
    pub inputs: Vec<TensorEntry>,
    /// Whether it is traced.
    pub is_traced: bool,
    /// What lets other programs go on with its trace, as JSON.
    pub trace_context: Option<String>,
}

impl Serialize for RequestEntry<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { request, id, model, version, correlation_id, flags, timeout, parameters, .. } = self;
        let Self { outputs, inputs, is_traced, trace_context, .. } = self;
        #[rustfmt::skip]
        let fields = (
            request, id, model, version, correlation_id, flags, timeout, parameters,
            outputs, inputs, is_traced, trace_context,
        );
        fields.serialize(serializer)
    }
}

/// The answer to a call.
#[derive(Debug, Serialize, Default)]
pub(crate) struct Answer {
    /// The number of the call.
    pub call: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub segment: Option<NewSegment>,
    /// Of a call with several answers: whether no other follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response: Option<CalledResponse>,
}

/// The segments that a message speaks of.
#[derive(Debug, Serialize, Default)]
pub(crate) struct Memory {
    /// The one that the host does not know yet.
    pub new: Option<NewSegment>,
    /// Those that the message's tensors lie in.
    pub uses: Vec<u32>,
    /// Those that are no more.
    pub dropped: Vec<u32>,
}

/// What another model answered: tensors, or a code and a text.
#[derive(Debug, Serialize, Default)]
pub(crate) struct CalledResponse {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<(i32, String)>,
    pub outputs: Vec<TensorEntry>,
    /// A text of JSON.
    pub parameters: String,
    #[serde(flatten)]
    pub memory: Memory,
    /// What comes with the message: tensors of the segment [`IN_MESSAGE`] lie here.
    #[serde(skip)]
    pub bytes: Vec<u8>,
}

/// What the host says: an object whose one key is the kind.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Message {
    /// A task is done.
    Done { value: Value },
    /// A task failed.
    Failed { error: String },
    /// A batch has run: what `execute` returned, or why it failed.
    Executed {
        #[serde(default)]
        responses: Option<Vec<Option<ResponseEntry>>>,
        #[serde(default)]
        error: Option<String>,
        /// Requests, by their place in the batch, that are to run again.
        #[serde(default)]
        again: Vec<usize>,
        /// How long it took, from when the host began with it.
        ns: u64,
    },
    /// A response to one request; none says that none follows.
    Response {
        request: u64,
        last: bool,
        #[serde(default)]
        response: Option<ResponseEntry>,
    },
    /// Nobody will answer a request any more.
    Dropped { request: u64 },
    /// A question.
    Call {
        call: u64,
        #[serde(flatten)]
        what: Call,
    },
    /// The answers to a call are not wanted any more.
    Cancel { call: u64 },
    /// A metric or a family of metrics is not used any more.
    ForgetMetric { number: u64 },
    /// Segments that the host has let go of, or could not map.
    ForgetSegments { numbers: Vec<u32> },
    /// A line for the log, and the line of the model's code that it comes from: 0 where nobody knows.
    Log {
        level: String,
        text: String,
        #[serde(default)]
        file: String,
        #[serde(default)]
        line: u32,
    },
}

/// A question of the host.
#[derive(Debug, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub(crate) enum Call {
    /// A segment of so many bytes for outputs, which the host keeps.
    Segment { bytes: usize },
    /// Whether the client of a request has gone.
    IsCancelled { request: u64 },
    /// Whether a version of another model takes requests; below 0: the newest.
    IsModelReady { model: String, version: i64 },
    /// A request for another model; `decoupled` where any number of responses is expected.
    Infer { request: CalledRequest, decoupled: bool },
    /// A model to be loaded: a configuration in JSON, or none; files are tensors with their paths as names.
    LoadModel { model: String, config: String, files: Vec<TensorEntry> },
    /// A model to be unloaded.
    UnloadModel { model: String, dependents: bool },
    /// Something about a metric of the model's own.
    Metric(MetricCall),
}

/// What the host does with metrics. Families and metrics are named by the numbers that answers give them; values are
/// texts, since they may be infinite or none.
#[derive(Debug, Deserialize)]
#[serde(tag = "metric_call", rename_all = "snake_case")]
pub(crate) enum MetricCall {
    /// A family of kind 0, 1, 2: counters, gauges, histograms.
    NewFamily {
        name: String,
        description: String,
        kind: u8,
    },
    /// A metric; a histogram has the upper bounds of its buckets.
    NewMetric {
        family: u64,
        labels: Value,
        bounds: Option<Vec<String>>,
    },
    Increment {
        metric: u64,
        by: String,
    },
    Set {
        metric: u64,
        to: String,
    },
    Observe {
        metric: u64,
        value: String,
    },
    Value {
        metric: u64,
    },
}

/// A request of a model for another one.
#[derive(Debug, Deserialize)]
pub(crate) struct CalledRequest {
    pub id: String,
    /// A number or a text.
    pub correlation_id: Value,
    pub model: String,
    /// Below 0: the newest.
    pub version: i64,
    pub flags: u32,
    pub timeout: u64,
    /// A text of JSON.
    pub parameters: String,
    pub outputs: Vec<String>,
    pub inputs: Vec<TensorEntry>,
    /// The number of the request whose trace it belongs to.
    pub trace: Option<u64>,
}

/// A response.
#[derive(Debug, Deserialize, Default)]
pub(crate) struct ResponseEntry {
    /// Code and text.
    #[serde(default)]
    pub error: Option<(i32, String)>,
    #[serde(default)]
    pub outputs: Vec<TensorEntry>,
    /// A text of JSON.
    #[serde(default)]
    pub parameters: Option<String>,
}

/// What the server sends.
pub(crate) trait Outgoing: Serialize {
    /// The new segment that it speaks of.
    fn new_segment(&self) -> Option<&NewSegment>;

    /// Bytes of tensors that go along.
    fn bytes(&self) -> &[u8] {
        &[]
    }
}

impl Outgoing for Gone {
    fn new_segment(&self) -> Option<&NewSegment> {
        None
    }
}

impl Outgoing for Task<'_> {
    fn new_segment(&self) -> Option<&NewSegment> {
        if let Task::Execute { memory, .. } = self { memory.new.as_ref() } else { None }
    }
}

impl Outgoing for Answer {
    fn new_segment(&self) -> Option<&NewSegment> {
        let of_response = self.response.as_ref().and_then(|response| response.memory.new.as_ref());
        self.segment.as_ref().or(of_response)
    }

    fn bytes(&self) -> &[u8] {
        self.response.as_ref().map_or(&[], |response| &response.bytes)
    }
}

/// A message as it is sent.
#[derive(Debug)]
pub(crate) struct Encoded {
    pub bytes: Vec<u8>,
    /// The new segment that it speaks of, whose descriptor goes before it.
    pub segment: Option<Arc<Segment>>,
}

/// A message as it is sent.
pub(crate) fn encode(message: &impl Outgoing) -> io::Result<Encoded> {
    let along = message.bytes();
    let start = if along.is_empty() { 4 } else { 8 };
    let mut bytes = vec![0; start];
    serde_json::to_writer(&mut bytes, message)?;
    let length_of = |bytes: &[u8]| {
        let length = u32::try_from(bytes.len()).ok().filter(|length| length & WITH_BYTES == 0);
        length.ok_or_else(|| io::Error::other("the message is too long"))
    };
    let mut length = length_of(&bytes[4..])?;
    if !along.is_empty() {
        let text = length_of(&bytes[start..])?;
        bytes[4..start].copy_from_slice(&text.to_le_bytes());
        bytes.extend_from_slice(along);
        length = length_of(&bytes[4..])? | WITH_BYTES;
    }
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    Ok(Encoded { bytes, segment: message.new_segment().map(|new| new.0.clone()) })
}

/// Bytes that came and are not read yet.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    bytes: Vec<u8>,
    /// How many of them are of messages that were taken.
    taken: usize,
}

impl Incoming {
    /// The bytes, with room behind them for more.
    pub fn room(&mut self) -> &mut Vec<u8> {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        if self.bytes.is_empty() {
            // What a long message took is given back.
            self.bytes.shrink_to(KEPT_BYTES_MAX);
        }
        // As much as comes at once, whatever length a message says it has.
        self.bytes.reserve(CHUNK_BYTES);
        &mut self.bytes
    }

    /// Takes the next message; `None` where it is not whole.
    pub fn next(&mut self) -> io::Result<Option<Message>> {
        let Some((length, rest)) = self.bytes[self.taken..].split_first_chunk() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > MESSAGE_BYTES_MAX {
            return Err(io::Error::other(format!("a message of {length} bytes")));
        }
        let Some(text) = rest.get(..length) else { return Ok(None) };
        let message = serde_json::from_slice(text)
            .map_err(|error| io::Error::other(format!("a message that cannot be read: {error}")))?;
        self.taken += 4 + length;
        Ok(Some(message))
    }
}

impl Message {
    /// Bytes of the tensors and of the memory that it speaks of.
    pub fn bytes(&self) -> usize {
        let of = |entries: &[TensorEntry]| entries.iter().fold(0usize, |sum, entry| sum.saturating_add(entry.5));
        match self {
            Message::Executed { responses: Some(responses), .. } => {
                responses.iter().flatten().fold(0, |sum, response| sum.saturating_add(of(&response.outputs)))
            }
            Message::Response { response: Some(response), .. } => of(&response.outputs),
            Message::Call { what: Call::Segment { bytes }, .. } => *bytes,
            Message::Call { what: Call::Infer { request, .. }, .. } => of(&request.inputs),
            Message::Call { what: Call::LoadModel { files, .. }, .. } => of(files),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(text: &str) -> Vec<u8> {
        [&(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat()
    }

    fn read(bytes: &[u8]) -> io::Result<Option<Message>> {
        let mut incoming = Incoming::default();
        incoming.room().extend_from_slice(bytes);
        incoming.next()
    }

    fn parse(text: &str) -> Message {
        read(&framed(text)).unwrap().unwrap()
    }

    #[test]
    fn messages_of_the_host_are_read() {
        let text =
            r#"{"executed":{"responses":[null,{"outputs":[["OUT",11,[2,-1],3,64,8]],"parameters":"{}"}],"ns":9}}"#;
        assert_eq!(parse(text).bytes(), 8);
        let Message::Executed { responses: Some(responses), error: None, .. } = parse(text) else { panic!("{text}") };
        assert_eq!(responses[1].as_ref().unwrap().outputs[0], ("OUT".to_owned(), 11, vec![2, -1], 3, 64, 8));
        let call = parse(r#"{"call":{"call":7,"what":"segment","bytes":5}}"#);
        assert!(matches!(call, Message::Call { call: 7, what: Call::Segment { bytes: 5 } }));
        assert!(matches!(parse(r#"{"done":{"value":null}}"#), Message::Done { value: Value::Null }));
    }

    #[test]
    fn what_is_written_is_framed() {
        let encoded = encode(&Answer { call: 1, value: Some(Value::from(true)), ..Answer::default() }).unwrap();
        assert_eq!(encoded.bytes, framed(r#"{"call":1,"value":true}"#));
        assert!(encoded.segment.is_none());
    }

    #[test]
    fn bytes_lie_behind_the_text() {
        let response = CalledResponse { bytes: vec![0xff, 0], ..CalledResponse::default() };
        let encoded = encode(&Answer { call: 1, response: Some(response), ..Answer::default() }).unwrap().bytes;
        let (head, rest) = encoded.split_at(8);
        let (text, bytes) = rest.split_at(rest.len() - 2);
        assert_eq!(head[..4], (WITH_BYTES | (4 + rest.len()) as u32).to_le_bytes());
        assert_eq!(head[4..], (text.len() as u32).to_le_bytes());
        assert!(serde_json::from_slice::<Value>(text).is_ok() && bytes == [0xff, 0]);
    }

    #[test]
    fn new_segments_go_with_their_message() {
        let segment = Arc::new(Segment::create(5, 1).unwrap());
        let (new, bytes) = (|| Some(NewSegment(segment.clone())), segment.bytes());
        let memory = || Memory { new: new(), uses: vec![5], dropped: vec![] };
        let text = format!(r#""new":[5,{bytes}],"uses":[5],"dropped":[]}}"#);
        let execute = encode(&Task::Execute { requests: vec![], memory: memory() }).unwrap();
        assert_eq!(execute.bytes, framed(&format!(r#"{{"do":"execute","requests":[],{text}"#)));
        let response = CalledResponse { memory: memory(), ..CalledResponse::default() };
        let response = encode(&Answer { call: 1, response: Some(response), ..Answer::default() }).unwrap();
        let answer = encode(&Answer { call: 1, segment: new(), ..Answer::default() }).unwrap();
        assert_eq!(answer.bytes, framed(&format!(r#"{{"call":1,"segment":[5,{bytes}]}}"#)));
        for encoded in [execute, response, answer] {
            assert_eq!(encoded.segment.unwrap().number(), 5);
        }
        assert!(encode(&Task::Finalize).unwrap().segment.is_none());
    }

    #[test]
    fn broken_messages_are_errors_and_those_that_are_not_whole_are_waited_for() {
        assert!(read(&[]).unwrap().is_none());
        assert!(read(&framed("{}")[..5]).unwrap().is_none());
        for text in ["{}", "5", "{\"nothing\":{}}", "{\"executed\":{\"responses\":{}}}", "\u{0}"] {
            assert!(read(&framed(text)).is_err(), "{text}");
        }
        assert!(read(&[255; 8]).unwrap_err().to_string().starts_with("a message of"));
    }

    #[test]
    fn messages_come_in_any_pieces() {
        let numbers = 0..200u64;
        let text = |number| format!(r#"{{"forget_metric":{{"number":{number}}}}}"#);
        let all: Vec<u8> = numbers.clone().flat_map(|number| framed(&text(number))).collect();
        for piece in [1, 7, 100, all.len()] {
            let mut incoming = Incoming::default();
            let mut found = Vec::new();
            for bytes in all.chunks(piece) {
                incoming.room().extend_from_slice(bytes);
                while let Some(message) = incoming.next().unwrap() {
                    let Message::ForgetMetric { number } = message else { panic!("{message:?}") };
                    found.push(number);
                }
            }
            assert!(found.iter().copied().eq(numbers.clone()), "{piece}");
        }
    }

    #[test]
    fn a_long_message_does_not_keep_its_memory() {
        let mut incoming = Incoming::default();
        let text = format!(r#"{{"failed":{{"error":"{}"}}}}"#, "x".repeat(1 << 20));
        incoming.room().extend_from_slice(&framed(&text));
        assert!(incoming.next().unwrap().is_some());
        assert!(incoming.room().capacity() <= KEPT_BYTES_MAX + CHUNK_BYTES);
    }
}
