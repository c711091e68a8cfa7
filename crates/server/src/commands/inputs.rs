//! Inputs for a model from the command line: files, JSON, or made-up numbers.

use std::{collections::BTreeMap, fs, path::Path};

use halimede_graph::onnx::import::{Input, Model};
use halimede_platform::memory;
use halimede_tensor::{Buffer, DType, Tensor, Value, npy};

/// How made-up elements come about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fill {
    Zeros,
    Ones,
    Random,
}

/// What an allocator takes for a short text.
const STRING_BLOCK: usize = 32;

/// Names of datatypes on the command line, NumPy's and the protocol's.
const DTYPES: [(&[&str], DType); 13] = [
    (&["bool"], DType::Bool),
    (&["uint8", "u8"], DType::U8),
    (&["uint16", "u16"], DType::U16),
    (&["uint32", "u32"], DType::U32),
    (&["uint64", "u64"], DType::U64),
    (&["int8", "i8"], DType::I8),
    (&["int16", "i16"], DType::I16),
    (&["int32", "i32"], DType::I32),
    (&["int64", "i64"], DType::I64),
    (&["float16", "fp16", "f16"], DType::F16),
    (&["bfloat16", "bf16"], DType::Bf16),
    (&["float32", "fp32", "f32", "float"], DType::F32),
    (&["float64", "fp64", "f64", "double"], DType::F64),
];

/// The inputs of `model` in its order: what `specs` and the arrays of `npz` say, ones and random numbers for
/// the rest, unknown dimensions 1.
pub(super) fn collect(model: &Model, specs: &[String], npz: Option<&Path>) -> Result<Vec<Value>, String> {
    sample(model, specs, npz, 0)
}

/// [`collect`] whose random numbers are those of a sample, the same for the same number.
pub(super) fn sample(model: &Model, specs: &[String], npz: Option<&Path>, number: u64) -> Result<Vec<Value>, String> {
    let mut random = Random::of_sample(number);
    let mut given: BTreeMap<String, Tensor> = BTreeMap::new();
    if let Some(path) = npz {
        given = npy::read_all(&read_file(path)?).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    for spec in specs {
        let (name, what) = spec.split_once('=').ok_or_else(|| format!("--input {spec}: it has the form name=VALUE"))?;
        let input = model.inputs.iter().find(|input| input.name == name);
        let tensor = read_spec(what, input, &mut random).map_err(|error| format!("--input {spec}: {error}"))?;
        given.insert(name.to_owned(), tensor);
    }
    if let Some(name) = given.keys().find(|name| !model.inputs.iter().any(|input| input.name == **name)) {
        let names: Vec<&str> = model.inputs.iter().map(|input| input.name.as_str()).collect();
        return Err(format!("the model has no input '{name}'; there are: {}", names.join(", ")));
    }
    model
        .inputs
        .iter()
        .map(|input| match (given.remove(&input.name), &input.default) {
            (Some(tensor), _) => Ok(tensor.into()),
            (None, Some(default)) => Ok(default.clone().into()),
            (None, None) => {
                let tensor = make_up(input, &mut random)?;
                let (name, dtype, shape) = (&input.name, tensor.dtype(), tensor.shape());
                if number == 0 {
                    eprintln!("input '{name}' is not given: made up as {dtype}{shape:?}");
                }
                Ok(tensor.into())
            }
        })
        .collect()
}

fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    if let Ok(metadata) = fs::metadata(path) {
        // The bytes of the file, and the tensor that is made from them.
        let what = || format!("'{}' of {}", path.display(), size(metadata.len()));
        check_memory(metadata.len().saturating_mul(2), memory::machine().left(), what)?;
    }
    fs::read(path).map_err(|error| format!("cannot read '{}': {error}", path.display()))
}

fn read_spec(what: &str, input: Option<&Input>, random: &mut Random) -> Result<Tensor, String> {
    if what.ends_with(".npy") {
        return npy::read(&read_file(Path::new(what))?);
    }
    if what.ends_with(".json") {
        let text = read_file(Path::new(what))?;
        return from_json(&serde_json::from_slice(&text).map_err(|error| error.to_string())?, input);
    }
    if what.starts_with('[') {
        return from_json(&serde_json::from_str(what).map_err(|error| error.to_string())?, input);
    }
    if let Ok(scalar @ (serde_json::Value::Number(_) | serde_json::Value::Bool(_) | serde_json::Value::String(_))) =
        serde_json::from_str(what)
    {
        return from_json(&scalar, input);
    }
    let mut parts = what.split(':');
    let name = parts.next().unwrap_or_default();
    let dtype = dtype(name).ok_or_else(|| {
        format!("'{name}' is no datatype; VALUE is a .npy or .json file, JSON, or dtype:1x128[:zeros|:ones|:random]")
    })?;
    let dims = parts.next().unwrap_or_default();
    let shape: Result<Vec<usize>, String> = dims
        .split('x')
        .filter(|dim| !dim.is_empty())
        .map(|dim| dim.parse().map_err(|_| format!("'{dim}' is no dimension")))
        .collect();
    let fill = match parts.next() {
        None | Some("random") => Fill::Random,
        Some("ones") => Fill::Ones,
        Some("zeros") => Fill::Zeros,
        Some(other) => return Err(format!("'{other}' is none of zeros, ones, random")),
    };
    fill_tensor(dtype, &shape?, fill, random)
}

