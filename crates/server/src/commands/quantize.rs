//! `halimede quantize`: a model of floats as one of 8-bit products, in standard ONNX.

use std::{
    collections::BTreeMap,
    error::Error,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use halimede_compute::{Comparison, ComputeUnit, Difference, Model as Compiled, ModelOptions, output_ranges};
use halimede_graph::{
    Range,
    onnx::{
        import::{self, Model},
        quantize::Quantizer,
    },
    passes::{PassOptions, optimize},
};
use halimede_tensor::{Value, npy};

use super::{inputs, model};
use crate::units::{self, Choice};

/// Outputs that have less in common with the original's are told on standard error.
const COSINE_LEAST: f64 = 0.9;

/// Write a model whose matrix products and convolutions multiply 8-bit integers, as QuantizeLinear and
/// DequantizeLinear around their operands: other runtimes read it too.
///
/// Weights take a scale per output channel. Activations take the range that they have on the inputs of the
/// calibration; the model must be of opset 13 or newer.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// An ONNX file, a folder that holds one, or the folder of a model in a repository.
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Where inputs come from that stand for real ones: a folder of .npz files, each with one array per input, or
    /// `random`.
    #[arg(long, value_name = "DIR|random")]
    calibration: String,
    /// The file to write; the model's own name with `.int8.onnx` when left out.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Random inputs to make up.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..))]
    samples: u64,
    /// Shapes of random inputs: name=dtype:1x128[:zeros|:ones|:random]; unknown dimensions are 1.
    #[arg(long, value_name = "NAME=VALUE")]
    input: Vec<String>,
}

/// Runs the command.
pub fn run(args: &Args) -> ExitCode {
    super::exit_code(execute(args))
}

fn execute(args: &Args) -> Result<(), Box<dyn Error>> {
    let file = model::file(&args.model)?;
    let quantizer = Quantizer::open(&file)?;
    let original = import::load(&file)?;
    if quantizer.is_empty() {
        let reasons: Vec<String> = quantizer.left().iter().map(ToString::to_string).collect();
        return Err(format!("there is no product to quantise. {}", reasons.join("; ")).into());
    }
    let samples = match args.calibration.as_str() {
        "random" => (0..args.samples)
            .map(|number| {
                let sample = inputs::sample(&original, &args.input, None, number)?;
                require_finite(&original, &sample).map_err(|reason| format!("random sample {number}: {reason}"))?;
                Ok(sample)
            })
            .collect::<Result<Vec<_>, String>>()?,
        folder => read_samples(&original, Path::new(folder))?,
    };
    let unit = units::find("cpu", Choice::default())?;
    let ranges = calibrate(&quantizer, &samples, unit.as_ref())?;
    let output = args.output.clone().unwrap_or_else(|| file.with_extension("int8.onnx"));
    if output.canonicalize().is_ok_and(|output| file.canonicalize().is_ok_and(|file| file == output)) {
        return Err(format!("--output {}: that is the model itself", output.display()).into());
    }
    let bytes = quantizer.quantize(&ranges)?;
    fs::write(&output, &bytes).map_err(|error| format!("cannot write '{}': {error}", output.display()))?;
    println!("{}: {} products of 8 bits, {} bytes", output.display(), quantizer.len(), bytes.len());
    for left in quantizer.left() {
        println!("  stays: {left}");
    }
    compare(original, import::load(&output)?, &samples, unit.as_ref())
}

/// The inputs in the `.npz` files of a folder, by name.
fn read_samples(model: &Model, folder: &Path) -> Result<Vec<Vec<Value>>, Box<dyn Error>> {
    let files = npy::files(folder).map_err(|error| format!("--calibration {}: {error}", folder.display()))?;
    let sample = |file: &PathBuf| {
        let sample = inputs::collect(model, &[], Some(file))?;
        let failed = |reason: String| format!("--calibration {}: {reason}, or leave the file out", file.display());
        require_finite(model, &sample).map_err(failed)?;
        Ok(sample)
    };
    Ok(files.iter().map(sample).collect::<Result<_, String>>()?)
}

/// Refuses inputs that are NaN or infinite: no range covers them, and what they become says nothing of others.
fn require_finite(model: &Model, sample: &[Value]) -> Result<(), String> {
    for (input, value) in model.inputs.iter().zip(sample) {
        let Value::Tensor(tensor) = value else { continue };
        if !tensor.dtype().is_float() {
            continue;
        }
        let numbers = tensor.to_f64s().map_err(|error| error.to_string())?;
        let count = numbers.iter().filter(|number| !number.is_finite()).count();
        if count > 0 {
            return Err(format!(
                "input '{}': of {} numbers {count} are NaN or infinite: give finite ones, for the -inf of a mask the \
                 lowest of its datatype",
                input.name,
                numbers.len()
            ));
        }
    }
    Ok(())
}

/// The ranges of the activations over all samples.
fn calibrate(
    quantizer: &Quantizer,
    samples: &[Vec<Value>],
    unit: &dyn ComputeUnit,
) -> Result<BTreeMap<String, Range>, Box<dyn Error>> {
    let mut graph = quantizer.observing()?.graph;
    optimize(&mut graph, &PassOptions::default());
    let ranges = output_ranges(&graph, unit, samples)?;
    Ok(quantizer.activations().into_iter().map(str::to_owned).zip(ranges).collect())
}

/// Prints how far the outputs of the quantised model are from those of the original on the samples.
fn compare(
    original: Model,
    quantised: Model,
    samples: &[Vec<Value>],
    unit: &dyn ComputeUnit,
) -> Result<(), Box<dyn Error>> {
    let names: Vec<String> = original.outputs.iter().map(|output| output.name.clone()).collect();
    let session = |model: Model| {
        Ok::<_, Box<dyn Error>>(Compiled::compile(model.graph, unit, &ModelOptions::default())?.session())
    };
    let (mut original, mut quantised) = (session(original)?, session(quantised)?);
    let mut comparison = Comparison::default();
    for inputs in samples {
        original.run(inputs)?;
        quantised.run(inputs)?;
        for ((name, exact), other) in names.iter().zip(original.take_outputs()?).zip(quantised.take_outputs()?) {
            let (Value::Tensor(exact), Value::Tensor(other)) = (exact, other) else { continue };
            if !exact.dtype().is_float() {
                continue;
            }
            comparison.add(name, &exact, &other)?;
        }
    }
    let (differences, silent) = comparison.finish();
    println!("  over {} inputs, the worst:", samples.len());
    differences.iter().for_each(|difference| println!("    {difference}"));
    silent.iter().for_each(|output| println!("    '{output}': not compared, as it has no finite number"));
    for Difference { output, cosine, .. } in differences.iter().filter(|found| found.cosine < COSINE_LEAST) {
        eprintln!(
            "warning: the quantised model differs much from the original: output '{output}' has a cosine of {cosine:.3}, \
             less than {COSINE_LEAST}. Calibrate it with inputs like those that it will get, or let `halimede serve \
             --precision=fast` round the original: that keeps floats where 8 bits do harm"
        );
    }
    for output in silent {
        eprintln!(
            "warning: output '{output}' has no finite number on any of the inputs, so that nobody knows how it differs: \
             calibrate with inputs on which it has"
        );
    }
    Ok(())
}
