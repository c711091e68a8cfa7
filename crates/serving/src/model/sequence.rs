//! What the models of sequences get beside the inputs of their clients: signals about the sequence, and the states
//! that they left behind.

use std::{fs, path::Path};

use halimede_tensor::{Buffer, DType};

use super::signature::Signature;
use crate::{
    config::{
        DataType, ModelConfig,
        proto::{
            ModelSequenceBatching,
            model_config::SchedulingChoice,
            model_sequence_batching::{Control, InitialState, State, control::Kind, initial_state::StateData},
        },
    },
    error::Error,
    paths::is_inside,
    request::{CorrelationId, InputTensor, Request, Sequence},
    wire,
};

/// Directory below the model's directory with initial states.
const DIRECTORY: &str = "initial_state";

/// The longest identifier that is text.
const ID_LEN_MAX: usize = 128;

/// What a model of sequences gets.
#[derive(Debug)]
pub(crate) struct SequenceSpec {
    signals: Vec<Signal>,
    /// The input that gets the identifier.
    id: Option<(String, DType)>,
    /// Shape of signals: one element.
    shape: Vec<i64>,
    /// The states, each with its first value.
    pub states: Vec<StateSpec>,
    /// Whether the model decides when a sequence ends.
    pub is_iterative: bool,
}

/// An input that says yes or no.
#[derive(Debug)]
struct Signal {
    input: String,
    kind: Kind,
    dtype: DType,
    no: Buffer,
    yes: Buffer,
}

/// A tensor that goes from one request of a sequence to the next.
#[derive(Debug)]
pub(crate) struct StateSpec {
    /// The output that gives it.
    pub output: String,
    /// What the first request of a sequence gets; its name is that of the input.
    pub initial: InputTensor,
}

impl SequenceSpec {
    /// Reads a complete configuration; `None` where it is for no sequences. `directory` is the model's.
    pub fn read(config: &ModelConfig, directory: &Path) -> Result<Option<Self>, Error> {
        let Some(SchedulingChoice::SequenceBatching(batching)) = &config.scheduling_choice else { return Ok(None) };
        let is_batched = config.max_batch_size > 0;
        let mut spec = Self {
            signals: Vec::new(),
            id: None,
            shape: vec![1; 1 + usize::from(is_batched)],
            states: read_states(batching, is_batched, directory)?,
            is_iterative: batching.iterative_sequence,
        };
        for input in &batching.control_input {
            for control in &input.control {
                match control.kind() {
                    Kind::ControlSequenceCorrid => {
                        let dtype = control.data_type().to_dtype();
                        spec.id = Some((input.name.clone(), dtype.unwrap_or(DType::U64)));
                    }
                    kind => spec.signals.push(Signal::new(input.name.clone(), kind, control)),
                }
            }
        }
        Ok(Some(spec))
    }

    /// Names of all inputs that are not the client's.
    pub fn input_names(&self) -> impl Iterator<Item = &str> {
        let signals = self.signals.iter().map(|signal| &*signal.input);
        let id = self.id.iter().map(|(name, _)| &**name);
        signals.chain(id).chain(self.states.iter().map(|state| &*state.initial.name))
    }

    /// The state that the output `name` gives.
    pub fn state(&self, name: &str) -> Option<usize> {
        self.states.iter().position(|state| state.output == name)
    }

    /// The signals for a request of `sequence`, or for nobody.
    pub fn signals(&self, sequence: Option<&Sequence>) -> impl Iterator<Item = InputTensor> {
        let signals = self.signals.iter().map(move |signal| {
            let is_yes = sequence.is_some_and(|sequence| match signal.kind {
                Kind::ControlSequenceStart => sequence.start,
                Kind::ControlSequenceEnd => sequence.end,
                Kind::ControlSequenceReady | Kind::ControlSequenceCorrid => true,
            });
            let data = if is_yes { &signal.yes } else { &signal.no };
            (&signal.input, signal.dtype, data.clone())
        });
        let none = CorrelationId::default();
        let id = self.id.iter().map(move |(name, dtype)| {
            let id = sequence.map_or(&none, |sequence| &sequence.id);
            (name, *dtype, Buffer::foreign(id_bytes(id, *dtype)))
        });
        signals.chain(id).map(|(name, dtype, data)| InputTensor {
            name: name.clone(),
            dtype: Some(dtype),
            shape: self.shape.clone(),
            data,
        })
    }

