use crate::late::{self, Late};
use crate::memory::{expected_bytes, value_bytes};
use crate::plan::bands::{BandOfStep, Kept, Turn};
use crate::plan::slices::NEAR_BYTES;
use crate::plan::{self, Place, Plan, PlannedStep, StepCode, StepReport, node_error};
use crate::program::{Code, PlanKey, Program};
use crate::specialise::planned;
use crate::tuning::Part;
use crate::{Arguments, Executable, Kernel, RunError, TensorDesc, control};
use halimede_graph::{Dim, Fact, Kind, Node, Op, OpError};
use halimede_tensor::{Block, Buffer, DType, Tensor, TensorError, Value, View};
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A place to run a program in: an arena and memory for the outputs. One run at a time.
///
/// A run on the shapes of the run before allocates nothing, as long as every shape is known from the
/// inputs' and the outputs are read in place instead of taken.
pub struct Session {
    program: Arc<Program>,
    key: PlanKey,
    plan: Option<Arc<Plan>>,
    memory: Memory,
    /// Kept between steps and runs for its allocation alone.
    views: Vec<Option<View<'static>>>,
    /// Per node the sessions of its bodies, made when first needed.
    bodies: Vec<Vec<Session>>,
    /// Per node what its lowering became with the numbers of the run before.
    late: Vec<Option<Late>>,
    /// Per graph output where it lies when no block holds it.
    results: Vec<Option<Value>>,
    times: Option<Vec<StepTime>>,
    coverage: Coverage,
}

/// How a run was computed, in steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Steps run by kernels of the unit.
    pub kernels: usize,
    /// Steps run by their definition.
    pub reference: usize,
}

/// How long a step took.
#[derive(Debug, Clone)]
pub struct StepTime {
    /// Position in [`Session::steps`].
    pub step: usize,
    /// Wall time.
    pub time: Duration,
}

struct Memory {
    arena: Block,
    /// Per graph output; empty where it lies elsewhere.
    outputs: Vec<Block>,
    slots: Vec<Option<Value>>,
    /// Bytes of what lies in the slots.
    slot_bytes: usize,
}

/// Says whether a run is to be given up.
pub(crate) type Watch<'a> = &'a dyn Fn() -> bool;

impl Session {
    pub(crate) fn new(program: Arc<Program>) -> Session {
        let nodes = program.graph().nodes.len();
        Session {
            program,
            key: PlanKey::new(),
            plan: None,
            memory: Memory { arena: empty_block(), outputs: Vec::new(), slots: Vec::new(), slot_bytes: 0 },
            views: Vec::new(),
            bodies: std::iter::repeat_with(Vec::new).take(nodes).collect(),
            late: std::iter::repeat_with(|| None).take(nodes).collect(),
            results: Vec::new(),
            times: None,
            coverage: Coverage::default(),
        }
    }

    /// Measures every step of the runs that follow, or stops doing so.
    pub fn measure(&mut self, on: bool) {
        self.times = on.then(Vec::new);
    }

    /// The times of the last run's steps, where [`Session::measure`] asked for them.
    pub fn times(&self) -> &[StepTime] {
        self.times.as_deref().unwrap_or_default()
    }

    /// How the last run was computed.
    pub fn coverage(&self) -> Coverage {
        self.coverage
    }

    /// Datatypes and shapes of the last run's inputs; `None` for strings and what is no tensor.
    pub fn input_descs(&self) -> &[Option<TensorDesc>] {
        &self.key
    }

    /// The steps of the last run.
    pub fn steps(&self) -> Vec<StepReport> {
        self.plan.as_ref().map_or_else(Vec::new, |plan| plan.report(&self.program))
    }

    /// The steps of the last run about which something can be chosen, each operator once. Steps in bodies of
    /// control flow are not among them.
    pub fn parts(&self) -> Vec<Part> {
        self.plan.as_ref().map_or_else(Vec::new, |plan| plan.parts(&self.program))
    }

