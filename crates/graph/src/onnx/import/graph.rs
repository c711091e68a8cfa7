//! From messages to graphs: inputs, constants, nodes, functions, outputs.

use super::attribute::{kind, value};
use super::body::Given;
use super::file::{External, Files};
use super::legacy::align_operand;
use super::order::{name, running_order, title};
use super::scope::{Frame, Scope, Scopes, domain};
use super::size::{self, Functions};
use super::tensor::{read, read_sparse};
use super::types::fact;
use super::{Input, Options, Output, Reason, ValueType};
use crate::onnx::ops::find;
use crate::onnx::proto::attribute_proto::AttributeType;
use crate::onnx::proto::{FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto};
use crate::onnx::{Attributes, OnnxNode, Operator, Outputs};
use crate::ops::{Call, Op};
use crate::{Builder, Fact, Graph, GraphError, Kind, OpError, ValueId};
use halimede_tensor::Tensor;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::rc::Rc;

/// Nodes that a model may come to when its functions are written out. Functions that call each other
/// twice double with every level: 64 of them would never end.
const MAX_NODES: usize = 500_000;
/// Functions that may call each other in a row.
const MAX_CALLS: usize = 64;

/// Reads one model.
pub(super) struct Reader<'m> {
    functions: Functions<'m>,
    external: External,
    pub(super) scopes: Scopes,
    overridable: &'m BTreeSet<String>,
    ir_version: i64,
    nodes: usize,
    calls: usize,
    /// Per function call that was begun, the graphs that it hands to the function.
    handed: Vec<Vec<Given<'m>>>,
}

/// The parts of a model that come from its graph.
pub(super) struct Read {
    pub graph: Graph,
    pub inputs: Vec<Input>,
    pub outputs: Vec<Output>,
    pub overridable: Vec<Input>,
    pub files: Files,
}

