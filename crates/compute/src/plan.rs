//! A flat list of steps over planned memory, for one set of input shapes.

pub(crate) mod bands;
mod joins;
mod layouts;
pub(crate) mod slices;

use crate::arena::{self, Lifetime};
use crate::footprint::multiplied;
use crate::layout::Layout;
use crate::program::{Code, PlanKey, Program};
use crate::specialise::{forget, planned, specialise};
use crate::tuning::{Config, Part, Tunable};
use crate::{CostHint, Kernel, Prepared, RunError, TensorDesc};
use bands::{Bands, Turn};
use halimede_graph::ops::{Factors, has_many_rows};
use halimede_graph::{Fact, Graph, GraphError, Node, OpError, ValueId};
use halimede_tensor::{Tensor, TensorError};
use slices::Sliced;
use smallvec::SmallVec;
use std::ops::Range;

/// Where a value is found during a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Known when the plan was made.
    Constant(usize),
    /// Given with the request.
    Input(usize),
    /// In the arena.
    Arena { offset: usize, bytes: usize },
    /// In the memory of a graph output.
    Output { index: usize, offset: usize, bytes: usize },
    /// On the heap, because its shape depends on data or it is no plain tensor.
    Slot(usize),
    /// Nowhere: an input left out, or one that its kernel has packed.
    Nothing,
}

impl Place {
    /// Whether it is a part of another place, or all of it.
    fn lies_in(self, whole: Place) -> bool {
        let is_inside = |(from, bytes): (usize, usize), (start, all): (usize, usize)| {
            from >= start && from + bytes <= start + all && bytes > 0
        };
        match (self, whole) {
            (Place::Arena { offset, bytes }, Place::Arena { offset: start, bytes: all }) => {
                is_inside((offset, bytes), (start, all))
            }
            (Place::Output { index, offset, bytes }, Place::Output { index: other, offset: start, bytes: all }) => {
                index == other && is_inside((offset, bytes), (start, all))
            }
            _ => false,
        }
    }
}

/// One step.
pub(crate) enum StepCode {
    /// A kernel on planned memory.
    Kernel { prepared: Prepared, workspace: Place },
    /// The same in bands, for whose rows it has a form each.
    Bands { forms: Vec<Prepared>, workspace: Place },
    /// A node whose shapes or values are found while it runs, or that only its definition can do.
    Dynamic,
}

/// A step with the places that it reads and writes.
pub(crate) struct PlannedStep {
    /// Position of the node in the graph.
    pub node: usize,
    pub code: StepCode,
    /// Into [`Plan::places`].
    pub inputs: Range<usize>,
    /// Into [`Plan::places`].
    pub outputs: Range<usize>,
    /// Slices of the batch that it runs on, one at a time.
    pub slices: usize,
}

/// Steps that run together, as often as there are slices of the batch.
pub(crate) struct Run {
    pub steps: Range<usize>,
    pub slices: usize,
    /// What is done for a slice.
    pub turns: Vec<Turn>,
}

impl Run {
    fn new(steps: Range<usize>, slices: usize) -> Run {
        Run { steps, slices, turns: Vec::new() }
    }
}

/// Steps, places and sizes for one set of input shapes.
pub struct Plan {
    pub(crate) steps: Vec<PlannedStep>,
    /// All steps, in order.
    pub(crate) runs: Vec<Run>,
    pub(crate) places: Vec<Place>,
    /// Of which places a step takes the slice at hand.
    pub(crate) cut: Vec<bool>,
    /// Per value of the graph.
    pub(crate) values: Vec<Place>,
    /// Per value of the graph: datatype and shape of what is planned.
    pub(crate) descs: Vec<Option<TensorDesc>>,
    /// Per value of the graph.
    pub(crate) layouts: Vec<Layout>,
    pub(crate) constants: Vec<Tensor>,
    pub(crate) arena_bytes: usize,
    pub(crate) slots: usize,
    /// Per graph output where it is at the end.
    pub(crate) outputs: Vec<Place>,
}