    /// Bytes of the arena of the last run.
    pub fn arena_bytes(&self) -> usize {
        self.plan.as_ref().map_or(0, |plan| plan.arena_bytes())
    }

    /// Bytes that the session holds: its arena, outputs, what lies on the heap, and the same of its bodies. Of these the
    /// system has given memory to what was written.
    pub fn memory_bytes(&self) -> usize {
        let memory = &self.memory;
        let bodies = self.bodies.iter().flatten().chain(self.late.iter().flatten().filter_map(Late::session));
        let bodies: usize = bodies.map(Session::memory_bytes).sum();
        memory.arena.len() + memory.outputs.iter().map(Block::len).sum::<usize>() + memory.slot_bytes + bodies
    }

    /// Bytes of arena and outputs of a run of inputs of these shapes; `None` where they do not fit the model.
    pub(crate) fn run_bytes(&self, inputs: &[TensorDesc]) -> Option<usize> {
        if inputs.len() != self.program.graph().inputs.len() {
            return None;
        }
        let key: PlanKey = inputs.iter().cloned().map(Some).collect();
        self.program.plan(&key).ok().map(|plan| plan.bytes())
    }

    /// Computes the outputs from the inputs, given in the graph's order.
    pub fn run(&mut self, inputs: &[Value]) -> Result<(), RunError> {
        self.run_watched(inputs, &|| false)
    }

    /// [`Session::run`] that ends with [`RunError::Overdue`] once it has taken longer than `time_max`: a loop
    /// may have no end.
    pub fn run_within(&mut self, inputs: &[Value], time_max: Duration) -> Result<(), RunError> {
        let start = Instant::now();
        self.run_watched(inputs, &|| start.elapsed() > time_max).map_err(|error| match error {
            RunError::Cancelled => RunError::Overdue { after: time_max },
            error => error,
        })
    }

    /// [`Session::run`] that ends with [`RunError::Cancelled`] once `is_cancelled` says so. It is asked
    /// before each step and each iteration of a loop, so it should be cheap.
    pub fn run_watched(&mut self, inputs: &[Value], is_cancelled: &dyn Fn() -> bool) -> Result<(), RunError> {
        // A body without steps is asked here.
        if is_cancelled() {
            return Err(RunError::Cancelled);
        }
        let plan = self.adopt(inputs)?;
        self.memory.slot_bytes = 0;
        self.coverage = Coverage::default();
        if let Some(times) = &mut self.times {
            times.clear();
        }
        let each = plan
            .runs
            .iter()
            .flat_map(|run| (0..run.slices).flat_map(|slice| run.turns.iter().map(move |turn| (turn, slice))));
        for (turn, slice) in each {
            if is_cancelled() {
                return Err(RunError::Cancelled);
            }
            let start = self.times.is_some().then(Instant::now);
            let index = turn.step();
            let step = &plan.steps[index];
            match (turn, &step.code) {
                (Turn::Keep(kept), _) => self.memory.keep(&plan, kept),
                (Turn::Band(band), StepCode::Bands { forms, workspace }) => {
                    let form = forms[band.form].step.as_ref();
                    self.run_kernel(&plan, (step, Some(band)), form, *workspace, inputs, slice)?;
                    self.coverage.kernels += usize::from(slice == 0 && band.is_first);
                }
                (Turn::Step(_), StepCode::Kernel { prepared, workspace }) => {
                    self.run_kernel(&plan, (step, None), prepared.step.as_ref(), *workspace, inputs, slice)?;
                    self.coverage.kernels += usize::from(slice == 0);
                }
                (Turn::Step(_), StepCode::Dynamic) => self.run_dynamic(&plan, step, inputs, is_cancelled)?,
                (Turn::Step(_), StepCode::Bands { .. }) | (Turn::Band(_), _) => {
                    debug_assert!(false, "bands are made by what was prepared for them");
                }
            }
            if let (Some(start), Some(times)) = (start, &mut self.times) {
                let time = start.elapsed();
                match times.get_mut(index) {
                    Some(known) => known.time += time,
                    None => times.push(StepTime { step: index, time }),
                }
            }
        }
        self.collect(&plan, inputs)
    }

