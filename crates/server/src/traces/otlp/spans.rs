//! The spans of one trace, named and nested as Triton's: `InferRequest` from the protocol's first to its last event; in it one
//! of each request, with the name of its model, within that of the request that set it off; in that one `compute`.

use std::collections::BTreeMap;

use super::{
    super::{
        context::{Names, NewId},
        record::Event,
        render::Epoch,
    },
    messages::{KIND_SERVER, KeyValue, Span, SpanEvent},
};

/// Names of the client's request and of what a model does for one.
pub(super) const ROOT: &str = "InferRequest";
const COMPUTE: &str = "compute";

/// The spans of a trace, the root first.
pub(super) fn spans(events: &[Event], mut names: Names, epoch: Epoch, new_id: NewId<'_>) -> Vec<Span> {
    let trace_id = names.trace_id(new_id).to_vec();
    let state = names.state().to_owned();
    let client = names.parent.as_ref().map_or_else(Vec::new, |parent| parent.span_id.to_vec());
    let mut span = |name: &str, parent: Vec<u8>| Span {
        trace_id: trace_id.clone(),
        span_id: new_id().to_be_bytes().to_vec(),
        trace_state: state.clone(),
        parent_span_id: parent,
        name: name.to_owned(),
        kind: KIND_SERVER,
        ..Span::default()
    };
    let mut root = span(ROOT, client);
    // Spans of requests, and of their computing, by the requests' numbers.
    let mut requests: BTreeMap<u64, Span> = BTreeMap::new();
    let mut computing: BTreeMap<u64, Vec<Span>> = BTreeMap::new();
    for event in events {
        match event {
            Event::Begin { id, parent, model, version, request_id } => {
                let within = requests.get(parent).unwrap_or(&root).span_id.clone();
                let mut request = span(model, within);
                request.attributes = vec![
                    KeyValue::text("triton.model_name", model),
                    KeyValue::number("triton.model_version", *version),
                    KeyValue::number("triton.trace_id", *id as i64),
                    KeyValue::number("triton.trace_parent_id", *parent as i64),
                ];
                if !request_id.is_empty() {
                    request.attributes.push(KeyValue::text("triton.request_id", request_id));
                }
                // Somebody may know it already.
                request.span_id = names.span_id(*id, &mut || own_id(&request)).to_vec();
                requests.insert(*id, request);
            }
            Event::Reach { id, name, at } => {
                let request = requests.get_mut(id);
                let of = match (*name, request) {
                    (name, Some(request)) if name.starts_with("COMPUTE_") => {
                        let all = computing.entry(*id).or_default();
                        if name == "COMPUTE_START" {
                            all.push(span(COMPUTE, request.span_id.clone()));
                        }
                        all.last_mut().unwrap_or(&mut root)
                    }
                    (name, Some(request)) if name.starts_with("REQUEST_") || name.starts_with("QUEUE_") => request,
                    _ => &mut root,
                };
                of.events.push(SpanEvent { time_unix_nano: epoch.ns(*at), name: (*name).to_owned() });
            }
            Event::LeftOut { activities, .. } => {
                root.dropped_events_count = u32::try_from(*activities).unwrap_or(u32::MAX);
            }
            // Triton sends no tensors to collectors either.
            Event::Tensor { .. } => {}
        }
    }
    let all = std::iter::once(root).chain(requests.into_values()).chain(computing.into_values().flatten());
    let mut all: Vec<Span> = all.collect();
    // A span lasts from its first event to its last; the root includes everything.
    let times = |span: &Span| {
        let times = span.events.iter().map(|event| event.time_unix_nano);
        (times.clone().min().unwrap_or(0), times.max().unwrap_or(0))
    };
    for span in &mut all {
        (span.start_time_unix_nano, span.end_time_unix_nano) = times(span);
    }
    let begun = all.iter().map(|span| span.start_time_unix_nano).filter(|&ns| ns > 0);
    let (start, end) = (begun.min(), all.iter().map(|span| span.end_time_unix_nano).max());
    if let (Some(root), Some(start), Some(end)) = (all.first_mut(), start, end) {
        (root.start_time_unix_nano, root.end_time_unix_nano) = (start, end);
    }
    all
}

/// The identifier of a span as a number.
fn own_id(span: &Span) -> u64 {
    span.span_id.iter().fold(0, |id, byte| id << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{super::super::context::Parent, *};

    #[test]
    fn an_ensemble() {
        let start = Instant::now();
        let epoch = Epoch { start, ns: 1_000 };
        let reach = |id, name, ns| Event::Reach { id, name, at: start + Duration::from_nanos(ns) };
        let begin = |id, parent, model: &str| Event::Begin {
            id,
            parent,
            model: model.to_owned(),
            version: 3,
            request_id: "mine".to_owned(),
        };
        let events = [
            reach(1, "HTTP_RECV_START", 5),
            begin(1, 0, "all"),
            reach(1, "REQUEST_START", 7),
            begin(2, 1, "step"),
            reach(2, "REQUEST_START", 8),
            reach(2, "QUEUE_START", 9),
            reach(2, "COMPUTE_START", 10),
            reach(2, "COMPUTE_END", 20),
            reach(1, "HTTP_SEND_END", 30),
            reach(2, "REQUEST_END", 25),
            reach(1, "REQUEST_END", 31),
        ];
        let mut last = 0;
        let mut new_id = || {
            last += 1;
            last
        };
        let parent = Parent { trace_id: [7; 16], span_id: [8; 8], state: "a=1".to_owned() };
        let all = spans(&events, Names::of(Some(parent)), epoch, &mut new_id);
        let found = all.iter().map(|span| (&*span.name, span.start_time_unix_nano, span.end_time_unix_nano));
        let expected = [(ROOT, 1_005, 1_031), ("all", 1_007, 1_031), ("step", 1_008, 1_025), (COMPUTE, 1_010, 1_020)];
        assert_eq!(found.collect::<Vec<_>>(), expected);
        assert!(all.iter().all(|span| span.trace_id == [7; 16] && span.trace_state == "a=1"));
        assert_eq!(all[0].parent_span_id, [8; 8]);
        for (child, parent) in [(1, 0), (2, 1), (3, 2)] {
            assert_eq!(all[child].parent_span_id, all[parent].span_id);
        }
        let names = |index: usize| all[index].events.iter().map(|event| &*event.name).collect::<Vec<_>>();
        assert_eq!(names(0), ["HTTP_RECV_START", "HTTP_SEND_END"]);
        assert_eq!(names(2), ["REQUEST_START", "QUEUE_START", "REQUEST_END"]);
        assert_eq!(names(3), ["COMPUTE_START", "COMPUTE_END"]);
        assert_eq!(all[1].attributes[1], KeyValue::number("triton.model_version", 3));
    }
}
