use crate::onnx::case::tensor;
use crate::onnx::{Attribute, Attributes, Case, Operator};
use crate::ops::{Call, Facts};
use crate::{Dim, Fact, OpError};
use halimede_tensor::{Tensor, Value};
use smallvec::smallvec;

/// Causal attention in which groups of query heads share a key head, with a cache of its own length per
/// sequence and rotary embedding (ONNX Runtime GroupQueryAttention).
pub static OPERATOR: Operator =
    Operator::in_domain("com.microsoft", "GroupQueryAttention").evaluate(evaluate).infer(infer).cases(cases);

/// Sizes and attributes.
struct Setting {
    heads: usize,
    kv_heads: usize,
    scale: Option<f32>,
    softcap: f32,
    window: i64,
    rotary: bool,
    interleaved: bool,
}

impl Setting {
    fn read(attributes: &Attributes) -> Result<Setting, OpError> {
        let count = |name: &str| -> Result<usize, OpError> {
            let count = attributes.required(name, attributes.int(name)?)?;
            let positive = usize::try_from(count).ok().filter(|&count| count > 0);
            positive.ok_or_else(|| OpError::invalid(format!("{name} is {count}; it must be positive")))
        };
        let (heads, kv_heads) = (count("num_heads")?, count("kv_num_heads")?);
        if heads % kv_heads != 0 {
            return Err(OpError::invalid(format!("{heads} query heads do not share {kv_heads} key heads evenly")));
        }
        // -1 stands for "as the kernel likes", which is off.
        if attributes.int_or("smooth_softmax", 0)? == 1 || attributes.int_or("kv_cache_bit_width", 0)? != 0 {
            return Err(OpError::unsupported("GroupQueryAttention with a smooth softmax or a quantized cache"));
        }
        Ok(Setting {
            heads,
            kv_heads,
            scale: attributes.float("scale")?.filter(|&scale| scale != 0.0),
            softcap: attributes.float_or("softcap", 0.0)?,
            window: attributes.int_or("local_window_size", -1)?,
            rotary: attributes.flag_or("do_rotary", false)?,
            interleaved: attributes.flag_or("rotary_interleaved", false)?,
        })
    }
}

/// Heads by place: `[batch, heads, places, size]`.
struct Cache {
    heads: usize,
    places: usize,
    size: usize,
    data: Vec<f32>,
}

impl Cache {
    fn row(&self, batch: usize, head: usize, place: usize) -> &[f32] {
        &self.data[((batch * self.heads + head) * self.places + place) * self.size..][..self.size]
    }

    fn row_mut(&mut self, batch: usize, head: usize, place: usize) -> &mut [f32] {
        &mut self.data[((batch * self.heads + head) * self.places + place) * self.size..][..self.size]
    }
}

