//! Whatever is chosen, a kernel computes what its operator's definition says.

use super::tests::{compare, conv, floats, machines};
use super::{Kernels, Machine, VERSION};
use crate::{Matrix, Winograd};
use halimede_compute::packed::Packer;
use halimede_compute::tuning::{Config, Database, Operator};
use halimede_compute::{Arguments, Executable, Kernels as _, Prepared, Program, Session, TensorDesc};
use halimede_graph::ops::*;
use halimede_graph::{Builder, Fact, Graph, Op};
use halimede_tensor::{Block, CastOptions, DType, Tensor, Value};
use smallvec::smallvec;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

/// A graph of one operation with constant weights.
fn graph_of(op: &Op, inputs: &[Tensor; 2]) -> Graph {
    let mut graph = Graph::default();
    let shape = inputs[0].shape().iter().map(|&size| size.into());
    let x = graph.add_value("x", Fact::tensor(inputs[0].dtype(), shape));
    let w = graph.add_constant("w", inputs[1].clone());
    graph.inputs = vec![x];
    graph.outputs = Builder::new(&mut graph).add_all(op.clone(), &[Some(x), Some(w)]).unwrap().to_vec();
    graph
}

/// Its program, and a session of that after a run.
fn ran(op: &Op, inputs: &[Tensor; 2], machine: &Machine) -> Session {
    let graph = graph_of(op, inputs);
    let kernels: Arc<dyn halimede_compute::Kernels> = Arc::new(Kernels::new(machine.clone()));
    let mut session = Arc::new(Program::new(graph, &kernels, usize::MAX, &Packer::default()).unwrap()).session();
    session.run(&[Value::from(inputs[0].clone())]).unwrap();
    assert_eq!(session.coverage().reference, 0, "{op:?} ran by its definition");
    session
}

/// The operation's step under a configuration, or as the kernel has it.
fn prepared(op: &Op, inputs: &[Tensor; 2], output: &[usize], machine: &Machine, config: &str) -> Prepared {
    let [part] = &ran(op, inputs, machine).parts()[..] else { panic!("{op:?} has not one part") };
    let config: Config = config.parse().unwrap();
    assert!(part.tunable.space.contains(&config), "{config} is no choice of {op:?}");
    machine.choices.set(part.operator(), Some(config));
    let graph = graph_of(op, inputs);
    let kernel = Kernels::new(machine.clone()).kernel(&graph, &graph.nodes[0], &Packer::default()).unwrap();
    let desc = |tensor: &Tensor| Some(TensorDesc { dtype: tensor.dtype(), shape: tensor.shape().into() });
    let output = TensorDesc { dtype: DType::F32, shape: output.into() };
    let prepared = kernel.prepare(&inputs.each_ref().map(desc), &[output]).unwrap();
    machine.choices.set(part.operator(), None);
    prepared
}

/// Machines of one thread on the kernels' own loops: of several a configuration says how many take part.
fn machines_of_one(op: &Op) -> impl Iterator<Item = Machine> {
    machines(op).into_iter().filter(|machine| machine.blas.is_none() && machine.pool.threads() == 1)
}

/// The settings without which sums keep their order.
fn rounding(config: &Config) -> String {
    const EXACT: [&str; 6] = ["order", "pack", "rows", "panels", "pixels", "threads"];
    let settings = config.settings().filter(|(name, _)| !EXACT.contains(name));
    settings.map(|(name, setting)| format!("{name}={setting} ")).collect()
}

