//! Ensembles: data flow, members, dependencies. The texts are those of Triton.

use std::collections::BTreeMap;

use super::super::{
    ModelConfig,
    ensemble::{dependencies, run_order, validate_members},
    validate,
};
use super::read;

/// An ensemble `e` of inputs, outputs and steps written as `model: a>INPUT0, OUTPUT0>b`, where `>` leads
/// from the tensor or output to the input or tensor.
fn ensemble(max_batch_size: i32, inputs: &[&str], outputs: &[&str], steps: &[&str]) -> ModelConfig {
    ensemble_of(max_batch_size, "TYPE_FP32", inputs, outputs, steps)
}

fn ensemble_of(max_batch_size: i32, data_type: &str, inputs: &[&str], outputs: &[&str], steps: &[&str]) -> ModelConfig {
    let io = |kind: &str, names: &[&str]| -> String {
        names.iter().map(|name| format!("{kind} {{ name: '{name}' data_type: {data_type} dims: 16 }}")).collect()
    };
    let steps: String = steps.iter().map(|step| step_text(step)).collect();
    let text = format!(
        "name: 'e' platform: 'ensemble' max_batch_size: {max_batch_size} version_policy {{ all {{ }} }} {} {} \
         ensemble_scheduling {{ {steps} }}",
        io("input", inputs),
        io("output", outputs)
    );
    read(&text)
}

fn step_text(step: &str) -> String {
    let (model, maps) = step.split_once(':').unwrap();
    let maps: String = maps
        .split(',')
        .map(str::trim)
        .filter(|map| !map.is_empty())
        .map(|map| {
            let (from, to) = map.split_once('>').unwrap();
            // Names of models' tensors are in capitals.
            if to.starts_with(char::is_uppercase) {
                format!("input_map {{ key: '{to}' value: '{from}' }} ")
            } else {
                format!("output_map {{ key: '{from}' value: '{to}' }} ")
            }
        })
        .collect();
    format!("step {{ model_name: '{model}' model_version: -1 {maps} }} ")
}

/// A member with inputs INPUT0.. and outputs OUTPUT0.., each a name of a datatype and dimensions.
fn member(name: &str, max_batch_size: i32, inputs: &[(&str, &[i64])], outputs: &[(&str, &[i64])]) -> ModelConfig {
    let io = |kind: &str, tensors: &[(&str, &[i64])]| -> String {
        let tensor = |(index, (data_type, dims)): (usize, &(&str, &[i64]))| {
            let name = format!("{}{index}", kind.to_uppercase());
            format!("{kind} {{ name: '{name}' data_type: TYPE_{data_type} dims: {dims:?} }} ")
        };
        tensors.iter().enumerate().map(tensor).collect()
    };
    read(&format!(
        "name: '{name}' backend: 'b' max_batch_size: {max_batch_size} {} {}",
        io("input", inputs),
        io("output", outputs)
    ))
}

#[test]
fn data_flow() {
    for (inputs, outputs, steps, expected) in [
        (&["x"][..], &["y"][..], &[][..], Some("must specify 'step' for ensemble 'e'")),
        (
            &["x"],
            &["y"],
            &["a: x>IN, OUT>y", ": y>IN, OUT>z"],
            Some("must specify 'model_name' in step 1 of ensemble 'e'"),
        ),
        (&["x"], &["y"], &["a: x>IN, OUT>y", "a: OUT>z"], Some("must specify 'input_map' in step 1 of ensemble 'e'")),
        (&["x"], &["y"], &["a: x>IN, OUT>y", "a: x>IN"], Some("must specify 'output_map' in step 1 of ensemble 'e'")),
        (
            &["x"],
            &["y"],
            &["a: x>IN, OUT>t", "a: x>IN, OUT>t", "a: t>IN, OUT>y"],
            Some("ensemble tensor 't' can appear in an output map only once for ensemble 'e' step 1"),
        ),
        (&["x", "unused"], &["y"], &["a: x>IN, OUT>y"], Some("ensemble input 'unused' for ensemble e' is not used")),
        (&["x"], &["y", "none"], &["a: x>IN, OUT>y"], Some("ensemble output 'none' for ensemble e' is not used")),
        (
            &["x"],
            &["y", "t"],
            &["a: x>IN, t>IN2, OUT>y"],
            Some(
                "output 'y' for ensemble 'e' is not written: at least one of its depending tensors, 't', is not connected",
            ),
        ),
        (&["x"], &["t"], &["a: x>IN, t>IN2, OUT>y"], Some("output 't' for ensemble 'e' is not written")),
        (
            &["x"],
            &["z"],
            &["a: x>IN, t>IN2, OUT>y", "a: y>IN, OUT>z"],
            Some(
                "output 'z' for ensemble 'e' is not written: at least one of its depending tensors, 't', is not connected",
            ),
        ),
        (
            // Two steps that wait for each other.
            &["x"],
            &["y"],
            &["a: x>IN, t>IN2, OUT>y", "a: y>IN, OUT>t"],
            // The search for the source ends where it began.
            Some("output 'y' for ensemble 'e' is not written"),
        ),
        (&["x"], &["y"], &["a: x>IN, OUT>y, OUT2>t"], Some("ensemble tensor 't' is unused in ensemble 'e'")),
        (&["x"], &["y"], &["a: x>IN, OUT>y", "a: t>IN, OUT>u"], Some("ensemble tensor 't' is unused in ensemble 'e'")),
        (&["x"], &["y"], &["a: x>IN, OUT>y"], None),
        // Steps in any order, a tensor used twice, an output that is used further, an input used twice.
        (&["x"], &["z", "t"], &["b: t>IN, x>IN2, t>IN3, OUT>z", "a: x>IN, OUT>t"], None),
    ] {
        let result = validate(&ensemble(0, inputs, outputs, steps));
        assert_eq!(result.err().map(|error| error.message).as_deref(), expected, "{steps:?}");
    }
}