    /// Checks that the identifier of a request is of the type that the model takes.
    fn check_id(&self, request: &Request, model: &str) -> Result<(), Error> {
        let Some((name, dtype)) = &self.id else { return Ok(()) };
        let given = match (&request.sequence.id, *dtype == DType::String) {
            (CorrelationId::Int(_), true) => DType::U64,
            (CorrelationId::String(_), false) => DType::String,
            (CorrelationId::Int(_), false) | (CorrelationId::String(_), true) => return Ok(()),
        };
        Err(Error::invalid(format!(
            "{}sequence batching control '{name}' data-type is '{}', but model '{model}' expects '{}'",
            request.log_prefix(),
            wire::datatype_name(given),
            wire::datatype_name(*dtype)
        )))
    }
}

impl Signature {
    /// Checks the identifier of a request's sequence.
    pub fn check_sequence(&self, request: &Request) -> Result<(), Error> {
        self.sequence.as_ref().map_or(Ok(()), |spec| spec.check_id(request, &self.model))
    }
}

impl Request {
    /// Checks what does not depend on the model.
    pub(crate) fn check_sequence_id(&self) -> Result<(), Error> {
        match &self.sequence.id {
            CorrelationId::String(id) if id.len() > ID_LEN_MAX => {
                Err(Error::unsupported(format!("string correlation ID cannot be longer than {ID_LEN_MAX} characters")))
            }
            CorrelationId::String(_) | CorrelationId::Int(_) => Ok(()),
        }
    }
}

impl Signal {
    fn new(input: String, kind: Kind, control: &Control) -> Self {
        // The check of the configuration saw to two values of one type.
        let (dtype, [no, yes]) = if let [no, yes] = control.int32_false_true[..] {
            (DType::I32, [no, yes].map(|value| value.to_le_bytes().to_vec()))
        } else if let [no, yes] = control.fp32_false_true[..] {
            (DType::F32, [no, yes].map(|value| value.to_le_bytes().to_vec()))
        } else {
            let value = |index: usize| vec![u8::from(control.bool_false_true.get(index).is_some_and(|value| *value))];
            (DType::Bool, [value(0), value(1)])
        };
        Self { input, kind, dtype, no: Buffer::foreign(no), yes: Buffer::foreign(yes) }
    }
}

/// An identifier as an element of an input.
fn id_bytes(id: &CorrelationId, dtype: DType) -> Vec<u8> {
    match id {
        _ if dtype == DType::String => {
            let text = if let CorrelationId::String(text) = id { text.as_str() } else { "" };
            let mut bytes = Vec::new();
            // Texts are short: `check_sequence_id`.
            let _ = wire::push_string(&mut bytes, text.as_bytes());
            bytes
        }
        // Shorter numbers get the low bytes.
        CorrelationId::Int(id) => id.to_le_bytes()[..dtype.size().min(8)].to_vec(),
        CorrelationId::String(_) => vec![0; dtype.size()],
    }
}

fn read_states(batching: &ModelSequenceBatching, is_batched: bool, directory: &Path) -> Result<Vec<StateSpec>, Error> {
    let mut states: Vec<StateSpec> = Vec::new();
    for state in &batching.state {
        let initial = read_initial(state, is_batched, directory)?;
        if state.use_growable_memory && !state.use_same_buffer_for_input_output {
            return Err(Error::invalid(format!(
                "In order to 'use_growable_memory', you must also enable 'use_single_buffer' for state input name '{}'",
                state.input_name
            )));
        }
        let twice = states.iter().find_map(|known| {
            let is_input = known.initial.name == state.input_name;
            (is_input || known.output == state.output_name).then_some(if is_input {
                "input_name"
            } else {
                "output_name"
            })
        });
        if let Some(field) = twice {
            let name = if field == "input_name" { &state.input_name } else { &state.output_name };
            tracing::warn!(
                "Detected duplicate '{field}' in the state configuration: '{name}'. This state configuration will be \
                 ignored."
            );
            continue;
        }
        states.push(StateSpec { output: state.output_name.clone(), initial });
    }
    Ok(states)
}