/// A step for people.
#[derive(Debug, Clone)]
pub struct StepReport {
    /// Name of the model's node.
    pub node: String,
    /// Core operator or called ONNX operator.
    pub operator: String,
    /// Kernel, `reference` or `control flow`.
    pub kernel: String,
    /// Output shapes; `?` where they depend on data. Those that are not row-major say so.
    pub outputs: Vec<String>,
    /// Slices of the batch that go through this step and its neighbours one after the other; 1: the batch as a whole.
    pub slices: usize,
    /// Bands of rows in which an image goes through this step and its neighbours; 1: the image as a whole.
    pub bands: usize,
    /// What a product multiplies its operands as; `None` where as they are, and for other steps.
    pub multiply: Option<Factors>,
    /// What its kernel was told to do because it was measured to be fastest.
    pub chosen: Option<Config>,
    /// Arithmetic and traffic, constants in the datatype that is multiplied; `None` where a shape depends on data.
    pub cost: Option<CostHint>,
}

impl Plan {
    /// Bytes of the arena.
    pub fn arena_bytes(&self) -> usize {
        self.arena_bytes
    }

    /// Bytes of the arena and of the outputs.
    pub(crate) fn bytes(&self) -> usize {
        let outputs = self.outputs.iter().enumerate().map(|(index, place)| match *place {
            Place::Output { index: own, bytes, .. } if own == index => bytes,
            _ => 0,
        });
        outputs.fold(self.arena_bytes, usize::saturating_add)
    }

    /// Bytes of its lists, and of the steps without what they point to.
    pub(crate) fn list_bytes(&self) -> usize {
        let step = |step: &PlannedStep| match &step.code {
            StepCode::Kernel { prepared, .. } => size_of_val(&*prepared.step),
            StepCode::Bands { forms, .. } => forms.iter().map(|form| size_of_val(&*form.step)).sum(),
            StepCode::Dynamic => 0,
        };
        let lists = [
            size_of_val(self.steps.as_slice()),
            size_of_val(self.places.as_slice()),
            size_of_val(self.values.as_slice()),
            size_of_val(self.descs.as_slice()),
            size_of_val(self.layouts.as_slice()),
            size_of_val(self.outputs.as_slice()),
        ];
        let turns = self.runs.iter().map(|run| size_of_val(run.turns.as_slice()));
        self.steps.iter().map(step).chain(lists).chain(turns).sum()
    }

    /// The steps, for people.
    pub(crate) fn report(&self, program: &Program) -> Vec<StepReport> {
        let shape = |value: &ValueId| match &self.descs[value.index()] {
            Some(desc) => {
                let layout = match self.layouts[value.index()] {
                    Layout::RowMajor => "",
                    Layout::Blocked => " blocked",
                    Layout::Bordered(_) => " bordered",
                };
                format!("{}{:?}{layout}", desc.dtype, desc.shape.as_slice())
            }
            None => "?".to_owned(),
        };
        let mut bands = vec![0; self.steps.len()];
        for turn in self.runs.iter().flat_map(|run| &run.turns) {
            match turn {
                Turn::Step(step) => bands[*step] += 1,
                Turn::Band(band) => bands[band.step] += 1,
                Turn::Keep(_) => {}
            }
        }
        self.steps
            .iter()
            .zip(bands)
            .map(|(step, bands)| {
                let node = &program.graph().nodes[step.node];
                let code = &program.codes()[step.node];
                StepReport {
                    node: node.name.clone(),
                    operator: node.op.name().to_owned(),
                    kernel: self.kernel_name(code, step),
                    outputs: node.outputs.iter().map(shape).collect(),
                    slices: step.slices,
                    bands,
                    multiply: node.op.multiply(),
                    chosen: self.tunable(program, step).and_then(|tunable| tunable.chosen),
                    cost: self.cost(program.graph(), node),
                }
            })
            .collect()
    }

    /// The name of what runs, and of a kernel that joins values how many of them are made where they belong.
    fn kernel_name(&self, code: &Code, step: &PlannedStep) -> String {
        let (name, inputs) = (code.name(), &self.places[step.inputs.clone()]);
        let Some(&whole) = self.places[step.outputs.clone()].first() else { return name.to_owned() };
        let is_new = |index: usize| !inputs[..index].contains(&inputs[index]);
        let joined = (0..inputs.len()).filter(|&index| inputs[index].lies_in(whole) && is_new(index)).count();
        match code {
            Code::Kernel(kernel) if joined > 0 && kernel.in_place().is_empty() => {
                format!("{name}, {joined} of {} in place", inputs.len())
            }
            _ => name.to_owned(),
        }
    }