fn evaluate(call: &Call, inputs: &[Option<Value>]) -> Result<Vec<Value>, OpError> {
    let input = |index: usize| inputs.get(index).and_then(Option::as_ref).map(Value::tensor).transpose();
    let required = |index: usize| input(index)?.ok_or_else(|| OpError::invalid(format!("input {index} is missing")));
    let setting = Setting::read(&call.attributes)?;
    if inputs.iter().skip(11).any(Option::is_some) || call.outputs.get(3) == Some(&true) {
        return Err(OpError::unsupported(
            "GroupQueryAttention with sinks, quantized caches, norms or scores as an output",
        ));
    }
    let query = required(0)?;
    let &[batch, length, width] = query.shape() else {
        return Err(OpError::invalid(format!(
            "the query has shape {:?}; [batch, places, hidden] is needed",
            query.shape()
        )));
    };
    let Setting { heads, kv_heads, .. } = setting;
    let packed = input(1)?.is_none();
    let size = width / if packed { heads + 2 * kv_heads } else { heads };
    let mut q = vec![0.0; batch * length * heads * size];
    let (mut new_k, mut new_v) =
        (vec![0.0; batch * length * kv_heads * size], vec![0.0; batch * length * kv_heads * size]);
    if packed {
        let all = query.to_f32s()?;
        for (place, row) in all.chunks_exact(width.max(1)).enumerate() {
            let (q_row, rest) = row.split_at(heads * size);
            let (k_row, v_row) = rest.split_at(kv_heads * size);
            let at = place * kv_heads * size;
            q[place * heads * size..][..heads * size].copy_from_slice(q_row);
            new_k[at..at + kv_heads * size].copy_from_slice(k_row);
            new_v[at..at + kv_heads * size].copy_from_slice(&v_row[..kv_heads * size]);
        }
    } else {
        (q, new_k, new_v) = (query.to_f32s()?, required(1)?.to_f32s()?, required(2)?.to_f32s()?);
    }
    let lengths = required(5)?.to_i64s()?;
    let total = required(6)?.to_i64s()?.first().copied().unwrap_or_default().max(0) as usize;
    let past_places = input(3)?.and_then(|past| past.shape().get(2).copied()).unwrap_or(0);
    let consistent = new_k.len() == batch * length * kv_heads * size
        && new_v.len() == new_k.len()
        && lengths.len() == batch
        && total >= length;
    if !consistent {
        return Err(OpError::invalid("GroupQueryAttention's keys, values or lengths do not fit its query"));
    }
    // Per sequence, how many places came before: none where all places are new.
    let first = total == length;
    let before = |sequence: usize| if first { 0 } else { (lengths[sequence] + 1 - length as i64).max(0) as usize };
    let places = past_places.max(total);
    let turn = Turn::read(&setting, input(7)?, input(8)?, size)?;
    let stated = input(9)?.map(Tensor::to_i64s).transpose()?;

    let mut caches = Vec::with_capacity(2);
    for (index, new) in [(3, &new_k), (4, &new_v)] {
        let mut cache = Cache { heads: kv_heads, places, size, data: vec![0.0; batch * kv_heads * places * size] };
        let past = input(index)?.map(Tensor::to_f32s).transpose()?.unwrap_or_default();
        let past = Cache { heads: kv_heads, places: past_places, size, data: past };
        if past.data.len() != batch * kv_heads * past_places * size {
            return Err(OpError::invalid("GroupQueryAttention's cache does not fit its query"));
        }
        for sequence in 0..batch {
            if before(sequence) + length > places || before(sequence) > past_places {
                return Err(OpError::invalid(format!(
                    "a sequence of {} places does not fit a cache of {places}",
                    lengths[sequence] + 1
                )));
            }
            for head in 0..kv_heads {
                for place in 0..before(sequence) {
                    cache.row_mut(sequence, head, place).copy_from_slice(past.row(sequence, head, place));
                }
                for place in 0..length {
                    let at = ((sequence * length + place) * kv_heads + head) * size;
                    let row = cache.row_mut(sequence, head, before(sequence) + place);
                    row.copy_from_slice(&new[at..at + size]);
                    if index == 3 {
                        turn.apply(row, position(&stated, sequence, length, place, before(sequence)))?;
                    }
                }
            }
        }
        caches.push(cache);
    }
    let (k, v) = (&caches[0], &caches[1]);

    let bias = input(10)?;
    let bias_data = bias.map(Tensor::to_f32s).transpose()?;
    let scale = setting.scale.unwrap_or(1.0 / (size as f32).sqrt());
    let mut y = vec![0.0; batch * length * heads * size];
    for sequence in 0..batch {
        for place in 0..length {
            let own = before(sequence) + place;
            let start = if setting.window > 0 { (own + 1).saturating_sub(setting.window as usize) } else { 0 };
            for head in 0..heads {
                let at = ((sequence * length + place) * heads + head) * size;
                turn.apply(&mut q[at..at + size], position(&stated, sequence, length, place, before(sequence)))?;
                let kv_head = head / (heads / kv_heads);
                let mut scores: Vec<f32> = (start..=own)
                    .map(|key| {
                        let product: f32 =
                            q[at..at + size].iter().zip(k.row(sequence, kv_head, key)).map(|(a, b)| a * b).sum();
                        let score = product * scale;
                        let score = if setting.softcap > 0.0 {
                            setting.softcap * (score / setting.softcap).tanh()
                        } else {
                            score
                        };
                        let added = bias
                            .zip(bias_data.as_ref())
                            .map_or(0.0, |(bias, data)| bias_at(bias, data, sequence, head, place, key));
                        score + added
                    })
                    .collect();
                let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                scores.iter_mut().for_each(|score| *score = (*score - largest).exp());
                let sum: f32 = scores.iter().sum();
                for (weight, key) in scores.iter().zip(start..) {
                    for (result, value) in y[at..at + size].iter_mut().zip(v.row(sequence, kv_head, key)) {
                        *result += weight / sum * value;
                    }
                }
            }
        }
    }
    let dtype = query.dtype();
    let cache_shape = [batch, kv_heads, places, size];
    Ok(vec![
        Tensor::from_f32s(dtype, &[batch, length, heads * size], &y)?.into(),
        Tensor::from_f32s(dtype, &cache_shape, &k.data)?.into(),
        Tensor::from_f32s(dtype, &cache_shape, &v.data)?.into(),
    ])
}