impl<'m> Reader<'m> {
    pub(super) fn new(
        model: &'m ModelProto,
        opsets: &BTreeMap<String, i64>,
        directory: Option<&Path>,
        options: &'m Options,
    ) -> Reader<'m> {
        let key = |f: &'m FunctionProto| (domain(f.domain()), f.name(), f.overload());
        let frame = Frame::default();
        let scope = Scope {
            frame: 0,
            around: None,
            names: HashMap::new(),
            opsets: Rc::new(opsets.clone()),
            attributes: Rc::default(),
            call: 0,
            declared: HashMap::new(),
        };
        Reader {
            functions: model.functions.iter().map(|function| (key(function), function)).collect(),
            external: External::new(directory),
            scopes: Scopes { frames: vec![frame], scopes: vec![scope] },
            overridable: &options.overridable,
            ir_version: model.ir_version(),
            nodes: 0,
            calls: 0,
            handed: Vec::new(),
        }
    }

    /// Reads the model's own graph.
    pub(super) fn read(mut self, proto: &'m GraphProto) -> Result<Read, Reason> {
        let nodes = size::count(&proto.node, &self.functions, MAX_CALLS);
        if nodes > MAX_NODES {
            return Err(too_many_nodes());
        }
        self.scopes.graph().name = proto.name().to_owned();
        let mut stored = self.stored(proto)?;
        let (mut inputs, mut overridable) = (Vec::new(), Vec::new());
        for info in &proto.input {
            let name = info.name();
            let mut input = Input {
                name: name.to_owned(),
                fact: fact(name, info.r#type.as_ref())?,
                value_type: ValueType::of(info.r#type.as_ref()),
                default: None,
            };
            // Below IR version 4 every constant had to be listed as an input; that said nothing.
            if let Some(tensor) = stored.get(name)
                && self.ir_version >= 4
            {
                input.default = Some(tensor.clone());
                let given = self.overridable.contains(name);
                overridable.push(input.clone());
                if !given {
                    continue;
                }
                stored.remove(name);
                // A request may give another shape than the default has, where the model leaves it open.
                input.fact.dtype = input.fact.dtype.or(input.default.as_ref().map(Tensor::dtype));
            } else if stored.contains_key(name) {
                continue;
            }
            let value = self.scopes.graph().add_value(name, input.fact.clone());
            self.define(name, Some(value))?;
            self.scopes.graph().inputs.push(value);
            inputs.push(input);
        }
        self.constants(stored)?;
        self.declare(&proto.value_info)?;
        self.declare(&proto.output)?;
        self.nodes(&proto.node)?;
        let mut outputs = Vec::new();
        for info in &proto.output {
            let value = self.output(info.name())?;
            self.scopes.graph().outputs.push(value);
            outputs.push(Output {
                name: info.name().to_owned(),
                fact: fact(info.name(), info.r#type.as_ref())?,
                value_type: ValueType::of(info.r#type.as_ref()),
            });
        }
        let graph = std::mem::take(self.scopes.graph());
        Ok(Read { graph, inputs, outputs, overridable, files: self.external.into_files() })
    }

    /// The constants that a graph stores, by name.
    pub(super) fn stored(&mut self, proto: &GraphProto) -> Result<BTreeMap<String, Tensor>, Reason> {
        let mut stored = BTreeMap::new();
        let mut add = |name: &str, tensor: Result<Tensor, String>| {
            let tensor = tensor.map_err(|reason| Reason::tensor(name, reason))?;
            match stored.insert(name.to_owned(), tensor) {
                None => Ok(()),
                Some(_) => Err(Reason::tensor(name, "stored twice")),
            }
        };
        for tensor in &proto.initializer {
            add(tensor.name(), read(tensor, &mut self.external))?;
        }
        for sparse in &proto.sparse_initializer {
            let name = sparse.values.as_ref().map_or("", |values| values.name());
            add(name, read_sparse(sparse, &mut self.external))?;
        }
        Ok(stored)
    }

    /// Adds constants to the graph.
    pub(super) fn constants(&mut self, stored: BTreeMap<String, Tensor>) -> Result<(), Reason> {
        for (name, tensor) in stored {
            let value = self.scopes.graph().add_constant(name.as_str(), tensor);
            self.define(&name, Some(value))?;
        }
        Ok(())
    }

    /// Notes declared types of values that nodes will write.
    pub(super) fn declare(&mut self, infos: &[ValueInfoProto]) -> Result<(), Reason> {
        for info in infos {
            let declared = fact(info.name(), info.r#type.as_ref())?;
            self.scopes.top().declared.insert(info.name().to_owned(), declared);
        }
        Ok(())
    }

    /// Gives a name its value.
    pub(super) fn define(&mut self, name: &str, value: Option<ValueId>) -> Result<(), Reason> {
        match self.scopes.top().names.insert(name.to_owned(), value) {
            None => Ok(()),
            Some(_) => Err(Reason::model(format!("value '{name}' is defined twice; names are unique in ONNX"))),
        }
    }

    /// The value of a name that the graph gives back.
    pub(super) fn output(&mut self, name: &str) -> Result<ValueId, Reason> {
        self.scopes
            .resolve(name)
            .flatten()
            .ok_or_else(|| Reason::model(format!("output '{name}' is written by no node, input or constant")))
    }

    /// Reads nodes into the innermost graph.
    pub(super) fn nodes(&mut self, nodes: &'m [NodeProto]) -> Result<(), Reason> {
        for index in running_order(nodes)? {
            self.node(&nodes[index])?;
        }
        Ok(())
    }

    fn node(&mut self, proto: &'m NodeProto) -> Result<(), Reason> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return Err(too_many_nodes());
        }
        let domain = domain(proto.domain());
        let opset = self.opset(domain, proto)?;
        let mut inputs = Vec::with_capacity(proto.input.len());
        for name in &proto.input {
            inputs.push(match name.as_str() {
                "" => None,
                name => self.scopes.resolve(name).ok_or_else(|| {
                    Reason::model(format!("{} reads '{name}', which no node, input or constant writes", title(proto)))
                })?,
            });
        }
        let (mut attributes, bodies) = self.attributes(proto)?;
        let operator = find(domain, proto.op_type());
        if operator.is_none()
            && let Some(&function) = self.functions.get(&(domain, proto.op_type(), proto.overload()))
        {
            return self.call(function, proto, inputs, attributes, bodies);
        }
        self.bodies(proto, opset, bodies, &mut inputs, &mut attributes)?;
        let error = |source| node_error(proto, domain, opset, source);
        let Some(operator) = operator else {
            return Err(error(OpError::unsupported(format!(
                "operator '{}' of {} is not known; bring it as a function of the model, or export the model \
                 without it",
                proto.op_type(),
                if domain.is_empty() { "ONNX".to_owned() } else { format!("domain '{domain}'") }
            ))));
        };
        if domain.is_empty() {
            let graph = self.scopes.graph();
            align_operand(graph, proto.op_type(), opset, &attributes, &mut inputs).map_err(error)?;
        }
        let outputs = proto.output.iter().map(|name| (!name.is_empty()).then(|| name.clone())).collect();
        let node = OnnxNode { name: name(proto).to_owned(), opset, inputs, outputs, attributes };
        let origin = origin(domain, proto.op_type(), opset);
        let known = self.scopes.graph().values.len();
        let values = add(self.scopes.graph(), operator, &node, &origin).map_err(error)?;
        for (index, name) in proto.output.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
            let value =
                *values.get(index).ok_or_else(|| error(OpError::unsupported(format!("output {index} ('{name}')"))))?;
            self.written(name, value, known)?;
        }
        Ok(())
    }

    /// Gives an output of a node its name, and adds what the model says of it where nothing is known.
    fn written(&mut self, name: &str, value: ValueId, known: usize) -> Result<(), Reason> {
        let declared = self.scopes.top().declared.get(name).cloned().unwrap_or_default();
        // A value from before has a name already: the operator only passed it on.
        if value.index() >= known {
            let info = &mut self.scopes.graph().values[value.index()];
            info.name = name.to_owned();
            info.fact.dtype = info.fact.dtype.or(declared.dtype);
            if info.fact.shape.is_none() && info.fact.kind == Kind::Tensor {
                // What an optional holds, for one, only the model can say.
                info.fact.kind = declared.kind;
                info.fact.shape = declared.shape;
            }
        }
        self.define(name, Some(value))
    }

    fn opset(&mut self, domain: &str, node: &NodeProto) -> Result<i64, Reason> {
        match self.scopes.top().opsets.get(domain) {
            Some(&opset) => Ok(opset),
            None if domain.is_empty() => {
                Err(Reason::model(format!("{} is of ONNX's opset, which the model does not import", title(node))))
            }
            // Tools forget to import their own domains, which have one version anyway.
            None => Ok(1),
        }
    }

    /// The attributes of a node, and its bodies by attribute name.
    fn attributes(&mut self, node: &'m NodeProto) -> Result<(Attributes, Vec<Given<'m>>), Reason> {
        let (mut attributes, mut bodies) = (Attributes::default(), Vec::new());
        let (own, call) = (self.scopes.scopes.len() - 1, self.scopes.top().call);
        for proto in &node.attribute {
            let name = proto.name();
            if !proto.ref_attr_name().is_empty() {
                // What the call leaves out is left out here too.
                if let Some(value) = self.scopes.top().attributes.find(proto.ref_attr_name()) {
                    attributes.0.insert(name.to_owned(), value.clone());
                }
                let handed = call.checked_sub(1).map_or(&[][..], |call| &self.handed[call]);
                bodies.extend(handed.iter().filter(|g| g.name == proto.ref_attr_name()).map(|g| Given { name, ..*g }));
                continue;
            }
            if let (AttributeType::Graph, Some(graph)) = (kind(proto), &proto.g) {
                bodies.push(Given { name, graph, scope: own });
                continue;
            }
            let value = value(proto, &mut self.external)
                .map_err(|reason| Reason::model(format!("{}: attribute '{name}': {reason}", title(node))))?;
            if let Some(value) = value {
                attributes.0.insert(name.to_owned(), value);
            }
        }
        Ok((attributes, bodies))
    }

    /// Writes out a function of the model in place of its call.
    fn call(
        &mut self,
        function: &'m FunctionProto,
        node: &'m NodeProto,
        inputs: Vec<Option<ValueId>>,
        mut attributes: Attributes,
        bodies: Vec<Given<'m>>,
    ) -> Result<(), Reason> {
        if self.calls == MAX_CALLS {
            return Err(Reason::model(format!("{} calls functions more than {MAX_CALLS} deep", title(node))));
        }
        if inputs.len() > function.input.len() || node.output.len() > function.output.len() {
            return Err(Reason::model(format!("{} gives or takes more values than the function has", title(node))));
        }
        for default in &function.attribute_proto {
            if attributes.find(default.name()).is_none()
                && let Some(value) = value(default, &mut self.external)
                    .map_err(|reason| Reason::model(format!("{}: default of an attribute: {reason}", title(node))))?
            {
                attributes.0.insert(default.name().to_owned(), value);
            }
        }
        self.handed.push(bodies);
        let call = self.handed.len();
        let caller = self.scopes.top();
        let scope = Scope {
            frame: caller.frame,
            around: None,
            names: HashMap::new(),
            opsets: Rc::new(function_opsets(&function.opset_import, &caller.opsets)),
            attributes: Rc::new(attributes),
            call,
            declared: HashMap::new(),
        };
        let known = self.scopes.graph().values.len();
        self.scopes.scopes.push(scope);
        self.calls += 1;
        for (index, name) in function.input.iter().enumerate() {
            self.define(name, inputs.get(index).copied().flatten())?;
        }
        self.declare(&function.value_info)?;
        self.nodes(&function.node)?;
        let mut outputs = Vec::new();
        for (inner, outer) in function.output.iter().zip(&node.output).filter(|(_, outer)| !outer.is_empty()) {
            outputs.push((outer, self.output(inner)?));
        }
        self.calls -= 1;
        self.scopes.scopes.pop();
        for (name, value) in outputs {
            self.written(name, value, known)?;
        }
        Ok(())
    }
}

fn too_many_nodes() -> Reason {
    Reason::model(format!("the model comes to more than {MAX_NODES} nodes once its functions are written out"))
}

/// The opsets of a function; what it does not say holds as for its caller.
fn function_opsets(imports: &[OperatorSetIdProto], caller: &BTreeMap<String, i64>) -> BTreeMap<String, i64> {
    let mut opsets = caller.clone();
    opsets.extend(imports.iter().map(|import| (domain(import.domain()).to_owned(), import.version())));
    opsets
}

/// Writes a node into a graph: core operators where its operator has them, else a call.
pub(super) fn add(
    graph: &mut Graph,
    operator: &'static Operator,
    node: &OnnxNode,
    origin: &str,
) -> Result<Outputs, OpError> {
    let (values, nodes) = (graph.values.len(), graph.nodes.len());
    let mut builder = Builder::new(graph);
    builder.at(&node.name, origin);
    if let Some(lower) = operator.lower
        && let Some(outputs) = lower(node, &mut builder)?
    {
        return Ok(outputs);
    }
    // What a lowering began before it gave up goes away again.
    graph.values.truncate(values);
    graph.nodes.truncate(nodes);
    if operator.evaluate.is_none() {
        return Err(OpError::unsupported(format!(
            "{operator:?} with these attributes and inputs of unknown rank or datatype"
        )));
    }
    let wanted = node.outputs.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
    let outputs = (0..wanted).map(|index| node.wants(index)).collect();
    let call = Call::new(operator, node.opset, node.attributes.clone(), outputs);
    let mut builder = Builder::new(graph);
    builder.at(&node.name, origin).add_all(Op::Call(call), &node.inputs)
}

/// `Conv (opset 17)`, with the domain where that is not ONNX's own.
pub(super) fn origin(domain: &str, operator: &str, opset: i64) -> String {
    match domain {
        "" => format!("{operator} (opset {opset})"),
        domain => format!("{domain}.{operator} (opset {opset})"),
    }
}

fn node_error(node: &NodeProto, domain: &str, opset: i64, source: OpError) -> Reason {
    GraphError { node: name(node).to_owned(), operator: origin(domain, node.op_type(), opset), source }.into()
}

/// A fact without the value itself: what stays true when the value is another one.
pub(super) fn without_value(fact: &Fact) -> Fact {
    Fact { kind: fact.kind, dtype: fact.dtype, shape: fact.shape.clone(), ..Fact::default() }
}
