use crate::footprint::{Tally, address, weight_bytes};
use crate::packed::Packer;
use crate::plan::Plan;
use crate::plan::bands::BandsOf;
use crate::{CompileError, Executable, Footprint, Kernel, RunError, Session, TensorDesc};
use halimede_graph::ops::Factors;
use halimede_graph::passes::PassReport;
use halimede_graph::{Graph, Node, Op, ValueId};
use halimede_tensor::{Held, Tensor};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// A graph with the kernels of one unit: the executable of every unit that runs kernels one by one.
pub struct Program {
    graph: Graph,
    codes: Vec<Code>,
    kernels: Arc<dyn Kernels>,
    bytes_max: usize,
    /// Weights of its kernels, bodies of control flow included.
    packed: Held,
    /// What passes did that the unit ran.
    rewrites: Vec<PassReport>,
    /// The plans of the shapes seen lately, newest first.
    plans: Mutex<VecDeque<(PlanKey, Arc<Plan>)>>,
}

/// Per graph input its datatype and shape; `None` for what is not planned (strings, sequences).
pub(crate) type PlanKey = Vec<Option<TensorDesc>>;

/// A model that sees more shapes than this makes its oldest plans again.
const PLANS_KEPT: usize = 64;

/// How a node runs.
pub(crate) enum Code {
    /// By a kernel of the unit.
    Kernel(Box<dyn Kernel>),
    /// Not at all: the output is the input's bytes under another shape.
    Alias,
    /// By its definition in the graph crate.
    Reference,
    /// By reading no element at all: the dimensions of a value whose shape depends on data.
    Shape,
    /// As core operators on these kernels, once a request tells the numbers that its lowering lacked.
    Late(Arc<dyn Kernels>),
    /// By running its bodies.
    Control(Vec<Arc<Program>>),
}

/// Where a [`Program`] gets its kernels.
pub trait Kernels: Send + Sync {
    /// The kernel of a node, whose weights `packer` packs; `None` where the unit has none and the definition runs
    /// instead.
    fn kernel(&self, graph: &Graph, node: &Node, packer: &Packer) -> Option<Box<dyn Kernel>>;

    /// How many threads run a step together.
    fn threads(&self) -> usize {
        1
    }

    /// Where images go through several steps in bands.
    fn bands(&self) -> BandsOf {
        BandsOf::WherePays
    }
}

impl Program {
    /// Compiles a graph, bodies of control flow included. A run whose tensors come to more than
    /// `bytes_max` is given up: shapes may come from the model's own data, and a unit that has no such
    /// memory would end the process instead.
    ///
    /// Constants that a step reads are copied out of the file that they are mapped from: it may be
    /// written over while the program lives. Those that kernels have packed stay where they are. Copies and
    /// packed weights come from `packer`.
    pub fn new(
        mut graph: Graph,
        kernels: &Arc<dyn Kernels>,
        bytes_max: usize,
        packer: &Packer,
    ) -> Result<Program, CompileError> {
        let before = packer.packed();
        let codes: Vec<Code> =
            graph.nodes.iter().map(|node| code(&graph, node, kernels, bytes_max, packer)).collect::<Result<_, _>>()?;
        let after = packer.packed();
        let packed = Held { private: after.private - before.private, mapped: after.mapped - before.mapped };
        for value in constants_read(&graph, &codes) {
            if let Some(constant) = &mut graph.values[value.index()].fact.constant {
                *constant = packer.owned(constant)?;
            }
        }
        Ok(Program {
            graph,
            codes,
            kernels: kernels.clone(),
            bytes_max,
            packed,
            rewrites: Vec::new(),
            plans: Mutex::default(),
        })
    }

    /// The program with what passes did before that the unit ran over the graph, for people.
    pub fn rewritten(self, rewrites: Vec<PassReport>) -> Program {
        Program { rewrites, ..self }
    }

    /// The graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    pub(crate) fn codes(&self) -> &[Code] {
        &self.codes
    }

    pub(crate) fn kernels(&self) -> &Arc<dyn Kernels> {
        &self.kernels
    }

    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// The plan for the shapes of a request, made now or remembered.
    pub(crate) fn plan(&self, key: &PlanKey) -> Result<Arc<Plan>, RunError> {
        {
            let mut plans = self.plans.lock();
            if let Some(position) = plans.iter().position(|(known, _)| known == key)
                && let Some(found) = plans.remove(position)
            {
                let plan = found.1.clone();
                plans.push_front(found);
                return Ok(plan);
            }
        }
        // Made outside the lock: two instances that meet a new shape at once both make it, which costs
        // less than making others wait.
        let plan = Arc::new(Plan::new(self, key)?);
        let mut plans = self.plans.lock();
        plans.push_front((key.clone(), plan.clone()));
        plans.truncate(PLANS_KEPT);
        Ok(plan)
    }
}

impl Program {
    /// Bytes of weights in the layouts of its kernels, as these say.
    pub fn packed_bytes(&self) -> usize {
        let of = |code: &Code| match code {
            Code::Kernel(kernel) => kernel.packed_bytes(),
            _ => 0,
        };
        self.codes.iter().map(of).chain(self.bodies().map(Program::packed_bytes)).sum()
    }