    /// The steps about which something can be chosen, each operator once.
    pub(crate) fn parts(&self, program: &Program) -> Vec<Part> {
        let graph = program.graph();
        let mut parts: Vec<Part> = Vec::new();
        for (index, step) in self.steps.iter().enumerate() {
            let Some(tunable) = self.tunable(program, step) else { continue };
            if let Some(known) = parts.iter_mut().find(|part| *part.operator() == tunable.operator) {
                known.steps.push(index);
                continue;
            }
            let node = &graph.nodes[step.node];
            let Some((inputs, outputs)) = self.operands(graph, step) else { continue };
            let fact = |value: Option<ValueId>, desc: Option<TensorDesc>| {
                let desc = desc?;
                let shape = desc.shape.iter().map(|&size| size.into());
                Some(match value.and_then(|value| graph.constant(value)) {
                    Some(constant) => Fact::constant(constant.clone()),
                    None => Fact::tensor(desc.dtype, shape),
                })
            };
            let inputs = node.inputs.iter().zip(inputs).map(|(&input, desc)| fact(input, desc)).collect();
            let outputs = outputs.into_iter().filter_map(|desc| fact(None, Some(desc))).collect();
            let (kernels, bytes_max) = (program.kernels().clone(), program.bytes_max());
            parts.push(Part::new(tunable, index, node, inputs, outputs, kernels, bytes_max));
        }
        parts
    }

    /// What can be chosen about a step that runs by a kernel.
    fn tunable(&self, program: &Program, step: &PlannedStep) -> Option<Tunable> {
        let Code::Kernel(kernel) = &program.codes()[step.node] else { return None };
        // Of a band nothing was ever measured.
        if let StepCode::Bands { .. } = step.code {
            return None;
        }
        let node = &program.graph().nodes[step.node];
        let (inputs, outputs) = self.operands(program.graph(), step)?;
        // Where a shape depends on data, or an input is found while the model runs, nothing is prepared.
        let is_planned = node.inputs.iter().zip(&inputs).all(|(input, desc)| input.is_none() || desc.is_some());
        kernel.tunable(&inputs, &outputs).filter(|_| is_planned)
    }

    /// What a step reads and writes at a time; `None` where an output depends on data.
    fn operands(&self, graph: &Graph, step: &PlannedStep) -> Option<(Vec<Option<TensorDesc>>, Vec<TensorDesc>)> {
        let node = &graph.nodes[step.node];
        let inputs: Vec<Option<TensorDesc>> =
            node.inputs.iter().map(|input| input.and_then(|value| self.desc(graph, value))).collect();
        let outputs: Option<Vec<TensorDesc>> = node.outputs.iter().map(|&value| self.desc(graph, value)).collect();
        let outputs = outputs?;
        let is_constant =
            |input: usize| matches!(self.places[step.inputs.start + input], Place::Constant(_) | Place::Nothing);
        match Sliced::new(node, is_constant, &inputs, &outputs, step.slices) {
            Some(sliced) => Some((sliced.inputs.into_vec(), sliced.outputs.into_vec())),
            None => Some((inputs, outputs)),
        }
    }

    fn desc(&self, graph: &Graph, value: ValueId) -> Option<TensorDesc> {
        match graph.constant(value) {
            Some(constant) => Some(TensorDesc { dtype: constant.dtype(), shape: constant.shape().into() }),
            None => self.descs[value.index()].clone(),
        }
    }

    fn cost(&self, graph: &Graph, node: &Node) -> Option<CostHint> {
        let input = |value: &Option<ValueId>| {
            let value = (*value)?;
            match graph.constant(value) {
                // As they are packed: other operands of a product are few.
                Some(constant) => {
                    Some(TensorDesc { dtype: multiplied(&node.op, constant), shape: constant.shape().into() })
                }
                None => self.descs[value.index()].clone(),
            }
        };
        let inputs: Vec<Option<TensorDesc>> = node.inputs.iter().map(input).collect();
        let outputs: Option<Vec<TensorDesc>> =
            node.outputs.iter().map(|value| self.descs[value.index()].clone()).collect();
        CostHint::of(&node.op, &inputs, &outputs?)
    }