/// The position that the rotary embedding gives a new place.
fn position(stated: &Option<Vec<i64>>, sequence: usize, length: usize, place: usize, before: usize) -> usize {
    let stated = stated.as_ref().and_then(|stated| stated.get(sequence * length + place));
    stated.map_or(before + place, |&stated| stated.max(0) as usize)
}

/// A number added to a score; axes of size 1 broadcast.
fn bias_at(bias: &Tensor, data: &[f32], sequence: usize, head: usize, place: usize, key: usize) -> f32 {
    let mut index = 0;
    for (&size, at) in bias.shape().iter().zip([sequence, head, place, key]) {
        index = index * size + if size == 1 { 0 } else { at };
    }
    data.get(index).copied().unwrap_or(0.0)
}

/// The tables of a rotary embedding; none where the node asks for none.
struct Turn {
    cos: Vec<f32>,
    sin: Vec<f32>,
    half: usize,
    interleaved: bool,
}

impl Turn {
    fn read(setting: &Setting, cos: Option<&Tensor>, sin: Option<&Tensor>, size: usize) -> Result<Turn, OpError> {
        let none = Turn { cos: Vec::new(), sin: Vec::new(), half: 0, interleaved: setting.interleaved };
        if !setting.rotary {
            return Ok(none);
        }
        let (Some(cos), Some(sin)) = (cos, sin) else {
            return Err(OpError::invalid("do_rotary needs the inputs cos_cache and sin_cache"));
        };
        let half = cos.shape().last().copied().unwrap_or(0);
        if cos.shape() != sin.shape() || 2 * half > size {
            return Err(OpError::invalid(format!(
                "tables of {:?} and {:?} for heads of {size}",
                cos.shape(),
                sin.shape()
            )));
        }
        Ok(Turn { cos: cos.to_f32s()?, sin: sin.to_f32s()?, half, ..none })
    }

    fn apply(&self, row: &mut [f32], position: usize) -> Result<(), OpError> {
        let at = position * self.half;
        if at + self.half > self.cos.len() {
            return Err(OpError::invalid(format!("position {position} lies outside the rotary table")));
        }
        for i in 0..self.half {
            let (a, b) = if self.interleaved { (2 * i, 2 * i + 1) } else { (i, i + self.half) };
            let (cos, sin) = (self.cos[at + i], self.sin[at + i]);
            (row[a], row[b]) = (row[a] * cos - row[b] * sin, row[a] * sin + row[b] * cos);
        }
        Ok(())
    }
}