    /// An output of the last run as bytes in place; `None` where it is no planned tensor.
    pub fn output(&mut self, index: usize) -> Option<(&TensorDesc, &[u8])> {
        let plan = self.plan.as_ref()?;
        let value = self.program.graph().outputs.get(index)?;
        let desc = plan.descs[value.index()].as_ref()?;
        match plan.outputs[index] {
            Place::Output { index: own, bytes, .. } if own == index => {
                Some((desc, self.memory.outputs.get_mut(index)?.bytes().get(..bytes)?))
            }
            _ => match self.results.get(index)?.as_ref()? {
                Value::Tensor(tensor) => Some((desc, tensor.bytes().ok()?)),
                _ => None,
            },
        }
    }

    /// The outputs of the last run, taken without a copy where they have memory of their own.
    pub fn take_outputs(&mut self) -> Result<Vec<Value>, RunError> {
        let Some(plan) = self.plan.clone() else { return Ok(Vec::new()) };
        let outputs = &self.program.graph().outputs;
        let mut taken = Vec::with_capacity(outputs.len());
        for (index, value) in outputs.iter().enumerate() {
            taken.push(match (plan.outputs[index], self.results[index].take()) {
                (_, Some(value)) => value,
                (Place::Output { index: own, bytes, .. }, None) if own == index => {
                    let block = std::mem::replace(&mut self.memory.outputs[index], Block::new(bytes)?);
                    let desc = desc_of(&plan, value.index())?;
                    Value::Tensor(Tensor::from_buffer(desc.dtype, &desc.shape, block.into_buffer())?)
                }
                _ => return Err(TensorError::Kind("an output that was taken already").into()),
            });
        }
        Ok(taken)
    }

    /// Finds the plan for these inputs and makes room for it.
    fn adopt(&mut self, inputs: &[Value]) -> Result<Arc<Plan>, RunError> {
        if let Some(plan) = &self.plan
            && same_shapes(&self.key, inputs)
        {
            return Ok(plan.clone());
        }
        self.check(inputs)?;
        let key: PlanKey = inputs.iter().map(desc_of_value).collect();
        let plan = self.program.plan(&key)?;
        let bytes_max = self.program.bytes_max();
        let bytes = plan.bytes();
        if bytes > bytes_max {
            return Err(RunError::Memory { bytes, bytes_max });
        }
        // Where there is no memory for this one, there is none for the last any more.
        self.plan = None;
        self.key.clear();
        if self.memory.arena.len() < plan.arena_bytes {
            self.memory.arena = empty_block();
            self.memory.arena = Block::lasting(plan.arena_bytes)?;
        }
        self.memory.outputs.clear();
        for (index, place) in plan.outputs.iter().enumerate() {
            self.memory.outputs.push(match *place {
                Place::Output { index: own, bytes, .. } if own == index => Block::new(bytes)?,
                _ => empty_block(),
            });
        }
        self.memory.slots.clear();
        self.memory.slots.resize(plan.slots, None);
        self.results.clear();
        self.results.resize(plan.outputs.len(), None);
        self.key = key;
        self.plan = Some(plan.clone());
        Ok(plan)
    }

    fn check(&self, inputs: &[Value]) -> Result<(), RunError> {
        let graph = self.program.graph();
        if inputs.len() != graph.inputs.len() {
            return Err(RunError::InputCount { expected: graph.inputs.len(), actual: inputs.len() });
        }
        for (&value, input) in graph.inputs.iter().zip(inputs) {
            let Value::Tensor(tensor) = input else { continue };
            let info = &graph.values[value.index()];
            if info.fact.kind != Kind::Tensor {
                continue;
            }
            if let Some(expected) = info.fact.dtype
                && expected != tensor.dtype()
            {
                return Err(RunError::InputType { name: info.name.clone(), expected, actual: tensor.dtype() });
            }
            if let Some(shape) = &info.fact.shape {
                let fits = |(dim, &size): (&Dim, &usize)| dim.size().is_none_or(|known| known == size);
                if shape.len() != tensor.rank() || !shape.iter().zip(tensor.shape()).all(fits) {
                    let (name, expected) = (info.name.clone(), format!("{:?}", shape.as_slice()));
                    return Err(RunError::InputShape { name, expected, actual: format!("{:?}", tensor.shape()) });
                }
            }
        }
        Ok(())
    }