/// Runs every configuration of an operation on every machine; gives all of them.
fn check(op: Op, inputs: [Tensor; 2], tolerance: f32) -> BTreeSet<Config> {
    let values = inputs.clone().map(|input| Some(Value::from(input)));
    let expected = op.evaluate(&values).unwrap();
    let mut seen = BTreeSet::new();
    // The system's library leaves nothing to choose.
    for machine in machines(&op).into_iter().filter(|machine| machine.blas.is_none()) {
        let parts = ran(&op, &inputs, &machine).parts();
        let [part] = &parts[..] else { panic!("{op:?} has {} parts", parts.len()) };
        assert_eq!(part.steps, [0]);
        let mut made_by: BTreeMap<String, (Config, Vec<u8>)> = BTreeMap::new();
        for config in part.tunable.space.configs() {
            machine.choices.set(part.operator(), Some(config.clone()));
            let mut session = ran(&op, &inputs, &machine);
            let step = &session.steps()[0];
            assert_eq!(step.chosen.as_ref(), Some(&config), "{op:?}");
            let is_winograd = step.kernel.contains("Winograd");
            assert_eq!(is_winograd, matches!(config.word("algorithm"), Some("f2" | "f4")), "{config}: {}", step.kernel);
            let cost = (part.tunable.cost)(&config);
            assert!(cost.is_finite() && cost > 0.0, "{config} costs {cost}");
            let made = session.take_outputs().unwrap();
            let place = format!("{} on {} with {config}", part.operator(), machine.isa.name());
            compare(&op, &place, made[0].tensor().unwrap(), expected[0].tensor().unwrap(), tolerance);
            let bytes = made[0].tensor().unwrap().bytes().unwrap().to_vec();
            let (first, known) = made_by.entry(rounding(&config)).or_insert_with(|| (config.clone(), bytes.clone()));
            assert!(*known == bytes, "{place} and with {first} differ");
            seen.insert(config);
        }
        // What the part becomes by itself is the same step.
        let mut alone = part.session().unwrap();
        alone.run(&part.inputs().unwrap()).unwrap();
        assert_eq!(alone.steps()[0].chosen, part.tunable.space.configs().last());
        machine.choices.set(part.operator(), None);
    }
    seen
}

fn matmul(multiply: Option<Factors>) -> Op {
    Op::Contract(Contract { multiply, ..Contract::matmul(0) })
}

fn has(seen: &BTreeSet<Config>, config: &str) {
    assert!(seen.contains(&config.parse().unwrap()), "{config} of {seen:?}");
}

#[test]
fn products_under_every_choice() {
    let seen = check(matmul(None), [floats(&[110, 70], 1), floats(&[70, 300], 2)], 3e-6);
    has(&seen, "order=rows pack=rows panels=4 rows=48");
    has(&seen, "pack=rows panels=32 rows=192 threads=1");
    has(&seen, "pack=rows");
    // Rows that lie apart as whole columns do, and some that evict each other.
    let transposed = Op::Contract(Contract::new(smallvec![2, 0], smallvec![2, 1], smallvec![0, 1]));
    has(&check(transposed, [floats(&[70, 110], 1), floats(&[70, 300], 2)], 3e-6), "pack=tiles");
    check(matmul(None), [floats(&[50, 1024], 1), floats(&[1024, 40], 2)], 1e-5);
    // Sums of one pass, and of several.
    for k in [70, 1400] {
        let seen = check(matmul(Some(Factors::Bf16)), [floats(&[110, k], 1), floats(&[k, 50], 2)], 2e-2);
        has(&seen, "order=rows rows=64");
        has(&seen, "order=rows");
    }
    let narrow = |tensor: Tensor| tensor.cast(DType::Bf16, CastOptions::default()).unwrap();
    for (k, config) in [(64, "order=rows pack=tiles rows=32"), (2048, "order=rows pack=none rows=32")] {
        let inputs = [narrow(floats(&[110, k], 1)), floats(&[k, 50], 2)];
        has(&check(matmul(Some(Factors::Bf16)), inputs, 2e-2), config);
    }
    let bytes = |shape: &[usize]| {
        let numbers: Vec<i64> = (0..shape.iter().product::<usize>() as i64).map(|i| i * 37 % 100 - 50).collect();
        Tensor::from_i64s(DType::I8, shape, &numbers).unwrap()
    };
    check(matmul(Some(Factors::Integers)), [bytes(&[110, 70]), bytes(&[70, 50])], 0.0);
}