#[test]
fn fields_that_an_ensemble_has_not() {
    let base = "name: 'e' platform: 'ensemble' version_policy { all { } } ensemble_scheduling { }";
    for (text, expected) in [
        ("instance_group { }", "instance group should not be specified for ensemble 'e'"),
        ("optimization { }", "optimization should not be specified for ensemble 'e'"),
        ("model_warmup { }", "model_warmup can not be specified for ensemble 'e'"),
    ] {
        assert_eq!(validate(&read(&format!("{base} {text}"))).unwrap_err().message, expected);
    }
    let other = read("name: 'e' backend: 'b' version_policy { all { } } ensemble_scheduling { }");
    let expected = "ensemble scheduling cannot be set for model 'e' whose platform is not ensemble";
    assert_eq!(validate(&other).unwrap_err().message, expected);
}

#[test]
fn members_agree() {
    let models: BTreeMap<String, ModelConfig> = [
        member("add", 4, &[("FP32", &[16])], &[("FP32", &[16])]),
        member("two", 2, &[("FP32", &[16])], &[("FP32", &[16])]),
        member("ints", 4, &[("INT32", &[16])], &[("INT32", &[16])]),
        member("cube", 4, &[("FP32", &[16, 16, 16])], &[("FP32", &[16])]),
        member("wild", 4, &[("FP32", &[-1])], &[("FP32", &[-1])]),
        member("full", 0, &[("FP32", &[-1, 16])], &[("FP32", &[-1, 16])]),
        member("pair", 4, &[("FP32", &[16]), ("FP32", &[16])], &[("FP32", &[16]), ("FP32", &[16])]),
    ]
    .into_iter()
    .map(|config| (config.name.clone(), config))
    .collect();
    for (max_batch_size, steps, expected) in [
        (4, &["add: x>INPUT0, OUTPUT0>y"][..], Ok(false)),
        (4, &["wild: x>INPUT0, OUTPUT0>t", "add: t>INPUT0, OUTPUT0>y"], Ok(false)),
        // A model without batching sees the batch as its own first dimension.
        (4, &["full: x>INPUT0, OUTPUT0>t", "add: t>INPUT0, OUTPUT0>y"], Ok(false)),
        (4, &["pair: x>INPUT0, x>INPUT1, OUTPUT0>y"], Ok(false)),
        (
            3,
            &["two: x>INPUT0, OUTPUT0>y"],
            Err(
                "ensemble e allows maximum batch size 3, but it contains model two which only allows maximum batch size to be 2",
            ),
        ),
        (
            4,
            &["ints: x>INPUT0, OUTPUT0>y"],
            Err(
                "in ensemble e, ensemble tensor x: inconsistent data type: TYPE_FP32 is inferred from model e while TYPE_INT32 \
                 is inferred from model ints",
            ),
        ),
        (
            4,
            &["add: x>INPUT0, OUTPUT0>t", "cube: t>INPUT0, OUTPUT0>y"],
            Err(
                "in ensemble e, ensemble tensor t: inconsistent shape: [-1,16] is inferred from model add while [-1,16,16,16] \
                 is inferred from model cube",
            ),
        ),
        (
            4,
            &["add: x>INVALID, OUTPUT0>y"],
            Err("in ensemble e, ensemble tensor x is mapping to non-existing input INVALID in model add"),
        ),
        (
            4,
            &["add: x>INPUT0, invalid>y"],
            Err("in ensemble e, ensemble tensor y is mapped from non-existing output invalid in model add"),
        ),
        (
            4,
            &["pair: x>INPUT1, OUTPUT0>y"],
            Err("in ensemble e, input INPUT0 in model pair is not mapped to any ensemble tensors"),
        ),
        (
            4,
            &["gone: x>INPUT0, OUTPUT0>y"],
            Err("ensemble e contains models that are not available or ambiguous: gone"),
        ),
    ] {
        let config = ensemble(max_batch_size, &["x"], &["y"], steps);
        let result = validate_members(&config, |name| models.get(name)).map_err(|error| error.message);
        assert_eq!(result, expected.map_err(str::to_owned), "{steps:?}");
    }
}