    fn run_kernel(
        &mut self,
        plan: &Plan,
        (step, band): (&PlannedStep, Option<&BandOfStep>),
        code: &dyn crate::Step,
        workspace: Place,
        inputs: &[Value],
        slice: usize,
    ) -> Result<(), RunError> {
        let memory = &self.memory;
        let mut views = recycle(std::mem::take(&mut self.views));
        let view = |index: usize| -> Result<Option<View<'_>>, TensorError> {
            let view = memory.view(plan, plan.places[index], inputs)?;
            Ok(view.map(|view| {
                let bytes = view.len() / step.slices;
                let view = if plan.cut[index] { view.part(slice * bytes, bytes) } else { view };
                let part = band.and_then(|band| band.parts[index - step.inputs.start]);
                part.map_or(view, |part| view.part(part.offset, part.bytes))
            }))
        };
        for index in step.inputs.clone() {
            views.push(view(index)?);
        }
        let mut outputs: SmallVec<[View<'_>; 4]> = SmallVec::new();
        for index in step.outputs.clone() {
            outputs.push(view(index)?.unwrap_or(View::empty()));
        }
        let workspace = memory.view(plan, workspace, inputs)?.unwrap_or(View::empty());
        let is_far = |(index, view): (usize, &View<'_>)| {
            let whole = if plan.cut[index] { view.len() * step.slices } else { view.len() };
            whole >= NEAR_BYTES
        };
        let is_far = match band {
            Some(band) => band.is_far,
            None => step.outputs.clone().zip(&outputs).any(is_far),
        };
        let arguments = Arguments { inputs: &views, outputs: &outputs, workspace, is_far };
        code.check(&arguments).map_err(|source| node_error(&self.program.graph().nodes[step.node], source))?;
        run_step(code, &arguments);
        self.views = recycle(views);
        Ok(())
    }

    /// Runs a node whose shapes or values are found now.
    fn run_dynamic(
        &mut self,
        plan: &Plan,
        step: &PlannedStep,
        inputs: &[Value],
        watch: Watch<'_>,
    ) -> Result<(), RunError> {
        let program = self.program.clone();
        let bytes_max = program.bytes_max();
        let node = &program.graph().nodes[step.node];
        let mut given: Vec<Option<Value>> = Vec::with_capacity(node.inputs.len());
        for input in &node.inputs {
            given.push(match input {
                Some(value) => Some(self.memory.value(plan, value.index(), inputs)?),
                None => None,
            });
        }
        let made = match &program.codes()[step.node] {
            Code::Control(bodies) => {
                if self.bodies[step.node].is_empty() {
                    self.bodies[step.node] = bodies.iter().map(|body| body.clone().session()).collect();
                }
                let sessions = &mut self.bodies[step.node];
                let made = control::run(&node.op, sessions, &given, watch, bytes_max).map_err(|error| match error {
                    control::Error::Op(source) => node_error(node, source).into(),
                    control::Error::Run(error) => error,
                })?;
                for session in sessions.iter_mut() {
                    let inner = std::mem::take(&mut session.coverage);
                    self.coverage.kernels += inner.kernels;
                    self.coverage.reference += inner.reference;
                }
                made
            }
            Code::Kernel(kernel) => match run_kernel_now(node, kernel.as_ref(), &given, bytes_max)? {
                Some(made) => {
                    self.coverage.kernels += 1;
                    made
                }
                None => self.evaluate(node, &given)?,
            },
            // A reshape moves nothing, and dimensions are at hand: their definitions are as good as kernels.
            Code::Alias | Code::Shape => {
                self.coverage.kernels += 1;
                node.op.evaluate(&given).map_err(|source| node_error(node, source))?
            }
            Code::Late(kernels) => {
                let Op::Call(call) = &node.op else { return Err(TensorError::Kind("a call").into()) };
                match late::run(node, call, kernels, &given, &mut self.late[step.node], watch, bytes_max)? {
                    Some((made, session)) => {
                        let inner = session.coverage();
                        self.coverage.kernels += inner.kernels;
                        self.coverage.reference += inner.reference;
                        made
                    }
                    None => self.evaluate(node, &given)?,
                }
            }
            Code::Reference => self.evaluate(node, &given)?,
        };
        for ((&output, place), value) in node.outputs.iter().zip(&plan.places[step.outputs.clone()]).zip(made) {
            self.memory.store(plan, output.index(), *place, value).map_err(|source| node_error(node, source))?;
        }
        let bytes = self.memory.slot_bytes;
        if bytes > bytes_max {
            return Err(RunError::Memory { bytes, bytes_max });
        }
        Ok(())
    }