    pub(crate) fn new(program: &Program, inputs: &PlanKey) -> Result<Plan, RunError> {
        let graph = program.graph();
        let mut facts = specialise(graph, inputs)?;
        let needed = needed(program, &facts);
        forget(graph, &mut facts, &needed);
        let mut drafts = Vec::new();
        let mut memory = Memory::new(program, facts);
        for (index, node) in graph.nodes.iter().enumerate().filter(|(index, _)| needed[*index]) {
            drafts.push(draft(program, index, node, &mut memory)?);
        }
        memory.place(program, drafts)
    }
}

/// Nodes whose results somebody reads and that are not wholly known already.
fn needed(program: &Program, facts: &[Fact]) -> Vec<bool> {
    let graph = program.graph();
    let mut wanted = vec![false; graph.values.len()];
    for output in &graph.outputs {
        wanted[output.index()] = true;
    }
    let mut needed = vec![false; graph.nodes.len()];
    for (index, node) in graph.nodes.iter().enumerate().rev() {
        let open = |value: &ValueId| wanted[value.index()] && facts[value.index()].constant.is_none();
        needed[index] = node.outputs.iter().any(open);
        if needed[index] {
            for input in node.inputs.iter().flatten() {
                wanted[input.index()] = true;
            }
        }
    }
    needed
}

/// A step before memory is laid out.
struct Draft {
    node: usize,
    prepared: Option<Prepared>,
    /// Inputs that the kernel has packed.
    consumed: SmallVec<[usize; 2]>,
    /// Where it runs on slices of the batch: how many, and which inputs are sliced.
    sliced: Option<(usize, SmallVec<[bool; 4]>)>,
    /// Where it makes bands: what it is prepared as for each number of rows.
    forms: Vec<Prepared>,
}

impl Draft {
    fn new(node: usize, prepared: Option<Prepared>, consumed: SmallVec<[usize; 2]>) -> Draft {
        Draft { node, prepared, consumed, sliced: None, forms: Vec::new() }
    }
}

/// Decides how a node runs and where its outputs may lie. `None` where nothing runs.
fn draft(program: &Program, index: usize, node: &Node, memory: &mut Memory) -> Result<Option<Draft>, RunError> {
    let descs = memory.input_descs(node);
    let planned_inputs = node.inputs.iter().zip(&descs).all(|(input, desc)| input.is_none() || desc.is_some());
    let outputs: Option<SmallVec<[TensorDesc; 1]>> =
        node.outputs.iter().map(|output| planned(&memory.facts[output.index()])).collect();
    let (Some(outputs), true) = (outputs, planned_inputs) else {
        node.outputs.iter().for_each(|&output| memory.on_heap(output));
        return Ok(Some(Draft::new(index, None, SmallVec::new())));
    };
    match &program.codes()[index] {
        Code::Alias => {
            memory.share(node.inputs[0], node.outputs[0], &outputs[0]);
            Ok(None)
        }
        Code::Kernel(kernel) => match prepare(node, kernel.as_ref(), &descs, &outputs, program.bytes_max())? {
            Some(prepared) => {
                for (&output, desc) in node.outputs.iter().zip(&outputs) {
                    memory.planned(output, desc);
                }
                for (input, output) in kernel.in_place() {
                    // A kernel speaks of every input that a node of its kind may have.
                    memory.wish(index, node.inputs.get(input).copied().flatten(), node.outputs[output]);
                }
                Ok(Some(Draft::new(index, Some(prepared), kernel.consumed())))
            }
            None => {
                for (&output, desc) in node.outputs.iter().zip(&outputs) {
                    memory.planned(output, desc);
                }
                Ok(Some(Draft::new(index, None, SmallVec::new())))
            }
        },
        Code::Reference | Code::Shape | Code::Late(_) | Code::Control(_) => {
            for (&output, desc) in node.outputs.iter().zip(&outputs) {
                memory.planned(output, desc);
            }
            Ok(Some(Draft::new(index, None, SmallVec::new())))
        }
    }
}

/// The step of a kernel; `None` where it has no form for these shapes, so that the definition runs. What has no
/// room is refused first: a kernel prepares as much as its outputs are long.
pub(crate) fn prepare(
    node: &Node,
    kernel: &dyn Kernel,
    inputs: &[Option<TensorDesc>],
    outputs: &[TensorDesc],
    bytes_max: usize,
) -> Result<Option<Prepared>, RunError> {
    let bytes = outputs.iter().map(TensorDesc::bytes).fold(0, usize::saturating_add);
    if bytes > bytes_max {
        return Err(RunError::Memory { bytes, bytes_max });
    }
    // Where there is nothing to write, nothing bounds how long axes are. Definitions know that.
    let mut nothing = outputs.iter().chain(inputs.iter().flatten()).filter(|desc| desc.is_empty());
    if outputs.iter().all(TensorDesc::is_empty) && nothing.any(|desc| has_many_rows(&desc.shape)) {
        return Ok(None);
    }
    match kernel.prepare(inputs, outputs) {
        Ok(prepared) => Ok(Some(prepared)),
        Err(OpError::Unsupported(_)) => Ok(None),
        Err(source) => Err(node_error(node, source).into()),
    }
}