#[test]
fn optional_inputs_of_members_may_be_left_out() {
    let mut model = member("m", 0, &[("FP32", &[16]), ("FP32", &[16])], &[("FP32", &[16])]);
    let config = ensemble(0, &["x"], &["y"], &["m: x>INPUT0, OUTPUT0>y"]);
    assert!(validate_members(&config, |_| Some(&model)).is_err());
    model.input[1].optional = true;
    assert!(!validate_members(&config, |_| Some(&model)).unwrap());
}

#[test]
fn decoupled_members() {
    let mut models: BTreeMap<String, ModelConfig> = [
        member("plain", 0, &[("FP32", &[16])], &[("FP32", &[16])]),
        member("join", 0, &[("FP32", &[16]), ("FP32", &[16])], &[("FP32", &[16])]),
        member("repeat", 0, &[("FP32", &[16])], &[("FP32", &[16]), ("FP32", &[16])]),
    ]
    .into_iter()
    .map(|config| (config.name.clone(), config))
    .collect();
    models.get_mut("repeat").unwrap().model_transaction_policy.get_or_insert_default().decoupled = true;
    let text = |model| {
        Err(format!(
            "in ensemble e, step of model '{model}' receives inputs originated from different decoupled models"
        ))
    };
    for (outputs, steps, expected) in [
        (&["y"][..], &["repeat: x>INPUT0, OUTPUT0>y"][..], Ok(true)),
        (&["y"], &["repeat: x>INPUT0, OUTPUT0>a, OUTPUT1>b", "join: a>INPUT0, b>INPUT1, OUTPUT0>y"], Ok(true)),
        (&["y"], &["repeat: x>INPUT0, OUTPUT0>a", "join: a>INPUT0, x>INPUT1, OUTPUT0>y"], text("join")),
        (
            &["y"],
            &["repeat: x>INPUT0, OUTPUT0>a", "repeat: x>INPUT0, OUTPUT0>b", "join: a>INPUT0, b>INPUT1, OUTPUT0>y"],
            text("join"),
        ),
        (&["a", "b"], &["repeat: x>INPUT0, OUTPUT0>a", "plain: x>INPUT0, OUTPUT0>b"], text("e")),
    ] {
        let config = ensemble(0, &["x"], outputs, steps);
        let result = validate_members(&config, |name| models.get(name)).map_err(|error| error.message);
        assert_eq!(result, expected, "{steps:?}");
    }
}

#[test]
fn steps_run_after_what_they_read() {
    let config = ensemble(0, &["x"], &["z"], &["c: b>I, a>I2, O>z", "b: a>I, O>b", "a: x>I, O>a", "d: never>I, O>n"]);
    let order: Vec<&str> = run_order(&config).iter().map(|step| step.model_name.as_str()).collect();
    assert_eq!(order, ["a", "b", "c"]);
}

#[test]
fn a_long_chain_of_steps_takes_no_time() {
    let count = 20_000;
    let steps: Vec<String> = (0..count).rev().map(|i| format!("m: t{i}>I, O>t{}", i + 1)).collect();
    let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
    let last = format!("t{count}");
    let config = ensemble(0, &["t0"], &[&last], &steps);
    validate(&config).unwrap();
    assert_eq!(run_order(&config).len(), count);
}

#[test]
fn dependencies_between_models() {
    let named = |name: &str, members: &[&str]| {
        let steps: Vec<String> = members.iter().map(|member| format!("{member}: x>I, O>y")).collect();
        let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
        ModelConfig { name: name.to_owned(), ..ensemble(0, &["x"], &["y"], &steps) }
    };
    let models = [
        named("a", &["b"]),
        named("b", &["a"]),
        named("self", &["self"]),
        named("long1", &["long2"]),
        named("long2", &["long3"]),
        named("long3", &["long1"]),
        named("lost", &["gone", "m", "away"]),
        named("good", &["m", "deeper"]),
        named("deeper", &["m"]),
        named("victim", &["a"]),
        member("m", 0, &[], &[]),
    ];
    let found = dependencies(&models);
    let errors: Vec<&str> = found.errors.values().map(|error| error.message.as_str()).collect();
    let circle = "circular dependency between ensembles: ";
    assert_eq!(
        errors,
        [
            format!("{circle}a -> ... -> b -> a").as_str(),
            &format!("{circle}b -> ... -> a -> b"),
            &format!("{circle}long1 -> ... -> long3 -> long1"),
            &format!("{circle}long2 -> ... -> long1 -> long2"),
            &format!("{circle}long3 -> ... -> long2 -> long3"),
            "ensemble lost contains models that are not available or ambiguous: away, gone",
            &format!("{circle}self -> ... -> self -> self"),
        ]
    );
    assert_eq!(found.order, ["m", "deeper", "good", "victim"]);
}