    fn evaluate(&mut self, node: &Node, given: &[Option<Value>]) -> Result<Vec<Value>, RunError> {
        self.coverage.reference += 1;
        require_room(node, given, self.program.bytes_max())?;
        Ok(node.op.evaluate(given).map_err(|source| node_error(node, source))?)
    }

    /// Finds the outputs that no block of their own holds.
    fn collect(&mut self, plan: &Plan, inputs: &[Value]) -> Result<(), RunError> {
        let program = self.program.clone();
        for (index, value) in program.graph().outputs.iter().enumerate() {
            self.results[index] = match plan.outputs[index] {
                Place::Output { index: own, .. } if own == index => None,
                _ => Some(self.memory.value(plan, value.index(), inputs)?),
            };
        }
        Ok(())
    }
}

impl Memory {
    /// Moves rows to the front of their value.
    fn keep(&mut self, plan: &Plan, kept: &Kept) {
        let Place::Arena { offset, .. } = plan.values[kept.value] else {
            return debug_assert!(false, "what bands make and read alone is in the arena");
        };
        let arena = self.arena.bytes_mut();
        for piece in (0..kept.pieces).map(|piece| offset + piece * kept.apart) {
            arena.copy_within(piece + kept.from..piece + kept.from + kept.bytes, piece);
        }
    }

    fn view<'a>(&'a self, plan: &'a Plan, place: Place, inputs: &'a [Value]) -> Result<Option<View<'a>>, TensorError> {
        Ok(Some(match place {
            Place::Constant(index) => plan.constants[index].view()?,
            Place::Input(index) => inputs[index].tensor()?.view()?,
            Place::Arena { offset, bytes } => self.arena.view(offset, bytes),
            Place::Output { index, offset, bytes } => self.outputs[index].view(offset, bytes),
            Place::Slot(index) => match &self.slots[index] {
                Some(value) => value.tensor()?.view()?,
                None => return Err(TensorError::Kind("a value that was not computed")),
            },
            Place::Nothing => return Ok(None),
        }))
    }

    /// A value of any kind, copied out of planned memory.
    fn value(&mut self, plan: &Plan, value: usize, inputs: &[Value]) -> Result<Value, RunError> {
        let bytes = match plan.values[value] {
            Place::Constant(index) => return Ok(reshaped(&plan.constants[index], &plan.descs[value])?.into()),
            Place::Input(index) => {
                return Ok(match (&inputs[index], &plan.descs[value]) {
                    (Value::Tensor(tensor), desc) => reshaped(tensor, desc)?.into(),
                    (other, _) => other.clone(),
                });
            }
            Place::Slot(index) => {
                return self.slots[index].clone().ok_or(TensorError::Kind("a value that was not computed").into());
            }
            Place::Arena { offset, bytes } => &self.arena.bytes()[offset..offset + bytes],
            Place::Output { index, offset, bytes } => &self.outputs[index].bytes()[offset..offset + bytes],
            Place::Nothing => return Err(TensorError::Kind("a value without a place").into()),
        };
        let desc = desc_of(plan, value)?;
        Ok(Tensor::from_buffer(desc.dtype, &desc.shape, Buffer::copied(bytes)?)?.into())
    }

    /// Puts a value that was computed on the heap where the plan wants it.
    fn store(&mut self, plan: &Plan, id: usize, place: Place, value: Value) -> Result<(), OpError> {
        let (target, bytes) = match place {
            Place::Slot(index) => {
                self.slot_bytes = self.slot_bytes.saturating_add(value_bytes(&value));
                self.slots[index] = Some(value);
                return Ok(());
            }
            Place::Arena { offset, bytes } => (&mut self.arena.bytes_mut()[offset..offset + bytes], bytes),
            Place::Output { index, offset, bytes } => {
                (&mut self.outputs[index].bytes_mut()[offset..offset + bytes], bytes)
            }
            _ => return Ok(()),
        };
        let tensor = value.tensor()?;
        let planned = plan.descs[id].as_ref();
        if planned.is_none_or(|desc| desc.shape.as_slice() != tensor.shape() || desc.dtype != tensor.dtype())
            || tensor.bytes()?.len() != bytes
        {
            return Err(OpError::invalid(format!(
                "its definition gave {}{:?} where its shape rule said {}",
                tensor.dtype(),
                tensor.shape(),
                planned
                    .map_or_else(|| "nothing".to_owned(), |desc| format!("{}{:?}", desc.dtype, desc.shape.as_slice())),
            )));
        }
        target.copy_from_slice(tensor.bytes()?);
        Ok(())
    }
}

