use crate::caught::caught;
use crate::{Failed, Failure, Report, Runner, Tolerance, compare};
use halimede_graph::onnx::Case;
use halimede_graph::onnx::import::model_of;
use halimede_graph::onnx::ops::OPERATORS;
use halimede_tensor::Value;

/// Runs the examples that the operators' files carry, each twice: with every input given at run time, and
/// with all but the first as constants of the model, as axes and shapes mostly are.
pub fn run_cases(runner: &dyn Runner) -> Report {
    let mut report = Report::default();
    for case in OPERATORS.iter().filter_map(|operator| operator.cases).flat_map(|cases| cases()) {
        for constants in [false, true] {
            let how = if constants { "constants" } else { "inputs" };
            let name = format!("{:?}: {} ({how})", case.operator, case.name);
            match caught(|| run(&case, runner, constants)) {
                Ok(Ok(on_kernels)) => {
                    report.passed += 1;
                    report.on_kernels += usize::from(on_kernels);
                    if !on_kernels {
                        report.by_reference.push(name.clone());
                    }
                    report.passes.push(name);
                }
                Ok(Err(failed)) => {
                    report.failed += 1;
                    report.failures.push(Failure::new(&name, failed.operator.as_deref(), failed.reason));
                }
                Err(panic) => {
                    report.failed += 1;
                    report.failures.push(Failure::new(&name, None, panic));
                }
            }
        }
    }
    report
}

fn run(case: &Case, runner: &dyn Runner, constants: bool) -> Result<bool, Failed> {
    let constant = |index: usize| constants && index > 0;
    let model = model_of(case, constant)?;
    let given = |(index, value): (usize, &Option<Value>)| match value {
        Some(Value::Tensor(_)) if constant(index) => None,
        value => value.clone(),
    };
    let inputs: Vec<Value> = case.inputs.iter().enumerate().filter_map(given).collect();
    let computed = runner.load(&model)?.run(&inputs)?;
    let tolerance = Tolerance { rtol: case.rtol.into(), atol: case.atol.into() };
    for (index, expected) in case.outputs.iter().enumerate() {
        let failed = |reason| Failed { operator: Some(format!("{:?} (opset {})", case.operator, case.opset)), reason };
        let actual = computed.outputs.get(index).ok_or_else(|| failed(format!("gives no output {index}")))?;
        compare(expected, actual, tolerance).map_err(|mismatch| failed(format!("output {index}: {mismatch}")))?;
    }
    Ok(computed.on_kernels)
}