#[test]
fn convolutions_under_every_choice() {
    let plain = |multiply| Op::Conv(Conv { channels_last: true, multiply, ..conv(&[1, 1], &[1, 1], &[1; 4], 1) });
    let inputs = || [floats(&[1, 13, 17, 40], 1), floats(&[35, 40, 3, 3], 2)];
    let seen = check(plain(None), inputs(), 1e-5);
    for config in ["algorithm=direct depth=256 pixels=96", "algorithm=f2 kib=256", "algorithm=f4 kib=1024 threads=3"] {
        assert!(seen.contains(&config.parse().unwrap()), "{config} of {seen:?}");
    }
    let seen = check(plain(Some(Factors::Bf16)), inputs(), 2e-2);
    has(&seen, "order=rows rows=3");
    has(&seen, "order=panels rows=13");
    let [x, w] = inputs();
    let narrow = x.cast(DType::Bf16, CastOptions::default()).unwrap();
    let seen = check(plain(Some(Factors::Bf16)), [narrow, w], 2e-2);
    has(&seen, "order=rows pack=pixels rows=3");
    has(&seen, "order=rows rows=3");
    // The rule takes Winograd's algorithm for 64 channels and leaves 40 as they are; either can be told otherwise.
    let op = plain(Some(Factors::Bf16));
    let gains = machines(&op).iter().any(|machine| machine.matrix.is_some_and(Matrix::gains_by_winograd));
    for channels in [64, 40] {
        let inputs = [floats(&[1, 16, 16, channels], 1), floats(&[64, channels, 3, 3], 2)];
        let seen = check(op.clone(), inputs, 2e-2);
        let has = |config: &str| seen.contains(&config.parse().unwrap());
        assert_eq!(has("algorithm=f2 kib=256"), gains, "{seen:?}");
        assert_eq!(has("algorithm=direct rows=16"), gains && channels == 64, "{seen:?}");
    }
    let strided = Op::Conv(Conv { channels_last: true, ..conv(&[2, 2], &[1, 1], &[1; 4], 1) });
    let seen = check(strided, inputs(), 3e-6);
    assert!(seen.iter().all(|config| config.word("algorithm") == Some("direct")), "{seen:?}");
}

#[test]
fn what_a_kernel_does_not_have_is_no_choice() {
    let (op, inputs) = (matmul(None), [floats(&[110, 70], 1), floats(&[70, 300], 2)]);
    let machine = machines(&op).remove(0);
    let operator = ran(&op, &inputs, &machine).parts()[0].operator().clone();
    for wrong in [
        "rows=0",
        "rows=48",
        "panels=4 rows=47",
        "algorithm=direct",
        "panels=4 rows=48 other=1",
        "order=columns",
        "pack=tiles panels=4 rows=48",
    ] {
        machine.choices.set(&operator, Some(wrong.parse().unwrap()));
        assert_eq!(ran(&op, &inputs, &machine).steps()[0].chosen, None, "{wrong}");
    }
}

#[test]
fn configurations_without_the_newer_settings_stay_what_they_were() {
    let old = |op: Op, inputs: [Tensor; 2], configs: &[&str]| {
        for machine in machines_of_one(&op) {
            let operator = ran(&op, &inputs, &machine).parts()[0].operator().clone();
            for config in configs {
                let config: Config = config.parse().unwrap();
                machine.choices.set(&operator, Some(config.clone()));
                assert_eq!(ran(&op, &inputs, &machine).steps()[0].chosen, Some(config), "{operator}");
            }
        }
    };
    let configs = ["panels=4 rows=48", "panels=16 rows=192", "panels=4 rows=192", "panels=16 rows=48"];
    old(matmul(None), [floats(&[110, 70], 1), floats(&[70, 300], 2)], &configs);
    old(matmul(Some(Factors::Bf16)), [floats(&[110, 70], 1), floats(&[70, 50], 2)], &["rows=32", "rows=128"]);
    let conv =
        Op::Conv(Conv { channels_last: true, multiply: Some(Factors::Bf16), ..conv(&[1, 1], &[1, 1], &[1; 4], 1) });
    old(conv, [floats(&[1, 13, 17, 40], 1), floats(&[35, 40, 3, 3], 2)], &["rows=3", "rows=13"]);
}