/// Values on their way to a place. Values that share bytes have one root, which holds all of them.
struct Memory {
    facts: Vec<Fact>,
    descs: Vec<Option<TensorDesc>>,
    roots: Vec<usize>,
    /// Bytes from the start of the value that `roots` names.
    offsets: Vec<usize>,
    /// Final places of constants, inputs and heap values; planned ones get theirs at the end.
    places: Vec<Place>,
    constants: Vec<Tensor>,
    slots: usize,
    /// Output may lie where the input lay, if nobody reads the input afterwards: node, input, output.
    wishes: Vec<(usize, usize, usize)>,
    /// Of how many slices of a batch a value has room for one.
    slices: Vec<usize>,
    /// Per value.
    layouts: Vec<Layout>,
}

impl Memory {
    fn new(program: &Program, facts: Vec<Fact>) -> Memory {
        let graph = program.graph();
        let count = graph.values.len();
        let mut memory = Memory {
            descs: vec![None; count],
            roots: (0..count).collect(),
            offsets: vec![0; count],
            places: vec![Place::Nothing; count],
            constants: Vec::new(),
            slots: 0,
            wishes: Vec::new(),
            slices: vec![1; count],
            layouts: vec![Layout::RowMajor; count],
            facts,
        };
        for index in 0..count {
            if let Some(constant) = &memory.facts[index].constant {
                memory.places[index] = Place::Constant(memory.constants.len());
                memory.constants.push(constant.clone());
                memory.descs[index] = planned(&memory.facts[index]);
            }
        }
        for (position, input) in graph.inputs.iter().enumerate() {
            memory.places[input.index()] = Place::Input(position);
            memory.descs[input.index()] = planned(&memory.facts[input.index()]);
        }
        memory
    }

    /// The datatype and shape of a value that lies in memory; `None` on the heap.
    fn desc(&self, value: ValueId) -> Option<TensorDesc> {
        self.descs[value.index()].clone()
    }

    /// The same of what a node reads.
    fn input_descs(&self, node: &Node) -> SmallVec<[Option<TensorDesc>; 4]> {
        node.inputs.iter().map(|input| input.and_then(|value| self.desc(value))).collect()
    }

    /// The same of what it writes; `None` where some of it is on the heap.
    fn output_descs(&self, node: &Node) -> Option<SmallVec<[TensorDesc; 1]>> {
        node.outputs.iter().map(|&value| self.desc(value)).collect()
    }

    fn on_heap(&mut self, value: ValueId) {
        self.places[value.index()] = Place::Slot(self.slots);
        self.slots += 1;
    }

    fn planned(&mut self, value: ValueId, desc: &TensorDesc) {
        self.descs[value.index()] = Some(desc.clone());
    }

    fn share(&mut self, input: Option<ValueId>, output: ValueId, desc: &TensorDesc) {
        let Some(input) = input else { return };
        self.planned(output, desc);
        self.roots[output.index()] = self.root(input.index());
    }

    fn wish(&mut self, node: usize, input: Option<ValueId>, output: ValueId) {
        if let Some(input) = input {
            self.wishes.push((node, input.index(), output.index()));
        }
    }

    fn root(&self, mut value: usize) -> usize {
        while self.roots[value] != value {
            value = self.roots[value];
        }
        value
    }

    /// Bytes from the start of a value's root.
    fn offset(&self, mut value: usize) -> usize {
        let mut offset = 0;
        while self.roots[value] != value {
            offset += self.offsets[value];
            value = self.roots[value];
        }
        offset
    }

    fn bytes(&self, value: usize) -> usize {
        let Some(desc) = &self.descs[value] else { return 0 };
        let layout = self.layouts[value];
        if layout == Layout::RowMajor {
            return desc.bytes() / self.slices[value];
        }
        let mut slice = desc.clone();
        slice.shape.first_mut().into_iter().for_each(|images| *images /= self.slices[value]);
        layout.bytes(&slice).unwrap_or(0)
    }

