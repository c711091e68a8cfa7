//! The cache in front of one version of a model.

use std::{
    fmt, mem,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{CacheKey, Deferral, Insertion, ResponseCache};
use crate::{
    error::Code,
    ordering::Ordering,
    request::Request,
    response::{OutputTensor, Reply, Responder, Response},
    statistics::Recorder,
};

/// Answers requests of one version of a model from a cache, and has the answers of others kept there.
pub(crate) struct ModelCache {
    cache: Arc<dyn ResponseCache>,
    recorder: Arc<Recorder>,
    /// Tells loads of a model apart, so that answers of an earlier one are not given again.
    scope: String,
    version: i64,
    /// A response of `None`: none follows.
    order: Option<Ordering<(Responder, Option<Response>)>>,
    /// Requests that are being looked up on another thread.
    waiting: AtomicUsize,
}

/// A request on its way through the cache, and what is to be done with it if the cache does not know the answer.
struct Question<F> {
    request: Request,
    run: F,
    queued: Instant,
    /// Its place, where responses keep the order of requests.
    ticket: Option<u64>,
}

impl ModelCache {
    /// The cache of version `version` in the load that `scope` names.
    pub fn new(
        cache: Arc<dyn ResponseCache>,
        recorder: Arc<Recorder>,
        version: i64,
        scope: String,
        preserve_ordering: bool,
    ) -> Self {
        let order = preserve_ordering.then(Ordering::default);
        Self { cache, recorder, scope, version, order, waiting: AtomicUsize::new(0) }
    }

    /// Requests that are being looked up on another thread.
    pub fn in_flight(&self) -> usize {
        self.waiting.load(SeqCst)
    }

    /// Answers a request whose inputs are complete, or gives it to `run` with a responder that has its answer kept.
    pub fn answer(self: &Arc<Self>, request: Request, run: impl FnOnce(Request) + Send + 'static) {
        let ticket = self.order.as_ref().map(Ordering::take_ticket);
        let question = Question { request, run, queued: Instant::now(), ticket };
        // Whoever gets the work takes the question out; nobody does where too much work waits.
        let question = Arc::new(Mutex::new(Some(question)));
        let (cache, taken) = (self.clone(), question.clone());
        self.waiting.fetch_add(1, SeqCst);
        let work = Box::new(move || {
            if let Some(question) = taken.lock().take() {
                cache.look_up(question);
            }
            cache.waiting.fetch_sub(1, SeqCst);
        });
        match self.cache.defer(work) {
            Deferral::Now(work) => work(),
            Deferral::Later => {}
            Deferral::Full => {
                if let Some(question) = question.lock().take() {
                    let key = CacheKey::new(&self.scope, self.version, &question.request);
                    self.miss(question, key, Duration::ZERO);
                }
                self.waiting.fetch_sub(1, SeqCst);
            }
        }
    }

    fn look_up(self: &Arc<Self>, question: Question<impl FnOnce(Request)>) {
        let key = CacheKey::new(&self.scope, self.version, &question.request);
        let start = Instant::now();
        let found = self.cache.look_up(&key).unwrap_or_else(|error| {
            tracing::debug!("Failed to look up key [{key}] in response cache: {}", error.message);
            None
        });
        let lookup = start.elapsed();
        let Some(outputs) = found else { return self.miss(question, key, lookup) };
        let Question { request, queued, ticket, .. } = question;
        // Counted before the client hears of it.
        self.recorder.cache_hit(request.timestamps.start, queued, start, lookup);
        let response = Response {
            model: request.model,
            version: self.version,
            id: request.id,
            parameters: Vec::new(),
            outputs,
            error: None,
            is_refusal: false,
        };
        self.send(ticket, request.responder, Some(response));
    }

    fn miss(self: &Arc<Self>, question: Question<impl FnOnce(Request)>, key: CacheKey, lookup: Duration) {
        let Question { mut request, run, ticket, .. } = question;
        let responder = mem::replace(&mut request.responder, Responder::closed());
        request.responder = Responder::new(Keeping { cache: self.clone(), key, lookup, ticket, responder });
        run(request);
    }

    fn send(&self, ticket: Option<u64>, responder: Responder, response: Option<Response>) {
        let answer = |(mut responder, response): (Responder, Option<Response>)| match response {
            Some(response) => responder.send(response, true),
            None => responder.end(),
        };
        match (&self.order, ticket) {
            (Some(order), Some(ticket)) => order.send(ticket, (responder, response), answer),
            _ => answer((responder, response)),
        }
    }

    /// Has the outputs of a successful response kept.
    fn keep(self: &Arc<Self>, key: CacheKey, lookup: Duration, response: &Response) {
        if response.error.is_some() {
            return;
        }
        let (cache, outputs) = (self.clone(), response.outputs.clone());
        match self.cache.defer(Box::new(move || cache.insert(&key, lookup, &outputs))) {
            Deferral::Now(work) => work(),
            Deferral::Later => {}
            Deferral::Full => self.recorder.cache_miss(lookup),
        }
    }

    fn insert(&self, key: &CacheKey, lookup: Duration, outputs: &[OutputTensor]) {
        let start = Instant::now();
        match self.cache.insert(key, outputs) {
            Ok(Insertion::AlreadyThere) => return,
            Ok(Insertion::Done) => {}
            // The cache itself says that it cannot be reached, and says it once.
            Err(error) if error.code == Code::Unavailable => {
                tracing::debug!("Failed to insert key [{key}] into response cache: {}", error.message);
            }
            Err(error) => {
                tracing::error!("Failed to insert key [{key}] into response cache: {}", error.message);
            }
        }
        self.recorder.cache_miss(lookup + start.elapsed());
    }
}

impl fmt::Debug for ModelCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelCache").field("cache", &self.cache).finish_non_exhaustive()
    }
}

/// The way back of a request that the cache does not know.
struct Keeping {
    cache: Arc<ModelCache>,
    key: CacheKey,
    lookup: Duration,
    ticket: Option<u64>,
    responder: Responder,
}

impl Reply for Keeping {
    fn send(&mut self, response: Response, last: bool) {
        self.cache.keep(self.key, self.lookup, &response);
        // A model that is not decoupled has one response, whether or not it says that it is the last.
        if last || self.ticket.is_some() {
            let responder = mem::replace(&mut self.responder, Responder::closed());
            self.cache.send(self.ticket.take(), responder, Some(response));
        } else {
            self.responder.send(response, false);
        }
    }

    fn end(&mut self) {
        if !self.responder.is_answered() {
            let responder = mem::replace(&mut self.responder, Responder::closed());
            self.cache.send(self.ticket.take(), responder, None);
        }
    }

    fn is_cancelled(&self) -> bool {
        self.responder.is_cancelled()
    }

    fn may_wait(&self) -> bool {
        self.responder.may_wait()
    }
}