/// What the second task of a product of f32 writes, the first row behind the first task's or the first column, and whether it
/// copies anything.
fn observed(k: usize, config: &str) -> ([bool; 2], bool) {
    const MARK: u8 = 0xa5;
    let (m, n) = (200, 2048);
    let (op, inputs) = (matmul(None), [floats(&[m, k], 1), floats(&[k, n], 2)]);
    let machine = machines_of_one(&op).last().unwrap();
    let config = format!("{config} rows=96 panels=32");
    let Prepared { step, workspace } = prepared(&op, &inputs, &[m, n], &machine, &config);
    let (mut output, mut scratch) = (Block::new(m * n * 4).unwrap(), Block::new(workspace).unwrap());
    output.bytes_mut().fill(MARK);
    scratch.bytes_mut().fill(MARK);
    let outputs = [output.view(0, m * n * 4)];
    let inputs = [Some(inputs[0].view().unwrap()), None];
    let arguments =
        Arguments { inputs: &inputs, outputs: &outputs, workspace: scratch.view(0, workspace), is_far: false };
    let tasks = step.tasks().unwrap();
    tasks.begin(&arguments);
    tasks.run_task(&arguments, 0, 1);
    let columns = 32 * crate::gemm::Micro::new(machine.isa).nr;
    let bytes = output.bytes();
    let is_written = |row: usize, column: usize| bytes[(row * n + column) * 4..][..4] != [MARK; 4];
    let written = [is_written(96, 0), is_written(0, columns)];
    (written, scratch.bytes().iter().any(|&byte| byte != MARK))
}

#[test]
fn order_and_pack_reach_products_of_f32() {
    for (config, written) in [("", [true, false]), ("order=panels", [true, false]), ("order=rows", [false, true])] {
        assert_eq!(observed(48, config).0, written, "'{config}'");
    }
    // Of 1024 numbers rows evict each other.
    for (config, copied) in [("", [true, false]), ("pack=none", [false; 2]), ("pack=rows", [true; 2])] {
        assert_eq!([1024, 48].map(|k| observed(k, config).1), copied, "'{config}'");
    }
}

#[test]
fn order_and_pack_reach_the_matrix_unit() {
    let narrow = |tensor: Tensor| tensor.cast(DType::Bf16, CastOptions::default()).unwrap();
    let op = matmul(Some(Factors::Bf16));
    // Sums of so many steps are kept between passes where panels are the outer loop, and need room.
    let inputs = [narrow(floats(&[128, 2048], 1)), floats(&[2048, 64], 2)];
    for machine in machines_of_one(&op) {
        let of = |config: &str| prepared(&op, &inputs, &[128, 64], &machine, config);
        let bytes = |config: &str| of(config).workspace;
        let place = machine.matrix.map(|matrix| matrix.name());
        assert!(bytes("rows=64 order=rows") < bytes("rows=64 order=panels"), "{place:?}");
        assert_eq!(bytes("rows=64"), bytes("rows=64 order=panels"), "{place:?}");
        let packing = |config: &str| of(config).step.tasks().unwrap().sharing().unwrap();
        assert!(packing("rows=64 pack=none").contains(" None "), "{place:?}");
        assert!(packing("rows=64 pack=tiles").contains(" Tiles "), "{place:?}");
        if machine.matrix.is_some_and(|matrix| matrix.takes_lines()) {
            assert!(packing("rows=64 pack=rows").contains(" Lines("), "{place:?}");
        }
    }
    let op =
        Op::Conv(Conv { channels_last: true, multiply: Some(Factors::Bf16), ..conv(&[1, 1], &[1, 1], &[1; 4], 1) });
    let inputs = [narrow(floats(&[1, 16, 16, 256], 1)), floats(&[64, 256, 3, 3], 2)];
    // Winograd's algorithm has nothing to choose.
    for machine in machines_of_one(&op).map(|machine| Machine { winograd: Winograd::Never, ..machine }) {
        let bytes = |config: &str| prepared(&op, &inputs, &[1, 16, 16, 64], &machine, config).workspace;
        let place = machine.matrix.map(|matrix| matrix.name());
        assert!(bytes("rows=8 order=rows") < bytes("rows=8 order=panels"), "{place:?}");
        let usual = if machine.matrix.is_some_and(|matrix| matrix.takes_lines()) { "pixels" } else { "blocks" };
        assert_ne!(bytes("rows=8 pack=pixels"), bytes("rows=8 pack=blocks"), "{place:?}");
        assert_eq!(bytes("rows=8"), bytes(&format!("rows=8 pack={usual}")), "{place:?}");
    }
}

