use crate::packed::Packer;
use crate::plan::Plan;
use crate::{CompileError, Executable, Kernel, RunError, Session, TensorDesc};
use halimede_graph::ops::Factors;
use halimede_graph::{Graph, Node, Op, ValueId};
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
        let codes: Vec<Code> =
            graph.nodes.iter().map(|node| code(&graph, node, kernels, bytes_max, packer)).collect::<Result<_, _>>()?;
        for value in constants_read(&graph, &codes) {
            if let Some(constant) = &mut graph.values[value.index()].fact.constant {
                *constant = packer.owned(constant)?;
            }
        }
        Ok(Program { graph, codes, kernels: kernels.clone(), bytes_max, plans: Mutex::default() })
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

    fn packed_bytes(&self) -> usize {
        self.codes
            .iter()
            .map(|code| match code {
                Code::Kernel(kernel) => kernel.packed_bytes(),
                Code::Control(bodies) => bodies.iter().map(|body| body.packed_bytes()).sum(),
                Code::Alias | Code::Reference | Code::Shape | Code::Late(_) => 0,
            })
            .sum()
    }

    fn reduced(&self) -> Vec<String> {
        let reduced = self.graph.nodes.iter().filter(|node| node.op.multiply() == Some(Factors::Bf16));
        reduced.map(|node| node.name.clone()).collect()
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
