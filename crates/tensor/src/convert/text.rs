//! Numbers as text and back, written as NumPy writes them.

use super::CastOptions;
use crate::{DType, Tensor, TensorError};
use half::{bf16, f16};

/// A String tensor of the elements' shortest decimal form.
pub(super) fn print(tensor: &Tensor) -> Result<Tensor, TensorError> {
    let dtype = tensor.dtype();
    let strings = match dtype {
        DType::Bool => {
            let name = |v: &u8| if *v != 0 { "True" } else { "False" };
            tensor.slice::<u8>()?.iter().map(|v| name(v).into()).collect()
        }
        DType::U64 => tensor.slice::<u64>()?.iter().map(|v| v.to_string().into_bytes()).collect(),
        DType::F64 => tensor.slice::<f64>()?.iter().map(|&v| positional(v, format!("{v:e}"))).collect(),
        DType::F32 => tensor.slice::<f32>()?.iter().map(|&v| positional(v.into(), format!("{v:e}"))).collect(),
        dtype if dtype.is_float() => {
            let survives = |v: f64, text: &str| match text.parse::<f64>() {
                Ok(parsed) if dtype == DType::F16 => f16::from_f64(parsed).to_f64() == v,
                Ok(parsed) if dtype == DType::Bf16 => bf16::from_f64(parsed).to_f64() == v,
                Ok(parsed) => parsed == v,
                Err(_) => false,
            };
            let shortest = |v: f64| {
                let texts = (0..17).map(|digits| format!("{v:.digits$e}"));
                texts.into_iter().find(|text| survives(v, text)).unwrap_or_else(|| format!("{v:e}"))
            };
            tensor.to_f64s()?.into_iter().map(|v| positional(v, shortest(v))).collect()
        }
        _ => tensor.to_i64s()?.into_iter().map(|v| v.to_string().into_bytes()).collect(),
    };
    Tensor::from_strings(tensor.shape(), strings)
}

/// A float's digits from scientific notation, written out between 1e-4 and 1e16 and with an exponent
/// of at least two digits outside.
fn positional(value: f64, scientific: String) -> Vec<u8> {
    if value.is_nan() {
        return b"nan".to_vec();
    }
    if value.is_infinite() {
        return if value < 0.0 { b"-inf".to_vec() } else { b"inf".to_vec() };
    }
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let magnitude = value.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.abs()).into_bytes();
    }
    let (sign, mantissa) = match mantissa.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", mantissa),
    };
    let digits: String = mantissa.chars().filter(|c| *c != '.').collect();
    let (whole, fraction) = if exponent < 0 {
        ("0".to_owned(), "0".repeat(exponent.unsigned_abs() as usize - 1) + &digits)
    } else {
        let point = exponent as usize + 1;
        let padded = format!("{digits:0<point$}");
        (padded[..point].to_owned(), padded[point..].to_owned())
    };
    let fraction = fraction.trim_end_matches('0');
    let fraction = if fraction.is_empty() { "0" } else { fraction };
    format!("{sign}{whole}.{fraction}").into_bytes()
}

/// The numbers that strings spell.
pub(super) fn parse(tensor: &Tensor, to: DType, options: CastOptions) -> Result<Tensor, TensorError> {
    let strings = tensor.strings()?;
    let fail = |text: &[u8]| TensorError::Parse { text: String::from_utf8_lossy(text).into_owned(), to };
    let trimmed = |text: &[u8]| std::str::from_utf8(text).map(|t| t.trim().to_owned()).map_err(|_| fail(text));
    if to.is_integer() || to == DType::Bool {
        let integers: Vec<i64> = strings
            .iter()
            .map(|text| {
                let trimmed = trimmed(text)?;
                let whole = trimmed.parse::<i64>().ok().or_else(|| trimmed.parse::<u64>().ok().map(|v| v as i64));
                let truth = match trimmed.to_ascii_lowercase().as_str() {
                    "true" => Some(1),
                    "false" => Some(0),
                    _ => None,
                };
                let cut = || trimmed.parse::<f64>().ok().map(|v| v as i64);
                whole.or_else(cut).or(truth).ok_or_else(|| fail(text))
            })
            .collect::<Result<_, _>>()?;
        return super::from_signed(to, tensor.shape(), &integers, options);
    }
    let floats: Vec<f64> =
        strings.iter().map(|text| trimmed(text)?.parse::<f64>().map_err(|_| fail(text))).collect::<Result<_, _>>()?;
    super::from_float(to, tensor.shape(), &floats, options)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(tensor: Tensor) -> Vec<String> {
        let strings = print(&tensor).unwrap();
        strings.strings().unwrap().iter().map(|s| String::from_utf8(s.clone()).unwrap()).collect()
    }

    #[test]
    fn floats_print_as_numpy_does() {
        let values = [0.47892547f32, 1.0, -0.5, 1e-5, 1e16, 1.5e20, 123456.79, f32::NAN, f32::NEG_INFINITY, 0.0, -0.0];
        let expected =
            ["0.47892547", "1.0", "-0.5", "1e-05", "1e+16", "1.5e+20", "123456.79", "nan", "-inf", "0.0", "-0.0"];
        assert_eq!(printed(Tensor::from_slice(&[11], &values).unwrap()), expected);
        let halves = [f16::from_f32(0.1), f16::from_f32(65504.0), f16::from_f32(1.0)];
        assert_eq!(printed(Tensor::from_slice(&[3], &halves).unwrap()), ["0.1", "65500.0", "1.0"]);
    }

    #[test]
    fn integers_print_plainly() {
        assert_eq!(printed(Tensor::from_slice(&[2], &[-7i32, 12]).unwrap()), ["-7", "12"]);
        assert_eq!(printed(Tensor::scalar(u64::MAX)), ["18446744073709551615"]);
    }

    #[test]
    fn text_reads_as_numbers() {
        let strings = |v: &[&str]| Tensor::from_strings(&[v.len()], v.iter().map(|s| s.as_bytes().to_vec()).collect());
        let floats = strings(&["3.14", "1e-5", "1E8", "+INF", "-inf", "NaN", " 2 "]).unwrap();
        let parsed = parse(&floats, DType::F32, CastOptions::default()).unwrap().to_f32s().unwrap();
        assert_eq!(parsed[..5], [3.14, 1e-5, 1e8, f32::INFINITY, f32::NEG_INFINITY]);
        assert!(parsed[5].is_nan() && parsed[6] == 2.0);
        let integers = strings(&["100.5", "-3", "9223372036854775807"]).unwrap();
        let parsed = parse(&integers, DType::I64, CastOptions::default()).unwrap();
        assert_eq!(parsed.slice::<i64>().unwrap(), [100, -3, i64::MAX]);
        let error = parse(&strings(&["Hello"]).unwrap(), DType::F32, CastOptions::default()).unwrap_err();
        assert_eq!(error.to_string(), "'Hello' does not read as a number of f32");
    }
}