    fn elements(&self, value: usize) -> usize {
        self.descs[value].as_ref().map_or(0, TensorDesc::len)
    }

    /// Lays out memory and writes the plan.
    fn place(mut self, program: &Program, drafts: Vec<Option<Draft>>) -> Result<Plan, RunError> {
        let graph = program.graph();
        let mut drafts: Vec<Draft> = drafts.into_iter().flatten().collect();
        let end = drafts.len();
        let mut runs = self.slice(program, &mut drafts)?;
        self.lay_out(program, &mut drafts);
        let bands = self.band(program, &mut drafts);
        self.join(program, &drafts);
        let position_of = positions(graph.nodes.len(), &drafts);
        self.grant_wishes(program, &drafts, &position_of);

        // Lifetimes of roots that need memory, in steps.
        let mut lives: Vec<Option<Lifetime>> = vec![None; self.roots.len()];
        for (position, draft) in drafts.iter().enumerate() {
            let node = &graph.nodes[draft.node];
            for value in node.outputs.iter().chain(node.inputs.iter().flatten()) {
                let root = self.root(value.index());
                if self.places[root] != Place::Nothing || self.descs[root].is_none() {
                    continue;
                }
                let bytes = self.bytes(root);
                // What a run of slices reads or writes as a whole is there for all of them.
                let run = runs.iter().find(|run| run.slices > self.slices[root] && run.steps.contains(&position));
                // So is what goes through steps in bands.
                let bands = || bands.iter().find(|bands| bands.steps.contains(&position));
                let steps = run.map(|run| &run.steps).or_else(|| Some(&bands()?.steps));
                let (first, last) = steps.map_or((position, position), |steps| (steps.start, steps.end - 1));
                let life = lives[root].get_or_insert(Lifetime { bytes, first, last });
                (life.first, life.last) = (life.first.min(first), life.last.max(last));
            }
        }
        // The memory of a graph output holds the root that becomes it; a second name for the same
        // root, a constant or a request input is copied from there.
        for (index, output) in graph.outputs.iter().enumerate() {
            let root = self.root(output.index());
            if lives[root].is_some() && self.places[root] == Place::Nothing {
                self.places[root] = Place::Output { index, offset: 0, bytes: self.bytes(root) };
                lives[root] = None;
            }
        }
        let mut arena_values: Vec<(Option<usize>, Lifetime)> =
            lives.iter().enumerate().filter_map(|(root, life)| Some((Some(root), (*life)?))).collect();
        for (position, draft) in drafts.iter().enumerate() {
            let bytes = match draft.forms.as_slice() {
                [] => draft.prepared.as_ref().map_or(0, |prepared| prepared.workspace),
                forms => forms.iter().map(|form| form.workspace).max().unwrap_or(0),
            };
            if bytes > 0 {
                arena_values.push((None, Lifetime { bytes, first: position, last: position }));
            }
        }
        let lifetimes: Vec<Lifetime> = arena_values.iter().map(|(_, life)| *life).collect();
        let too_large = || RunError::Tensor(TensorError::OutOfMemory(usize::MAX));
        let (offsets, arena_bytes) = arena::layout(&lifetimes).ok_or_else(too_large)?;
        let mut workspaces = vec![Place::Nothing; end];
        for ((root, life), offset) in arena_values.iter().zip(offsets) {
            let place = Place::Arena { offset, bytes: life.bytes };
            match root {
                Some(root) => self.places[*root] = place,
                None => workspaces[life.first] = place,
            }
        }

        take_turns(&mut runs, bands);
        let values: Vec<Place> = (0..self.places.len()).map(|value| self.find(value)).collect();
        let mut plan = Plan {
            steps: Vec::with_capacity(end),
            runs,
            places: Vec::new(),
            cut: Vec::new(),
            outputs: graph.outputs.iter().map(|output| values[output.index()]).collect(),
            values,
            descs: self.descs,
            layouts: self.layouts,
            constants: self.constants,
            arena_bytes,
            slots: self.slots,
        };
        for (draft, workspace) in drafts.into_iter().zip(workspaces) {
            let node = &graph.nodes[draft.node];
            let start = plan.places.len();
            let (slices, cut) = draft.sliced.unwrap_or((1, SmallVec::new()));
            // Where there is room for one slice alone, it is the one at hand.
            let is_cut = |value: ValueId| slices > 1 && self.slices[value.index()] == 1;
            for (position, input) in node.inputs.iter().enumerate() {
                let left_out = draft.consumed.contains(&position);
                plan.places.push(match input {
                    Some(value) if !left_out => plan.values[value.index()],
                    _ => Place::Nothing,
                });
                let is_sliced = cut.get(position).copied().unwrap_or(false);
                plan.cut.push(is_sliced && input.is_some_and(is_cut));
            }
            let middle = plan.places.len();
            plan.places.extend(node.outputs.iter().map(|output| plan.values[output.index()]));
            plan.cut.extend(node.outputs.iter().map(|&output| is_cut(output)));
            let code = match draft.prepared {
                _ if !draft.forms.is_empty() => StepCode::Bands { forms: draft.forms, workspace },
                Some(prepared) => StepCode::Kernel { prepared, workspace },
                None => StepCode::Dynamic,
            };
            let outputs = middle..plan.places.len();
            plan.steps.push(PlannedStep { node: draft.node, code, inputs: start..middle, outputs, slices });
        }
        Ok(plan)
    }