/// Refuses what the machine has no memory for: it would end this process, or another one, without a word.
fn check_memory(bytes: u64, left: Option<u64>, what: impl FnOnce() -> String) -> Result<(), String> {
    // Where the system does not tell, nothing is known to be too much.
    let Some(left) = left.filter(|left| bytes > *left) else { return Ok(()) };
    Err(format!(
        "{} takes {bytes} bytes ({}) while it is made, and {left} bytes ({}) of this machine's memory are left: make it \
         smaller, or run this where there is more",
        what(),
        size(bytes),
        size(left)
    ))
}

fn size(bytes: u64) -> String {
    match bytes {
        bytes if bytes < 1 << 20 => format!("{bytes} B"),
        bytes if bytes < 1 << 30 => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
        bytes => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

/// What an element of a made-up tensor takes: that of strings is a text with its place in a list.
fn element_bytes(dtype: DType) -> usize {
    match dtype {
        DType::String => size_of::<Vec<u8>>() + STRING_BLOCK,
        dtype => dtype.size(),
    }
}

fn dtype(name: &str) -> Option<DType> {
    let name = name.to_ascii_lowercase();
    DTYPES.iter().find(|row| row.0.contains(&name.as_str())).map(|row| row.1)
}

/// A tensor of f32 from -1 to 1, the same for the same shape.
pub(super) fn random(shape: &[usize]) -> Result<Tensor, String> {
    fill_tensor(DType::F32, shape, Fill::Random, &mut Random::of_sample(0))
}

/// An input nobody gave: random numbers, and ones where they may be indices.
fn make_up(input: &Input, random: &mut Random) -> Result<Tensor, String> {
    let hint = || format!("input '{0}': give it with --input {0}=…", input.name);
    let dtype = input.fact.dtype.ok_or_else(hint)?;
    let dims = input.fact.shape.as_ref().ok_or_else(hint)?;
    let shape: Vec<usize> = dims.iter().map(|dim| dim.size().unwrap_or(1)).collect();
    let is_float = matches!(dtype, DType::F16 | DType::Bf16 | DType::F32 | DType::F64);
    fill_tensor(dtype, &shape, if is_float { Fill::Random } else { Fill::Ones }, random)
        .map_err(|error| format!("input '{}': {error}", input.name))
}

/// Xorshift: the same numbers in every run.
struct Random(u64);

impl Random {
    fn of_sample(number: u64) -> Random {
        // Xorshift stays at 0 where it begins there: an odd factor keeps different numbers apart and off it.
        Random((number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

fn fill_tensor(dtype: DType, shape: &[usize], fill: Fill, random: &mut Random) -> Result<Tensor, String> {
    let too_large = || format!("a tensor {dtype}{shape:?} has more bytes than a number can say: make it smaller");
    let count = shape.iter().try_fold(1usize, |count, dim| count.checked_mul(*dim)).ok_or_else(too_large)?;
    let bytes_len = count.checked_mul(element_bytes(dtype)).ok_or_else(too_large)?;
    // The elements as they are made, and the tensor that they are copied into.
    let needed = (bytes_len as u64).saturating_mul(2);
    check_memory(needed, memory::machine().left(), || format!("a tensor {dtype}{shape:?}"))?;
    let mut element = || match fill {
        Fill::Zeros => 0.0,
        Fill::Ones => 1.0,
        // From -1 to 1.
        Fill::Random => (random.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0,
    };
    if dtype == DType::String {
        return Tensor::from_strings(shape, vec![b"text".to_vec(); count]).map_err(|error| error.to_string());
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(bytes_len).map_err(|error| {
        format!("a tensor {dtype}{shape:?} takes {bytes_len} bytes, which this process does not get: {error}")
    })?;
    for _ in 0..count {
        let value = element();
        // Whole numbers between 0 and 99.
        let whole = if fill == Fill::Random { (value.abs() * 100.0) as i64 } else { value as i64 };
        push(&mut bytes, dtype, value, whole)?;
    }
    from_bytes(dtype, shape, &bytes)
}

fn from_bytes(dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Tensor, String> {
    let buffer = Buffer::copied(bytes).map_err(|error| error.to_string())?;
    Tensor::from_buffer(dtype, shape, buffer).map_err(|error| error.to_string())
}

fn push(bytes: &mut Vec<u8>, dtype: DType, value: f64, whole: i64) -> Result<(), String> {
    match dtype {
        DType::Bool => bytes.push(u8::from(whole & 1 == 1)),
        DType::U8 | DType::I8 => bytes.push(whole as u8),
        DType::U16 | DType::I16 => bytes.extend_from_slice(&(whole as u16).to_le_bytes()),
        DType::U32 | DType::I32 => bytes.extend_from_slice(&(whole as u32).to_le_bytes()),
        DType::U64 | DType::I64 => bytes.extend_from_slice(&whole.to_le_bytes()),
        DType::F16 => bytes.extend_from_slice(&half::f16::from_f64(value).to_le_bytes()),
        DType::Bf16 => bytes.extend_from_slice(&half::bf16::from_f64(value).to_le_bytes()),
        DType::F32 => bytes.extend_from_slice(&(value as f32).to_le_bytes()),
        DType::F64 => bytes.extend_from_slice(&value.to_le_bytes()),
        other => return Err(format!("elements of type {other} cannot be made up: give a file")),
    }
    Ok(())
}

/// Nested arrays; the datatype is that of the model's input.
fn from_json(json: &serde_json::Value, input: Option<&Input>) -> Result<Tensor, String> {
    let mut shape = Vec::new();
    let mut level = json;
    while let serde_json::Value::Array(elements) = level {
        shape.push(elements.len());
        let Some(first) = elements.first() else { break };
        level = first;
    }
    let dtype = input.and_then(|input| input.fact.dtype).unwrap_or(match level {
        serde_json::Value::String(_) => DType::String,
        serde_json::Value::Bool(_) => DType::Bool,
        _ => DType::F32,
    });
    let mut elements = Vec::new();
    flatten(json, &shape, &mut elements)?;
    if dtype == DType::String {
        let strings: Option<Vec<Vec<u8>>> =
            elements.iter().map(|element| element.as_str().map(|text| text.as_bytes().to_vec())).collect();
        let strings = strings.ok_or("the input takes strings")?;
        return Tensor::from_strings(&shape, strings).map_err(|error| error.to_string());
    }
    let mut bytes = Vec::new();
    for element in elements {
        let value = element.as_f64().or_else(|| element.as_bool().map(|value| f64::from(u8::from(value))));
        let value = value.ok_or_else(|| format!("{element} is no number"))?;
        // Numbers beyond i64 keep their bits as u64.
        let whole = element.as_i64().or_else(|| element.as_u64().map(|whole| whole as i64)).unwrap_or(value as i64);
        push(&mut bytes, dtype, value, whole)?;
    }
    from_bytes(dtype, &shape, &bytes)
}

fn flatten<'j>(
    json: &'j serde_json::Value,
    shape: &[usize],
    elements: &mut Vec<&'j serde_json::Value>,
) -> Result<(), String> {
    match (json, shape) {
        (serde_json::Value::Array(inner), [len, rest @ ..]) if inner.len() == *len => {
            inner.iter().try_for_each(|element| flatten(element, rest, elements))
        }
        (serde_json::Value::Array(_), _) => Err("the arrays are not all of one shape".to_owned()),
        (element, []) => {
            elements.push(element);
            Ok(())
        }
        _ => Err("the arrays are not all of one shape".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_spec(what: &str) -> Result<Tensor, String> {
        super::read_spec(what, None, &mut Random::of_sample(0))
    }

    #[test]
    fn specs() {
        let tensor = read_spec("float32:2x3:ones").unwrap();
        assert_eq!((tensor.shape(), tensor.slice::<f32>().unwrap()), (&[2, 3][..], &[1.0; 6][..]));
        let tensor = read_spec("[[1, 2], [3, 4.5]]").unwrap();
        assert_eq!(tensor.slice::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.5]);
        assert!(read_spec("int64:4:random").unwrap().slice::<i64>().unwrap().iter().all(|x| (0..100).contains(x)));
        for wrong in ["nope:1", "float32:a", "float32:1:two", "[[1], [2, 3]]", "missing.npy"] {
            assert!(read_spec(wrong).is_err(), "{wrong}");
        }
    }
}