fn infer(call: &Call, inputs: &[Option<&Fact>]) -> Result<Facts, OpError> {
    let setting = Setting::read(&call.attributes)?;
    let Some(Some(query)) = inputs.first() else { return Err(OpError::invalid("GroupQueryAttention needs a query")) };
    let packed = inputs.get(1).copied().flatten().is_none();
    let unknown = || Fact::of_dtype(query.dtype);
    let Some([batch, length, width]) = query.shape.as_deref() else {
        return Ok(smallvec![unknown(), unknown(), unknown()]);
    };
    let all = Dim::from(if packed { setting.heads + 2 * setting.kv_heads } else { setting.heads });
    let size = width.floor_div(&all);
    let hidden = size.clone() * Dim::from(setting.heads);
    let shape = [batch.clone(), length.clone(), hidden].into_iter().collect();
    // The cache is as long as the longer of what came before and what there is in all.
    let before = inputs.get(3).copied().flatten().and_then(|past| past.shape.as_ref()?.get(2).cloned());
    let total = inputs.get(6).copied().flatten().and_then(|total| total.dims()?.into_iter().next());
    let places = match (before, total) {
        (Some(before), Some(total)) => before.maximum(&total),
        (None, Some(total)) => total,
        _ => Dim::unknown(),
    };
    let cache = [batch.clone(), Dim::from(setting.kv_heads), places, size].into_iter().collect();
    let cache = Fact { shape: Some(cache), ..unknown() };
    Ok(smallvec![Fact { shape: Some(shape), ..unknown() }, cache.clone(), cache])
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("first places, rotary", &OPERATOR, 1)
            .attribute("num_heads", Attribute::Int(1))
            .attribute("kv_num_heads", Attribute::Int(1))
            .attribute("do_rotary", Attribute::Int(1))
            .input(tensor(
                &[1, 2, 16],
                &[
                    -0.89f32, 0.63, -0.58, -1.17, -0.8, 1.45, 0.22, 1.16, -0.48, 0.94, -0.6, -0.16, 2.49, 0.77, -0.5,
                    -0.08, 0.33, 1.21, -0.49, -1.74, -0.28, 0.02, 0.11, 1.32, 0.32, 0.81, -1.1, 0.87, 2.1, 0.77, 0.25,
                    0.15,
                ],
            ))
            .input(tensor(
                &[1, 2, 16],
                &[
                    1.79f32, -0.93, -0.11, 0.46, 0.74, -0.44, 0.31, -0.28, 0.12, -0.13, -1.14, -0.02, 0.88, -0.97,
                    -0.24, 0.66, -1.07, 0.18, -1.06, 1.13, 2.31, 2.02, -0.22, 0.74, 0.12, 0.1, 1.55, -1.32, 1.06,
                    -0.05, 1.41, 0.19,
                ],
            ))
            .input(tensor(
                &[1, 2, 16],
                &[
                    -0.67f32, 0.28, 0.74, 0.04, 0.49, -0.52, -2.13, 0.9, 0.7, 0.15, 0.07, 1.04, -0.46, -0.71, -0.19,
                    1.19, -1.39, 1.19, -0.64, -1.1, 1.26, -0.1, -1.3, -0.36, 0.93, 1.19, -0.43, 0.41, 0.71, -0.64,
                    0.36, -0.03,
                ],
            ))
            .no_input()
            .no_input()
            .input(tensor(&[1], &[1i32]))
            .input(tensor(&[], &[2i32]))
            .input(tensor(
                &[2, 8],
                &[
                    1.0f32, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5403023, 0.931326, 0.99036205, 0.99865896, 0.9998136,
                    0.99997413, 0.9999964, 0.9999995,
                ],
            ))
            .input(tensor(
                &[2, 8],
                &[
                    0.0f32,
                    0.0,
                    0.0,
                    0.0,
                    0.0,
                    0.0,
                    0.0,
                    0.0,
                    0.84147096,
                    0.3641867,
                    0.13850287,
                    0.051771592,
                    0.019305779,
                    0.0071967947,
                    0.0026826926,
                    0.0009999998,
                ],
            ))
            .output(tensor(
                &[1, 2, 16],
                &[
                    -0.67f32,
                    0.28,
                    0.74,
                    0.04,
                    0.49,
                    -0.52,
                    -2.13,
                    0.9,
                    0.7,
                    0.15,
                    0.07,
                    1.04,
                    -0.46,
                    -0.71,
                    -0.19,
                    1.19,
                    -0.9658748,
                    0.65395284,
                    0.17290664,
                    -0.4284684,
                    0.80642164,
                    -0.34740636,
                    -1.7889221,
                    0.38221908,
                    0.7945155,
                    0.5773747,
                    -0.1354686,
                    0.78110945,
                    0.020796534,
                    -0.68123436,
                    0.036015477,
                    0.68865657,
                ],
            ))
            .output(tensor(
                &[1, 1, 2, 16],
                &[
                    1.79f32,
                    -0.93,
                    -0.11,
                    0.46,
                    0.74,
                    -0.44,
                    0.31,
                    -0.28,
                    0.12,
                    -0.13,
                    -1.14,
                    -0.02,
                    0.88,
                    -0.97,
                    -0.24,
                    0.66,
                    -0.6791,
                    0.13122001,
                    -1.2644632,
                    1.1968231,
                    2.2891052,
                    2.0203075,
                    -0.22378181,
                    0.73980963,
                    -0.8355377,
                    0.1586862,
                    1.3882481,
                    -1.2597281,
                    1.1043987,
                    -0.035461184,
                    1.4094048,
                    0.19073991,
                ],
            ))
            .output(tensor(
                &[1, 1, 2, 16],
                &[
                    -0.67f32, 0.28, 0.74, 0.04, 0.49, -0.52, -2.13, 0.9, 0.7, 0.15, 0.07, 1.04, -0.46, -0.71, -0.19,
                    1.19, -1.39, 1.19, -0.64, -1.1, 1.26, -0.1, -1.3, -0.36, 0.93, 1.19, -0.43, 0.41, 0.71, -0.64,
                    0.36, -0.03,
                ],
            ))
            .within(1e-3, 1e-5),
        Case::new("next place of two sequences", &OPERATOR, 1)
            .attribute("num_heads", Attribute::Int(2))
            .attribute("kv_num_heads", Attribute::Int(1))
            .input(tensor(
                &[2, 1, 16],
                &[
                    -0.54f32, -0.49, 0.07, 0.03, -0.57, -0.43, 1.11, 0.21, 0.89, 1.2, 0.59, 2.27, -0.83, 0.81, -0.32,
                    1.86, 1.7, -1.95, -0.97, 0.66, 0.79, 0.74, -0.07, 0.46, 0.65, -0.08, 1.03, -2.26, 0.63, -1.03,
                    0.96, -0.23,
                ],
            ))
            .input(tensor(
                &[2, 1, 8],
                &[
                    -0.89f32, 0.37, -0.91, -0.91, -1.57, -0.03, 0.5, 1.02, -0.14, 1.05, 0.02, -0.09, 0.57, 1.06, -0.34,
                    -0.24,
                ],
            ))
            .input(tensor(
                &[2, 1, 8],
                &[
                    -0.16f32, 0.08, -0.9, 1.03, -0.4, 0.46, -0.83, 0.36, 0.39, -0.42, 2.02, 0.37, 1.78, 0.96, -0.66,
                    -0.38,
                ],
            ))
            .input(tensor(
                &[2, 1, 2, 8],
                &[
                    0.44f32, 0.06, 0.05, -0.29, -1.81, -0.23, -2.22, 0.37, -0.73, -0.72, -0.22, 0.27, -1.43, -1.75,
                    -1.07, -2.04, -0.97, 1.59, -1.06, 0.65, -1.37, 0.3, -0.32, -0.06, 0.57, 1.76, 0.19, 0.12, -0.97,
                    0.58, -0.25, 0.83,
                ],
            ))
            .input(tensor(
                &[2, 1, 2, 8],
                &[
                    -0.04f32, 1.74, -1.98, -0.3, 0.88, -0.35, -0.79, -0.27, -1.38, 0.12, 2.44, 1.15, -1.11, -0.87,
                    -0.4, 1.0, -0.82, -0.69, 0.88, 0.86, -0.37, -1.12, -1.55, -0.7, -2.23, 0.75, -0.63, 0.48, 1.87,
                    1.17, -1.15, 0.87,
                ],
            ))
            .input(tensor(&[2], &[2i32, 1]))
            .input(tensor(&[], &[3i32]))
            .output(tensor(
                &[2, 1, 16],
                &[
                    -0.5508171f32,
                    0.3474538,
                    0.054939844,
                    0.86671084,
                    -0.44224536,
                    -0.11003295,
                    -0.67965895,
                    0.47824046,
                    -0.14229932,
                    1.1944965,
                    -1.4520565,
                    0.14487632,
                    0.42128623,
                    -0.15118872,
                    -0.7810891,
                    -0.029290624,
                    0.0740115,
                    -0.49050978,
                    1.7222917,
                    0.49796227,
                    1.2185328,
                    0.4168131,
                    -0.89242125,
                    -0.46356714,
                    0.141646,
                    -0.4754178,
                    1.7860135,
                    0.4705731,
                    1.3387098,
                    0.5330774,
                    -0.8426736,
                    -0.44568035,
                ],
            ))
            .output(tensor(
                &[2, 1, 3, 8],
                &[
                    0.44f32, 0.06, 0.05, -0.29, -1.81, -0.23, -2.22, 0.37, -0.73, -0.72, -0.22, 0.27, -1.43, -1.75,
                    -1.07, -2.04, -0.89, 0.37, -0.91, -0.91, -1.57, -0.03, 0.5, 1.02, -0.97, 1.59, -1.06, 0.65, -1.37,
                    0.3, -0.32, -0.06, -0.14, 1.05, 0.02, -0.09, 0.57, 1.06, -0.34, -0.24, 0.0, 0.0, 0.0, 0.0, 0.0,
                    0.0, 0.0, 0.0,
                ],
            ))
            .output(tensor(
                &[2, 1, 3, 8],
                &[
                    -0.04f32, 1.74, -1.98, -0.3, 0.88, -0.35, -0.79, -0.27, -1.38, 0.12, 2.44, 1.15, -1.11, -0.87,
                    -0.4, 1.0, -0.16, 0.08, -0.9, 1.03, -0.4, 0.46, -0.83, 0.36, -0.82, -0.69, 0.88, 0.86, -0.37,
                    -1.12, -1.55, -0.7, 0.39, -0.42, 2.02, 0.37, 1.78, 0.96, -0.66, -0.38, 0.0, 0.0, 0.0, 0.0, 0.0,
                    0.0, 0.0, 0.0,
                ],
            ))
            .within(1e-3, 1e-5),
        Case::new("a window", &OPERATOR, 1)
            .attribute("num_heads", Attribute::Int(1))
            .attribute("kv_num_heads", Attribute::Int(1))
            .attribute("local_window_size", Attribute::Int(1))
            .input(tensor(
                &[1, 3, 8],
                &[
                    1.16f32, -0.75, -0.95, -0.11, -1.6, 1.47, -2.41, -1.11, -0.27, -0.23, 0.17, 0.27, -0.21, 1.14,
                    -2.14, -0.0, -0.71, 0.13, 0.22, -0.91, -0.64, 0.79, 0.35, -0.68,
                ],
            ))
            .input(tensor(
                &[1, 3, 8],
                &[
                    2.04f32, 2.31, -1.46, 0.3, 2.51, 0.78, 0.22, -0.21, -0.54, -0.21, -0.55, 0.74, -0.4, -0.44, -1.2,
                    -0.05, -0.89, -0.18, 1.04, 0.37, 0.5, 0.36, 0.06, -0.13,
                ],
            ))
            .input(tensor(
                &[1, 3, 8],
                &[
                    -0.31f32, 0.76, -1.08, 1.34, 0.03, -0.75, -0.49, -0.68, 0.16, -0.72, 1.14, -0.78, -2.27, -0.73,
                    -2.01, -0.04, 1.06, 0.65, -1.34, -0.76, 1.78, 0.32, 0.0, 1.06,
                ],
            ))
            .no_input()
            .no_input()
            .input(tensor(&[1], &[2i32]))
            .input(tensor(&[], &[3i32]))
            .output(tensor(
                &[1, 3, 8],
                &[
                    -0.31f32, 0.76, -1.08, 1.34, 0.03, -0.75, -0.49, -0.68, 0.16, -0.72, 1.14, -0.78, -2.27, -0.73,
                    -2.01, -0.04, 1.06, 0.65, -1.34, -0.76, 1.78, 0.32, 0.0, 1.06,
                ],
            ))
            .within(1e-3, 1e-5),
        Case::new("packed, interleaved rotary", &OPERATOR, 1)
            .attribute("num_heads", Attribute::Int(1))
            .attribute("kv_num_heads", Attribute::Int(1))
            .attribute("do_rotary", Attribute::Int(1))
            .attribute("rotary_interleaved", Attribute::Int(1))
            .input(tensor(
                &[1, 2, 48],
                &[
                    2.45f32, 1.3, 0.14, 0.35, 0.62, -0.61, -1.06, 0.05, -0.95, -0.06, 0.1, 2.34, -0.85, -0.12, -0.16,
                    0.44, 1.05, -0.49, -0.82, -1.64, -0.93, 0.54, 0.05, -1.02, -0.37, 0.03, 0.5, -0.59, -0.25, -1.82,
                    -1.15, 1.62, -2.19, -0.34, 0.22, -0.37, -0.81, -0.06, -0.0, -0.08, -1.88, -0.15, -0.86, -0.55,
                    0.23, 0.64, 0.9, -0.5, 0.92, 1.17, 1.14, 1.39, -0.15, -0.17, 0.83, -1.37, 0.21, -0.53, -0.37,
                    -1.74, -0.89, -0.02, 0.89, 0.99, -0.08, -0.19, -0.83, 0.4, -0.25, 0.61, 1.75, -0.03, -1.5, -0.86,
                    -1.46, -1.2, 1.31, 0.23, -1.52, 0.65, 1.26, -0.36, -0.68, -0.34, 0.28, 0.64, 1.18, 1.21, 1.19,
                    1.36, 0.66, -1.53, -0.13, 0.31, -0.38, 0.91,
                ],
            ))
            .no_input()
            .no_input()
            .no_input()
            .no_input()
            .input(tensor(&[1], &[1i32]))
            .input(tensor(&[], &[2i32]))
            .input(tensor(
                &[2, 8],
                &[
                    1.0f32, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5403023, 0.931326, 0.99036205, 0.99865896, 0.9998136,
                    0.99997413, 0.9999964, 0.9999995,
                ],
            ))
            .input(tensor(
                &[2, 8],
                &[
                    0.0f32,
                    0.0,
                    0.0,
                    0.0,
                    0.0,
                    0.0,
                    0.0,
                    0.0,
                    0.84147096,
                    0.3641867,
                    0.13850287,
                    0.051771592,
                    0.019305779,
                    0.0071967947,
                    0.0026826926,
                    0.0009999998,
                ],
            ))
            .output(tensor(
                &[1, 2, 16],
                &[
                    -2.19f32,
                    -0.34,
                    0.22,
                    -0.37,
                    -0.81,
                    -0.06,
                    0.0,
                    -0.08,
                    -1.88,
                    -0.15,
                    -0.86,
                    -0.55,
                    0.23,
                    0.64,
                    0.9,
                    -0.5,
                    0.16847488,
                    -0.35367233,
                    -0.39525434,
                    -0.34949154,
                    -0.06485864,
                    0.41853115,
                    0.80666673,
                    0.80186456,
                    0.2187009,
                    0.88226,
                    0.1790962,
                    -1.2199436,
                    -0.01610173,
                    0.41440675,
                    0.024971616,
                    0.46389848,
                ],
            ))
            .within(1e-3, 1e-5),
    ]
}