/// The first value of a state: what the configuration says, else zeros.
fn read_initial(state: &State, is_batched: bool, directory: &Path) -> Result<InputTensor, Error> {
    let name = &state.input_name;
    let Some(dtype) = state.data_type().to_dtype() else {
        return Err(Error::invalid(format!("state '{name}' has no data type")));
    };
    let batch: &[i64] = if is_batched { &[1] } else { &[] };
    let (dims, data) = match &state.initial_state[..] {
        [] => {
            let dims: Vec<i64> = state.dims.iter().map(|dim| if *dim == -1 { 1 } else { *dim }).collect();
            let bytes = byte_size(&dims, dtype, name)?;
            (dims, Buffer::zeroed(bytes)?)
        }
        [initial] => {
            check_initial(initial, state)?;
            (initial.dims.clone(), initial_data(initial, byte_size(&initial.dims, dtype, name)?, name, directory)?)
        }
        several => {
            return Err(Error::invalid(format!(
                "initial_state field for state input '{name}' must contain exactly one or zero element. Found '{}' \
                 elements.",
                several.len()
            )));
        }
    };
    Ok(InputTensor { name: name.clone(), dtype: Some(dtype), shape: [batch, &dims].concat(), data })
}

fn check_initial(initial: &InitialState, state: &State) -> Result<(), Error> {
    let name = &state.input_name;
    let refuse = |text: String| Err(Error::invalid(text));
    if initial.data_type != state.data_type {
        return refuse(format!(
            "The data type used for 'initial_state' field of state '{name}' does not match the state data type."
        ));
    }
    if initial.name.is_empty() {
        return refuse(format!("Field 'name' must be set when using initial_state for state input '{name}'."));
    }
    if initial.dims.len() != state.dims.len() {
        return refuse(format!(
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input \
             '{name}'. {} != {}",
            initial.dims.len(),
            state.dims.len()
        ));
    }
    for (dim, expected) in initial.dims.iter().zip(&state.dims) {
        if *dim == -1 {
            return refuse(format!(
                "'initial_state' field for state input name '{name}' contains variable dimensions."
            ));
        }
        if *expected != -1 && dim != expected {
            return refuse(format!(
                "'initial_state' dim for input name '{name}' doesn't match 'state' dim description. {dim} != {expected}"
            ));
        }
    }
    Ok(())
}

fn initial_data(initial: &InitialState, bytes: usize, name: &str, directory: &Path) -> Result<Buffer, Error> {
    match &initial.state_data {
        Some(StateData::ZeroData(_)) => Ok(Buffer::zeroed(bytes)?),
        Some(StateData::DataFile(file)) => {
            if !is_inside(file) {
                return Err(Error::invalid(format!(
                    "initial_state data file '{file}' is outside the model's directory {DIRECTORY}"
                )));
            }
            let path = directory.join(DIRECTORY).join(file);
            let data = fs::read(&path)
                .map_err(|error| Error::invalid(format!("cannot read initial_state {}: {error}", path.display())))?;
            if initial.data_type() == DataType::TypeString {
                return Ok(Buffer::foreign(data));
            }
            if data.len() < bytes {
                // Triton has no blank in front of "only".
                return Err(Error::invalid(format!(
                    "initial_state setting expects {bytes} bytes, but the data provided from {file}only has {} bytes.",
                    data.len()
                )));
            }
            Ok(Buffer::copied(&data[..bytes])?)
        }
        None => Err(Error::invalid(format!("initial_state setting expects state'{name}' to have state_data set"))),
    }
}

