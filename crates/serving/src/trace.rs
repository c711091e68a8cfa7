//! Where a request is, told to whoever traces it.

use std::{fmt, sync::Arc, time::Instant};

use halimede_tensor::{Buffer, DType};

use crate::request::Request;

/// Takes what happens to a request and to those that it sets off. Called on threads that serve requests, so it keeps
/// what it is given and leaves everything else for later.
pub trait TraceRecord: Send + Sync {
    /// A number for one request of the trace, which no other in the server has.
    fn next_id(&self) -> u64;

    /// Whether activities and their times are wanted.
    fn wants_timestamps(&self) -> bool;

    /// Whether tensors are wanted.
    fn wants_tensors(&self) -> bool;

    /// A request begins. Told before all its activities, where activities are wanted.
    fn begin(&self, start: TraceStart<'_>);

    /// A request reached a point of its way.
    fn reach(&self, id: u64, activity: Activity, at: Instant);

    /// A tensor passed.
    fn tensor(&self, id: u64, tensor: TracedTensor<'_>);

    /// What lets another program go on with the trace from a request, as JSON; `None` where none can.
    fn context(&self, _id: u64) -> Option<String> {
        None
    }
}

/// A request of a trace.
#[derive(Debug, Clone, Copy)]
pub struct TraceStart<'a> {
    /// Its number.
    pub id: u64,
    /// That of the request that set it off; 0 for the client's.
    pub parent: u64,
    /// Name of the model.
    pub model: &'a str,
    /// Version of the model.
    pub version: i64,
    /// The client's identifier; empty: none.
    pub request_id: &'a str,
    /// When it came.
    pub at: Instant,
}

/// A tensor on its way.
#[derive(Debug, Clone, Copy)]
pub struct TracedTensor<'a> {
    /// Whether it goes to the model or comes from it.
    pub is_output: bool,
    /// Its name.
    pub name: &'a str,
    /// Its datatype.
    pub dtype: DType,
    /// Its dimensions, the batch included.
    pub shape: &'a [i64],
    /// Its elements in the wire form of [`crate::wire`].
    pub data: &'a Buffer,
}

/// A point of a request's way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// It was accepted.
    RequestStart,
    /// It waits to run.
    QueueStart,
    /// An instance took it.
    ComputeStart,
    /// Its inputs are gathered.
    ComputeInputEnd,
    /// Its outputs are computed.
    ComputeOutputStart,
    /// Its outputs are its own.
    ComputeEnd,
    /// Nobody holds it any more.
    RequestEnd,
}

impl Activity {
    /// Triton's name.
    pub fn name(self) -> &'static str {
        match self {
            Activity::RequestStart => "REQUEST_START",
            Activity::QueueStart => "QUEUE_START",
            Activity::ComputeStart => "COMPUTE_START",
            Activity::ComputeInputEnd => "COMPUTE_INPUT_END",
            Activity::ComputeOutputStart => "COMPUTE_OUTPUT_START",
            Activity::ComputeEnd => "COMPUTE_END",
            Activity::RequestEnd => "REQUEST_END",
        }
    }
}

/// The trace of one request. It ends with the request.
pub struct Trace {
    record: Arc<dyn TraceRecord>,
    id: u64,
    parent: u64,
    has_begun: bool,
}

impl Trace {
    /// The trace of a client's request, as number `id` of the record.
    pub fn new(record: Arc<dyn TraceRecord>, id: u64) -> Self {
        Self { record, id, parent: 0, has_begun: false }
    }

    /// The trace of a request that this one sets off.
    pub(crate) fn child(&self) -> Self {
        self.origin().child()
    }

    /// What requests that this one sets off need to know. The trace is complete when that is dropped too.
    pub fn origin(&self) -> TraceOrigin {
        TraceOrigin { record: self.record.clone(), id: self.id }
    }

    /// The request was accepted by a version of its model, and is about to be queued.
    pub(crate) fn begin(request: &mut Request, version: i64) {
        let Some(trace) = &mut request.trace else { return };
        trace.has_begun = true;
        let (record, id, parent) = (trace.record.clone(), trace.id, trace.parent);
        if record.wants_timestamps() {
            let (model, request_id) = (request.model.as_str(), request.id.as_str());
            let at = request.timestamps.start;
            record.begin(TraceStart { id, parent, model, version, request_id, at });
            record.reach(id, Activity::QueueStart, Instant::now());
        }
        if record.wants_tensors() {
            for input in &request.inputs {
                let Some(dtype) = input.dtype else { continue };
                let tensor =
                    TracedTensor { is_output: false, name: &input.name, dtype, shape: &input.shape, data: &input.data };
                record.tensor(id, tensor);
            }
            request.responder.observed(move |response| {
                for output in &response.outputs {
                    let (dtype, shape, data) = (output.dtype, &output.shape[..], &output.data);
                    record.tensor(id, TracedTensor { is_output: true, name: &output.name, dtype, shape, data });
                }
            });
        }
    }

    /// The request reached points of its way.
    pub(crate) fn reach(&self, points: &[(Activity, Instant)]) {
        if self.record.wants_timestamps() {
            points.iter().for_each(|(activity, at)| self.record.reach(self.id, *activity, *at));
        }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        if self.has_begun {
            self.reach(&[(Activity::RequestEnd, Instant::now())]);
        }
    }
}

