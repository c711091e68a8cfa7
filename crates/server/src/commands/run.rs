//! `halimede run`: one inference from the command line.

use std::{error::Error, fs, path::PathBuf, process::ExitCode};

use halimede_tensor::{DType, Tensor, Value, npy};
use serde_json::{Value as Json, json};

use super::model::{ModelArgs, UnitArgs};

/// Run a model once and print its outputs as JSON, or write them as .npy files.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    on: UnitArgs,
    /// Arrays for the inputs, by name.
    #[arg(long, value_name = "FILE.npz")]
    inputs: Option<PathBuf>,
    /// Write each output to DIR/NAME.npy.
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: &Args) -> ExitCode {
    super::exit_code(execute(args))
}

fn execute(args: &Args) -> Result<(), Box<dyn Error>> {
    let unit = args.on.find()?;
    let (model, _) = args.model.read()?;
    let names: Vec<String> = model.outputs.iter().map(|output| output.name.clone()).collect();
    let inputs = super::inputs::collect(&model, &args.model.input, args.inputs.as_deref())?;
    let inputs = [inputs];
    let mut session = args.model.compile(model, &*unit, &args.on, &inputs)?.session();
    session.run_within(&inputs[0], args.on.timeout)?;
    let outputs = session.take_outputs()?;
    let mut printed = serde_json::Map::new();
    for (name, value) in names.iter().zip(&outputs) {
        let Value::Tensor(tensor) = value else {
            return Err(format!("output '{name}' is no tensor: it cannot be printed").into());
        };
        match &args.output {
            Some(directory) => {
                fs::create_dir_all(directory)?;
                // A name may look like a path.
                let file = directory.join(format!("{}.npy", name.replace(['/', '\\', ':'], "_")));
                fs::write(&file, npy::write(tensor)?)?;
                println!("{} {}{:?}", file.display(), tensor.dtype(), tensor.shape());
            }
            None => {
                let entry = json!({
                    "datatype": tensor.dtype().to_string(),
                    "shape": tensor.shape(),
                    "data": data(tensor)?,
                });
                printed.insert(name.clone(), entry);
            }
        }
    }
    if args.output.is_none() {
        println!("{}", Json::Object(printed));
    }
    Ok(())
}

/// The elements in order. Numbers that JSON does not have become the texts `NaN`, `Infinity` and `-Infinity`.
fn data(tensor: &Tensor) -> Result<Json, Box<dyn Error>> {
    macro_rules! numbers {
        ($type:ty) => {
            tensor.slice::<$type>()?.iter().map(|value| json!(value)).collect()
        };
    }
    Ok(match tensor.dtype() {
        DType::Bool => tensor.bytes()?.iter().map(|value| json!(*value != 0)).collect(),
        DType::U8 => numbers!(u8),
        DType::U16 => numbers!(u16),
        DType::U32 => numbers!(u32),
        DType::U64 => numbers!(u64),
        DType::I8 => numbers!(i8),
        DType::I16 => numbers!(i16),
        DType::I32 => numbers!(i32),
        DType::I64 => numbers!(i64),
        // As f32 they print with the digits that f32 needs.
        DType::F32 => tensor.slice::<f32>()?.iter().map(|&value| real(value.into(), json!(value))).collect(),
        DType::F64 => tensor.slice::<f64>()?.iter().map(|&value| real(value, json!(value))).collect(),
        DType::F16 => tensor.slice::<half::f16>()?.iter().map(|v| real(v.to_f64(), json!(v.to_f32()))).collect(),
        DType::Bf16 => tensor.slice::<half::bf16>()?.iter().map(|v| real(v.to_f64(), json!(v.to_f32()))).collect(),
        DType::String => tensor.strings()?.iter().map(|value| json!(String::from_utf8_lossy(value))).collect(),
        other => return Err(format!("elements of type {other} cannot be printed: use --output DIR").into()),
    })
}

/// A number as `json` has it, where it is finite.
fn real(value: f64, json: Json) -> Json {
    match value {
        value if value.is_finite() => json,
        value if value.is_nan() => json!("NaN"),
        value if value > 0.0 => json!("Infinity"),
        _ => json!("-Infinity"),
    }
}