    /// Lets an output take the memory of an input that nobody reads afterwards.
    fn grant_wishes(&mut self, program: &Program, drafts: &[Draft], position_of: &[Option<usize>]) {
        let graph = program.graph();
        let mut last_use: Vec<usize> = vec![0; self.roots.len()];
        for (position, draft) in drafts.iter().enumerate() {
            for input in graph.nodes[draft.node].inputs.iter().flatten() {
                let root = self.root(input.index());
                last_use[root] = last_use[root].max(position);
            }
        }
        for output in &graph.outputs {
            last_use[self.root(output.index())] = usize::MAX;
        }
        for (node, input, output) in std::mem::take(&mut self.wishes) {
            let Some(position) = position_of[node] else { continue };
            // Other rows of the input are still to be read.
            if !drafts[position].forms.is_empty() {
                continue;
            }
            let (from, to) = (self.root(input), self.root(output));
            let uses = graph.nodes[node].inputs.iter().flatten().filter(|v| self.root(v.index()) == from).count();
            let free = self.places[from] == Place::Nothing && last_use[from] == position && uses == 1;
            // As many bytes alone would let two half-sized elements stand for one, or one slice for a batch of them.
            let fits = self.bytes(from) == self.bytes(output)
                && self.elements(input) == self.elements(output)
                && self.slices[from] == self.slices[output]
                && self.layouts[from] == self.layouts[output];
            if free && fits && from != to && to == output {
                self.roots[to] = from;
                last_use[from] = last_use[to];
            }
        }
    }

    /// Where a value lies, through its root; how many bytes are its own is its own size.
    fn find(&self, value: usize) -> Place {
        if self.places[value] != Place::Nothing {
            return self.places[value];
        }
        let (bytes, own) = (self.bytes(value), self.offset(value));
        match self.places[self.root(value)] {
            Place::Arena { offset, .. } => Place::Arena { offset: offset + own, bytes },
            Place::Output { index, .. } => Place::Output { index, offset: own, bytes },
            other => other,
        }
    }
}

/// What each run does for a slice, where some of its steps go through bands.
fn take_turns(runs: &mut [Run], bands: Vec<Bands>) {
    let mut bands = bands.into_iter().peekable();
    for run in runs {
        let mut step = run.steps.start;
        while step < run.steps.end {
            match bands.next_if(|bands| bands.steps.start == step) {
                Some(bands) => {
                    step = bands.steps.end;
                    run.turns.extend(bands.turns);
                }
                None => {
                    run.turns.push(Turn::Step(step));
                    step += 1;
                }
            }
        }
    }
}

fn positions(nodes: usize, drafts: &[Draft]) -> Vec<Option<usize>> {
    let mut positions = vec![None; nodes];
    for (position, draft) in drafts.iter().enumerate() {
        positions[draft.node] = Some(position);
    }
    positions
}

/// An operator's error with the place where it happened.
pub(crate) fn node_error(node: &Node, source: OpError) -> GraphError {
    let operator = if node.origin.is_empty() { node.op.name().to_owned() } else { node.origin.clone() };
    GraphError { node: node.name.clone(), operator, source }
}