/// Bytes of a tensor of zeros; a string of no bytes is its length.
fn byte_size(dims: &[i64], dtype: DType, name: &str) -> Result<usize, Error> {
    let element = if dtype == DType::String { wire::LENGTH_BYTES } else { dtype.size() };
    dims.iter()
        .try_fold(element, |bytes, &dim| bytes.checked_mul(usize::try_from(dim).ok()?))
        .ok_or_else(|| Error::invalid(format!("state '{name}' has an invalid shape")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config, testing::Files};

    fn read(files: &Files, batching: &str) -> Result<Option<SequenceSpec>, Error> {
        let io = "input { name: 'I' data_type: TYPE_FP32 dims: 1 } output { name: 'O' data_type: TYPE_FP32 dims: 1 }";
        let text = format!("max_batch_size: 2 sequence_batching {{ {batching} }} {io}");
        SequenceSpec::read(&config::parse(&text, files.path())?, files.path())
    }

    fn state(initial: &str) -> String {
        format!("state {{ input_name: 'in' output_name: 'out' data_type: TYPE_INT32 dims: [ 2, -1 ] {initial} }}")
    }

    #[test]
    fn first_states_come_from_zeros_or_a_file() {
        let files = Files::new();
        let bytes: Vec<u8> = (0..40).collect();
        files.write("initial_state/begin", &bytes);
        let of = |more: &str| format!("initial_state {{ name: 'x' data_type: TYPE_INT32 dims: [ 2, 3 ] {more} }}");
        for (initial, shape, expected) in [
            (String::new(), [1, 2, 1], &[0; 8][..]),
            (of("zero_data: true"), [1, 2, 3], &[0; 24]),
            (of("data_file: 'begin'"), [1, 2, 3], &bytes[..24]),
        ] {
            let spec = read(&files, &state(&initial)).unwrap().unwrap();
            let first = &spec.states[spec.state("out").unwrap()].initial;
            assert_eq!((first.name.as_str(), &*first.shape, &*first.data), ("in", &shape[..], expected));
        }
    }

    #[test]
    fn first_states_that_do_not_fit_are_refused() {
        let files = Files::new();
        files.write("initial_state/short", [0; 5]);
        let of = |more: &str| format!("initial_state {{ {more} }}");
        let fitting = "name: 'x' data_type: TYPE_INT32 dims: [ 2, 3 ]";
        for (initial, expected) in [
            (of("name: 'x' data_type: TYPE_FP32 dims: [ 2, 3 ]"), "does not match the state data type"),
            (of("data_type: TYPE_INT32 dims: [ 2, 3 ]"), "Field 'name' must be set when using initial_state"),
            (of("name: 'x' data_type: TYPE_INT32 dims: [ 2 ]"), "for state input 'in'. 1 != 2"),
            (of("name: 'x' data_type: TYPE_INT32 dims: [ 2, -1 ]"), "contains variable dimensions"),
            (of("name: 'x' data_type: TYPE_INT32 dims: [ 3, 1 ]"), "doesn't match 'state' dim description. 3 != 2"),
            (of(fitting), "initial_state setting expects state'in' to have state_data set"),
            (
                of(&format!("{fitting} data_file: 'short'")),
                "expects 24 bytes, but the data provided from shortonly has 5",
            ),
            (of(&format!("{fitting} data_file: '../short'")), "is outside the model's directory initial_state"),
            (of(fitting).repeat(2), "must contain exactly one or zero element. Found '2' elements."),
            ("use_growable_memory: true".to_owned(), "In order to 'use_growable_memory'"),
        ] {
            let error = read(&files, &state(&initial)).unwrap_err();
            assert!(error.message.contains(expected), "{initial}: {}", error.message);
        }
    }

    #[test]
    fn identifiers_are_cut_to_the_type_that_is_asked_for() {
        let number = CorrelationId::Int(0x0102_0304_0506_0708);
        for (id, dtype, expected) in [
            (&number, DType::U64, &[8, 7, 6, 5, 4, 3, 2, 1][..]),
            (&number, DType::I64, &[8, 7, 6, 5, 4, 3, 2, 1]),
            (&number, DType::U32, &[8, 7, 6, 5]),
            (&number, DType::I32, &[8, 7, 6, 5]),
            (&CorrelationId::String("ab".into()), DType::String, &[2, 0, 0, 0, b'a', b'b']),
            (&CorrelationId::default(), DType::String, &[0; 4]),
        ] {
            assert_eq!(id_bytes(id, dtype), expected, "{id} {dtype:?}");
        }
    }

    #[test]
    fn signals_say_where_in_a_sequence_a_request_is() {
        let files = Files::new();
        let control = |kind: &str, values: &str| {
            format!("control_input {{ name: '{kind}' control {{ kind: CONTROL_SEQUENCE_{kind} {values} }} }}")
        };
        let all = [
            control("START", "int32_false_true: [ 3, 4 ]"),
            control("READY", "bool_false_true: [ false, true ]"),
            control("END", "fp32_false_true: [ 0, 1 ]"),
        ];
        let spec = read(&files, &all.concat()).unwrap().unwrap();
        let bytes = |sequence: Option<&Sequence>| -> Vec<Vec<u8>> {
            spec.signals(sequence).map(|input| input.data.to_vec()).collect()
        };
        let one = 1f32.to_le_bytes().to_vec();
        let sequence = |start, end| Sequence { start, end, ..Sequence::default() };
        assert_eq!(bytes(Some(&sequence(true, false))), [vec![4, 0, 0, 0], vec![1], vec![0; 4]]);
        assert_eq!(bytes(Some(&sequence(false, true))), [vec![3, 0, 0, 0], vec![1], one]);
        assert_eq!(bytes(None), [vec![3, 0, 0, 0], vec![0], vec![0; 4]]);
    }
}