/// The operation, descriptions of its operands, and the type of its result, that the text of a convolution in two axes stands for.
fn conv_of(text: &str) -> (Conv, Vec<Option<TensorDesc>>, DType) {
    let words: Vec<&str> = text.split(' ').collect();
    let numbers = |text: &str| text.split('x').map(|number| number.parse().unwrap()).collect::<Vec<usize>>();
    let setting = |name: &str| {
        let found = words[1].split(',').find_map(|setting| setting.strip_prefix(name)?.strip_prefix('='));
        numbers(found.unwrap_or_else(|| panic!("no {name} in {text}")))
    };
    let padding: Vec<i64> = setting("padding").into_iter().map(|size| size as i64).collect();
    let multiply = match words[4] {
        "factors=own" => None,
        "factors=bf16" => Some(Factors::Bf16),
        "factors=integers" => Some(Factors::Integers),
        other => panic!("{other} in {text}"),
    };
    let op = Conv { channels_last: true, multiply, ..conv(&setting("stride"), &setting("dilation"), &padding, 1) };
    let dtype = |name: &str| match name {
        "f32" => DType::F32,
        "bf16" => DType::Bf16,
        "u8" => DType::U8,
        "i8" => DType::I8,
        other => panic!("{other} in {text}"),
    };
    let desc = |text: &str, dtype: DType| Some(TensorDesc { dtype, shape: numbers(text).into() });
    let ((x, w), (factors, result)) = (words[2].split_once(',').unwrap(), words[3].split_once('>').unwrap());
    let (left, right) = factors.split_once('*').unwrap();
    (op, vec![desc(x, dtype(left)), desc(w, dtype(right)), None], dtype(result))
}

/// Entries that come along with the program are looked up by texts that kernels make, and have to be among what they have.
#[test]
fn shipped_entries_are_found() {
    let shipped = include_bytes!("../../../server/tuned.jsonl");
    let records = Database::parse(shipped, Path::new("tuned.jsonl")).records;
    assert!(!records.is_empty());
    for record in records {
        assert_eq!(record.origin.kernels, VERSION);
        let (mut op, mut inputs, result) = conv_of(&record.operator);
        // The shape of the result is that of the convolution in f32.
        let facts: Vec<Fact> = inputs
            .iter()
            .flatten()
            .map(|desc| Fact::tensor(DType::F32, desc.shape.iter().map(|&size| size.into())))
            .collect();
        let plain = Op::Conv(Conv { multiply: None, ..op.clone() });
        let output = plain.infer(&[Some(&facts[0]), Some(&facts[1])]).unwrap().remove(0);
        let shape = output.shape.unwrap().iter().map(|dim| dim.size().unwrap()).collect();
        let output = TensorDesc { dtype: result, shape };
        if !record.operator.contains("epilogue=none") {
            op.epilogue = Some(Map::default());
        }
        if record.operator.contains("epilogue=tensors") {
            inputs.push(Some(output.clone()));
        }
        let operator = Operator::conv(&op, &inputs, &output, true, 1).unwrap();
        assert_eq!(operator.to_string(), record.operator);
        // What there is depends on the unit: some machine of these has it.
        let is_found = machines_of_one(&Op::Conv(op.clone())).any(|machine| {
            machine.choices.set(&operator, Some(record.config.clone()));
            let offer = super::tuning::Offer::of_conv(&op, &inputs, &output, &machine).unwrap();
            offer.tunable(operator.clone(), &machine.choices).chosen == Some(record.config.clone())
        });
        assert!(is_found, "{} has no {:?}", record.operator, record.config);
    }
}