    /// Programs of control flow.
    fn bodies(&self) -> impl Iterator<Item = &Program> {
        let bodies = self.codes.iter().filter_map(|code| match code {
            Code::Control(bodies) => Some(bodies),
            _ => None,
        });
        bodies.flatten().map(Arc::as_ref)
    }

    /// Adds what its steps need, and those of bodies.
    fn count(&self, tally: &mut Tally, footprint: &mut Footprint) {
        footprint.weights += weight_bytes(&self.graph);
        for value in constants_read(&self.graph, &self.codes) {
            footprint.constants += self.graph.constant(value).map(|constant| tally.held(constant)).unwrap_or_default();
        }
        self.bodies().for_each(|body| body.count(tally, footprint));
        // Only what is known for these shapes alone: a plan knows the graph's own constants, too.
        let own: BTreeSet<usize> = constants_of(&self.graph).map(address).collect();
        for (_, plan) in self.plans.lock().iter() {
            let constants = plan.constants.iter().filter(|constant| !own.contains(&address(constant)));
            let constants: usize = constants.map(|constant| tally.held(constant).private).sum();
            footprint.plans += constants + plan.list_bytes();
        }
    }

    /// Constants of its graph and of bodies.
    fn all_constants(&self) -> Vec<&Tensor> {
        constants_of(&self.graph).chain(self.bodies().flat_map(Program::all_constants)).collect()
    }
}

fn constants_of(graph: &Graph) -> impl Iterator<Item = &Tensor> {
    graph.values.iter().filter_map(|value| value.fact.constant.as_ref())
}

impl Executable for Program {
    fn session(self: Arc<Self>) -> Session {
        Session::new(self)
    }

    fn describe(&self) -> Vec<String> {
        self.graph
            .nodes
            .iter()
            .zip(&self.codes)
            .map(|(node, code)| format!("{} {} · {}", node.op.name(), node.name, code.name()))
            .collect()
    }

    fn footprint(&self, source: &Graph) -> Footprint {
        let mut footprint = Footprint { packed: self.packed, ..Footprint::default() };
        let mut tally = Tally::default();
        self.count(&mut tally, &mut footprint);
        // What is left of these was counted as constants, or steps read other copies of them.
        let sources = self.all_constants().into_iter().chain(constants_of(source));
        footprint.sources = sources.map(|constant| tally.held(constant)).sum();
        footprint
    }

    fn reduced(&self) -> Vec<String> {
        let is_rounded = |node: &&Node| node.op.multiply().and_then(Factors::rounded).is_some();
        let reduced = self.graph.nodes.iter().filter(is_rounded);
        let names = reduced.flat_map(|node| match &node.op {
            // They are known by the nodes that they were.
            Op::Products(op) => op.parts.iter().map(|part| part.name.clone()).collect(),
            _ => vec![node.name.clone()],
        });
        names.collect()
    }

    fn rewrites(&self) -> &[PassReport] {
        &self.rewrites
    }
}

impl Code {
    pub(crate) fn name(&self) -> &str {
        match self {
            Code::Kernel(kernel) => kernel.name(),
            Code::Alias => "alias",
            Code::Reference => "reference",
            Code::Shape => "shape",
            Code::Late(_) => "kernels chosen late",
            Code::Control(_) => "control flow",
        }
    }
}

fn code(
    graph: &Graph,
    node: &Node,
    kernels: &Arc<dyn Kernels>,
    bytes_max: usize,
    packer: &Packer,
) -> Result<Code, CompileError> {
    let body = |body: &Graph| Program::new(body.clone(), kernels, bytes_max, packer).map(Arc::new);
    Ok(match &node.op {
        Op::If(op) => Code::Control(vec![body(&op.then_branch)?, body(&op.else_branch)?]),
        Op::Loop(op) => Code::Control(vec![body(&op.body)?]),
        Op::Scan(op) => Code::Control(vec![body(&op.body)?]),
        Op::Reshape(_) => Code::Alias,
        Op::ShapeOf(_) => Code::Shape,
        Op::Call(call) if call.operator.lower.is_some() => Code::Late(kernels.clone()),
        _ => kernels.kernel(graph, node, packer).map_or(Code::Reference, Code::Kernel),
    })
}

/// Constants that are graph outputs or that some step reads unpacked.
fn constants_read(graph: &Graph, codes: &[Code]) -> BTreeSet<ValueId> {
    let steps = graph.nodes.iter().zip(codes).flat_map(|(node, code)| {
        let packed = match code {
            Code::Kernel(kernel) => kernel.consumed(),
            Code::Alias | Code::Reference | Code::Shape | Code::Late(_) | Code::Control(_) => SmallVec::new(),
        };
        node.inputs.iter().enumerate().filter(move |(index, _)| !packed.contains(index)).filter_map(|(_, input)| *input)
    });
    graph.outputs.iter().copied().chain(steps).filter(|&value| graph.constant(value).is_some()).collect()
}
