//! What the tests of this crate share: repositories made of text, backends made of closures, and
//! requests that are waited for.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
        mpsc,
    },
    time::Duration,
};

use halimede_tensor::{Buffer, DType};

use crate::{
    InputTensor, Options, OutputTensor, Reply, Request, Responder, Response, Server,
    backend::{Backend, Batch, Instance, LoadedModel, Model, ModelContext},
    config::finish_without_model,
    error::Error,
    wire,
};

/// The text that stands for [`Reply::end`].
const END: &str = "no response follows";

/// Longer than anything a test waits for.
const PATIENCE: Duration = Duration::from_secs(20);

/// A directory with model repositories; removed with its owner.
pub(crate) struct Files(PathBuf);

impl Files {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("halimede-serving-test-{}-{}", std::process::id(), COUNT.fetch_add(1, SeqCst));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file and the directories above it.
    pub fn write(&self, path: &str, content: impl AsRef<[u8]>) -> &Self {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        self
    }

    /// A model with version 1 and a configuration.
    pub fn model(&self, name: &str, config: &str) -> &Self {
        self.write(&format!("{name}/config.pbtxt"), config).write(&format!("{name}/1/.keep"), "")
    }

    /// A server over this repository.
    pub fn options(&self) -> Options {
        Options { repositories: vec![self.0.clone()], ..Options::default() }
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// A configuration of the identity backend with one input and output FP32 of `dims`, and more text.
pub(crate) fn identity(dims: &str, more: &str) -> String {
    format!(
        "backend: 'identity' \
         input {{ name: 'INPUT0' data_type: TYPE_FP32 dims: {dims} }} \
         output {{ name: 'OUTPUT0' data_type: TYPE_FP32 dims: {dims} }} {more}"
    )
}

/// The end of a request at which its client waits.
pub(crate) struct Waiting {
    responses: mpsc::Receiver<(Response, bool)>,
    gone: Arc<AtomicBool>,
}

struct Channel {
    responses: mpsc::Sender<(Response, bool)>,
    gone: Arc<AtomicBool>,
}

impl Reply for Channel {
    fn send(&mut self, response: Response, last: bool) {
        // Nobody may wait any more.
        let _ = self.responses.send((response, last));
    }

    fn end(&mut self) {
        let end = Response::failed(String::new(), 0, String::new(), Error::internal(END));
        let _ = self.responses.send((end, true));
    }

    fn is_cancelled(&self) -> bool {
        self.gone.load(SeqCst)
    }
}

pub(crate) fn responder() -> (Responder, Waiting) {
    let (sender, responses) = mpsc::channel();
    let gone = Arc::new(AtomicBool::new(false));
    (Responder::new(Channel { responses: sender, gone: gone.clone() }), Waiting { responses, gone })
}

impl Waiting {
    /// The one response; fails where none comes, or several.
    pub fn response(self) -> Response {
        let (response, last) = self.responses.recv_timeout(PATIENCE).expect("no response");
        assert!(last);
        assert!(self.responses.recv_timeout(Duration::from_millis(1)).is_err(), "a second response");
        response
    }

    /// The responses up to the last, and whether that was an end without a response.
    pub fn responses(self) -> (Vec<Response>, bool) {
        let mut responses = Vec::new();
        loop {
            let (response, last) = self.responses.recv_timeout(PATIENCE).expect("no response");
            let is_end = response.error.as_ref().is_some_and(|error| error.message == END);
            if !is_end {
                responses.push(response);
            }
            if last {
                return (responses, is_end);
            }
        }
    }

    /// The outputs of the one response.
    pub fn outputs(self) -> Vec<OutputTensor> {
        let response = self.response();
        assert_eq!(response.error, None);
        response.outputs
    }

    /// The error of the one response.
    pub fn error(self) -> Error {
        self.response().error.expect("no error")
    }

    /// Whether the response is there.
    pub fn is_answered(&self) -> Option<Response> {
        self.responses.try_recv().ok().map(|(response, _)| response)
    }

    /// The client goes away.
    pub fn leave(&self) {
        self.gone.store(true, SeqCst);
    }
}

/// A tensor FP32.
pub(crate) fn floats(name: &str, shape: &[i64], values: &[f32]) -> InputTensor {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    InputTensor {
        name: name.into(),
        dtype: Some(DType::F32),
        shape: shape.to_vec(),
        data: Buffer::copied(&bytes).unwrap(),
    }
}

/// A tensor BYTES.
pub(crate) fn strings(name: &str, shape: &[i64], values: &[&str]) -> InputTensor {
    let mut bytes = Vec::new();
    values.iter().for_each(|value| wire::push_string(&mut bytes, value.as_bytes()).unwrap());
    InputTensor { name: name.into(), dtype: Some(DType::String), shape: shape.to_vec(), data: Buffer::foreign(bytes) }
}

/// The values of a tensor FP32.
pub(crate) fn values(data: &[u8]) -> Vec<f32> {
    data.chunks_exact(4).map(|chunk| f32::from_le_bytes(chunk.try_into().unwrap())).collect()
}

/// A request and the place where its client waits.
pub(crate) fn request(model: &str, inputs: impl IntoIterator<Item = InputTensor>) -> (Request, Waiting) {
    let (responder, waiting) = responder();
    let mut request = Request::new(model, responder);
    request.inputs.extend(inputs);
    (request, waiting)
}

/// Sends a request to a server.
pub(crate) fn ask(server: &Server, model: &str, inputs: impl IntoIterator<Item = InputTensor>) -> Waiting {
    let (request, waiting) = request(model, inputs);
    server.infer(request);
    waiting
}

/// Waits until something is so.
pub(crate) fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A backend whose instances run a function with their index.
pub(crate) struct Scripted<F>(pub &'static str, pub Arc<F>);

impl<F: Fn(usize, &mut Batch) + Send + Sync + 'static> Scripted<F> {
    pub fn backend(name: &'static str, execute: F) -> Arc<dyn Backend> {
        Arc::new(Self(name, Arc::new(execute)))
    }
}

impl<F: Fn(usize, &mut Batch) + Send + Sync + 'static> Backend for Scripted<F> {
    fn name(&self) -> &str {
        self.0
    }

    fn load(&self, context: &ModelContext) -> Result<LoadedModel, Error> {
        let fail = context.version_directory().join("fail");
        if let Ok(text) = fs::read_to_string(fail) {
            return Err(Error::internal(text));
        }
        let config = finish_without_model(context.config.clone(), &context.options)?;
        let model = Arc::new(ScriptedModel(self.1.clone()));
        Ok(LoadedModel::as_configured(config, model))
    }
}

struct ScriptedModel<F>(Arc<F>);

impl<F: Fn(usize, &mut Batch) + Send + Sync + 'static> Model for ScriptedModel<F> {
    fn instance(&self, index: usize) -> Result<Box<dyn Instance>, Error> {
        Ok(Box::new(ScriptedInstance { index, execute: self.0.clone() }))
    }
}

struct ScriptedInstance<F> {
    index: usize,
    execute: Arc<F>,
}

impl<F: Fn(usize, &mut Batch) + Send + Sync> Instance for ScriptedInstance<F> {
    fn execute(&mut self, batch: &mut Batch) {
        (self.execute)(self.index, batch);
    }
}

/// Gives back every input `INPUT<n>` as `OUTPUT<n>`, gathered and scattered.
pub(crate) fn echo(batch: &mut Batch) {
    let names: Vec<String> = batch.request(0).inputs.iter().map(|input| input.name.clone()).collect();
    for name in names {
        let input = batch.gather(&name).unwrap().unwrap();
        let output = name.replace("INPUT", "OUTPUT");
        if let Err(error) = batch.scatter(&output, input.dtype, &input.shape, input.data) {
            batch.fail_all(&error);
        }
    }
}