/// Runs a kernel on shapes that were not known when the plan was made. `None` where it cannot.
fn run_kernel_now(
    node: &Node,
    kernel: &dyn Kernel,
    given: &[Option<Value>],
    bytes_max: usize,
) -> Result<Option<Vec<Value>>, RunError> {
    let mut tensors: SmallVec<[Option<&Tensor>; 4]> = SmallVec::new();
    for value in given {
        match value {
            None => tensors.push(None),
            Some(Value::Tensor(tensor)) if tensor.dtype() != DType::String => tensors.push(Some(tensor)),
            Some(_) => return Ok(None),
        }
    }
    let facts: SmallVec<[Option<Fact>; 4]> =
        tensors.iter().map(|tensor| tensor.map(|tensor| Fact::constant(tensor.clone()))).collect();
    let facts: SmallVec<[Option<&Fact>; 4]> = facts.iter().map(Option::as_ref).collect();
    let failed = |source| RunError::from(node_error(node, source));
    let outputs: Option<SmallVec<[TensorDesc; 1]>> =
        node.op.infer(&facts).map_err(failed)?.iter().map(planned).collect();
    let Some(outputs) = outputs else { return Ok(None) };
    let descs: SmallVec<[Option<TensorDesc>; 4]> = tensors.iter().map(|tensor| tensor.map(desc_of_tensor)).collect();
    let Some(prepared) = plan::prepare(node, kernel, &descs, &outputs, bytes_max)? else { return Ok(None) };
    let bytes = outputs.iter().map(TensorDesc::bytes).fold(prepared.workspace, usize::saturating_add);
    if bytes > bytes_max {
        return Err(RunError::Memory { bytes, bytes_max });
    }
    let consumed = kernel.consumed();
    let mut inputs: SmallVec<[Option<View<'_>>; 4]> = SmallVec::new();
    for (index, tensor) in tensors.iter().enumerate() {
        inputs.push(match tensor {
            Some(tensor) if !consumed.contains(&index) => Some(tensor.view()?),
            _ => None,
        });
    }
    let workspace = Block::new(prepared.workspace)?;
    let blocks: Vec<Block> = outputs.iter().map(|desc| Block::new(desc.bytes())).collect::<Result<_, _>>()?;
    let views: SmallVec<[View<'_>; 4]> = blocks.iter().map(|block| block.view(0, block.len())).collect();
    let workspace = workspace.view(0, prepared.workspace);
    let is_far = views.iter().any(|view| view.len() >= NEAR_BYTES);
    let arguments = Arguments { inputs: &inputs, outputs: &views, workspace, is_far };
    prepared.step.check(&arguments).map_err(failed)?;
    run_step(prepared.step.as_ref(), &arguments);
    drop(views);
    let made: Result<Vec<Value>, TensorError> = blocks
        .into_iter()
        .zip(&outputs)
        .map(|(block, desc)| Tensor::from_buffer(desc.dtype, &desc.shape, block.into_buffer()).map(Value::from))
        .collect();
    Ok(Some(made?))
}

/// Runs a step that has something to write: of nothing there may be very many rows.
fn run_step(step: &dyn crate::Step, arguments: &Arguments<'_>) {
    if !arguments.outputs.iter().all(|view| view.is_empty()) {
        step.run(arguments);
    }
}

/// Refuses a node whose definition would write more than there is memory for. Definitions take their
/// memory from the system without a way back, so this is asked first.
fn require_room(node: &Node, given: &[Option<Value>], bytes_max: usize) -> Result<(), RunError> {
    let fact = |value: &Value| match value {
        Value::Tensor(tensor) => Fact::constant(tensor.clone()),
        Value::Sequence(_) => Fact { kind: Kind::Sequence, ..Fact::default() },
        Value::Optional(_) => Fact { kind: Kind::Optional, ..Fact::default() },
    };
    let facts: SmallVec<[Option<Fact>; 4]> = given.iter().map(|value| value.as_ref().map(fact)).collect();
    let facts: SmallVec<[Option<&Fact>; 4]> = facts.iter().map(Option::as_ref).collect();
    // Where the rule finds something wrong the definition does too, in its own words.
    let Ok(outputs) = node.op.infer(&facts) else { return Ok(()) };
    let bytes = outputs.iter().map(expected_bytes).fold(0, usize::saturating_add);
    if bytes > bytes_max { Err(RunError::Memory { bytes, bytes_max }) } else { Ok(()) }
}

fn desc_of(plan: &Plan, value: usize) -> Result<&TensorDesc, TensorError> {
    plan.descs[value].as_ref().ok_or(TensorError::Kind("a value of unknown shape"))
}

fn desc_of_tensor(tensor: &Tensor) -> TensorDesc {
    TensorDesc { dtype: tensor.dtype(), shape: tensor.shape().into() }
}

fn desc_of_value(value: &Value) -> Option<TensorDesc> {
    match value {
        Value::Tensor(tensor) if tensor.dtype() != DType::String => Some(desc_of_tensor(tensor)),
        _ => None,
    }
}

/// Whether inputs have the datatypes and shapes of a key; asked at every run, so it must not allocate.
fn same_shapes(key: &PlanKey, inputs: &[Value]) -> bool {
    key.len() == inputs.len()
        && key.iter().zip(inputs).all(|(desc, value)| match (desc, value) {
            (Some(desc), Value::Tensor(tensor)) => {
                desc.dtype == tensor.dtype() && desc.shape.as_slice() == tensor.shape()
            }
            (None, Value::Tensor(tensor)) => tensor.dtype() == DType::String,
            (None, _) => true,
            (Some(_), _) => false,
        })
}

fn reshaped(tensor: &Tensor, desc: &Option<TensorDesc>) -> Result<Tensor, TensorError> {
    match desc {
        Some(desc) if desc.shape.as_slice() != tensor.shape() => tensor.reshaped(&desc.shape),
        _ => Ok(tensor.clone()),
    }
}

fn empty_block() -> Block {
    Block::new(0).expect("a block of no bytes needs no memory")
}

/// An empty list with the allocation of another whose views have ended.
fn recycle<'b>(mut views: Vec<Option<View<'_>>>) -> Vec<Option<View<'b>>> {
    views.clear();
    // Collecting from a vector's own iterator reuses its allocation; nothing is left to convert.
    views.into_iter().map(|_| None).collect()
}