/// A request of a trace that sets off others.
#[derive(Clone)]
pub struct TraceOrigin {
    record: Arc<dyn TraceRecord>,
    id: u64,
}

impl TraceOrigin {
    /// The trace of a request that this one sets off.
    pub fn child(&self) -> Trace {
        Trace { record: self.record.clone(), id: self.record.next_id(), parent: self.id, has_begun: false }
    }

    /// What lets another program go on with the trace, as JSON; `None` where none can.
    pub fn context(&self) -> Option<String> {
        self.record.context(self.id)
    }
}

impl fmt::Debug for TraceOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceOrigin").field("id", &self.id).finish_non_exhaustive()
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").field("id", &self.id).field("parent", &self.parent).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    use parking_lot::Mutex;

    use super::*;
    use crate::{
        Server,
        testing::{Files, Waiting, eventually, floats, identity, request},
    };

    /// Everything as text, in order.
    #[derive(Default)]
    struct Texts {
        ids: AtomicU64,
        texts: Mutex<Vec<(u64, String)>>,
    }

    impl TraceRecord for Texts {
        fn next_id(&self) -> u64 {
            self.ids.fetch_add(1, SeqCst) + 10
        }

        fn wants_timestamps(&self) -> bool {
            true
        }

        fn wants_tensors(&self) -> bool {
            true
        }

        fn begin(&self, start: TraceStart<'_>) {
            let TraceStart { id, parent, model, version, request_id, .. } = start;
            self.texts.lock().push((id, format!("{model} {version} '{request_id}' of {parent}")));
        }

        fn reach(&self, id: u64, activity: Activity, _: Instant) {
            self.texts.lock().push((id, activity.name().to_owned()));
        }

        fn tensor(&self, id: u64, tensor: TracedTensor<'_>) {
            let way = if tensor.is_output { "from" } else { "to" };
            self.texts.lock().push((id, format!("{} {:?} {way} the model", tensor.name, tensor.shape)));
        }
    }

    impl Texts {
        fn of(&self, id: u64) -> Vec<String> {
            self.texts.lock().iter().filter(|(of, _)| *of == id).map(|(_, text)| text.clone()).collect()
        }
    }

    fn traced(server: &Server, model: &str, record: &Arc<Texts>) -> Waiting {
        let (mut request, waiting) = request(model, [floats("INPUT0", &[2], &[1.0, 2.0])]);
        request.id = "mine".to_owned();
        request.trace = Some(Trace::new(record.clone(), 1));
        server.infer(request);
        waiting
    }

    const OF_A_MODEL: [&str; 7] = [
        "INPUT0 [2] to the model",
        "COMPUTE_START",
        "COMPUTE_INPUT_END",
        "COMPUTE_OUTPUT_START",
        "COMPUTE_END",
        "OUTPUT0 [2] from the model",
        "REQUEST_END",
    ];

    #[test]
    fn a_request_is_followed_to_its_end() {
        let files = Files::new();
        files.model("m", &identity("2", ""));
        let server = Server::start(files.options()).unwrap();
        let record = Arc::<Texts>::default();
        traced(&server, "m", &record).outputs();
        eventually("it ended", || record.of(1).last().is_some_and(|text| text == "REQUEST_END"));
        let expected = ["m 1 'mine' of 0", "QUEUE_START"].iter().chain(&OF_A_MODEL);
        assert_eq!(record.of(1), expected.map(|text| text.to_string()).collect::<Vec<_>>());
    }

    #[test]
    fn a_request_that_is_wrong_leaves_no_trace() {
        let files = Files::new();
        files.model("m", &identity("3", ""));
        let server = Server::start(files.options()).unwrap();
        let record = Arc::<Texts>::default();
        traced(&server, "m", &record).error();
        assert_eq!(record.of(1), Vec::<String>::new());
    }

    #[test]
    fn requests_of_an_ensemble_know_their_parent() {
        let files = Files::new();
        files.model("m", &identity("2", ""));
        files.model(
            "e",
            "platform: 'ensemble' input { name: 'INPUT0' data_type: TYPE_FP32 dims: 2 } \
             output { name: 'OUTPUT0' data_type: TYPE_FP32 dims: 2 } \
             ensemble_scheduling { step { model_name: 'm' model_version: -1 \
               input_map { key: 'INPUT0' value: 'INPUT0' } output_map { key: 'OUTPUT0' value: 'OUTPUT0' } } }",
        );
        let server = Server::start(files.options()).unwrap();
        let record = Arc::<Texts>::default();
        traced(&server, "e", &record).outputs();
        eventually("both ended", || {
            [1, 10].iter().all(|id| record.of(*id).last().is_some_and(|text| text == "REQUEST_END"))
        });
        let whole =
            ["e 1 'mine' of 0", "QUEUE_START", "INPUT0 [2] to the model", "OUTPUT0 [2] from the model", "REQUEST_END"];
        assert_eq!(record.of(1), whole);
        let step = ["m 1 'mine' of 1", "QUEUE_START"].iter().chain(&OF_A_MODEL);
        assert_eq!(record.of(10), step.map(|text| text.to_string()).collect::<Vec<_>>());
    }
}
