//! Finds the name that someone probably meant.

/// The candidate closest to `name`, if any is close enough to be a slip of the fingers.
pub(super) fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    const CHARS_MAX: usize = 64;
    if name.len() > CHARS_MAX {
        return None;
    }
    let limit = (name.len() / 3).max(2);
    let name = name.to_ascii_lowercase();
    candidates
        .map(|candidate| {
            let lower = candidate.to_ascii_lowercase();
            // "batch_size" for "max_batch_size": one word forgotten.
            let forgotten = name.len() >= 4 && lower.contains(&name);
            (if forgotten { 1 } else { distance(&name, &lower) }, candidate)
        })
        .filter(|(distance, candidate)| *distance <= limit && *distance < candidate.len())
        .min()
        .map(|(_, candidate)| candidate)
}

/// The end of an error message that offers `name`.
pub(super) fn suggestion(name: &str) -> String {
    format!("; did you mean \"{name}\"?")
}

/// Edits (insert, delete, replace one byte) that turn one name into the other.
fn distance(a: &str, b: &str) -> usize {
    let b = b.as_bytes();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (a, b, expected) in [("", "", 0), ("", "abc", 3), ("kitten", "sitting", 3), ("dims", "dim", 1)] {
            assert_eq!(distance(a, b), expected);
            assert_eq!(distance(b, a), expected);
        }
    }

    #[test]
    fn slips_are_recognised_and_nonsense_is_not() {
        let names = ["name", "data_type", "dims", "max_batch_size", "TYPE_FP32"];
        for (typed, expected) in [
            ("datatype", Some("data_type")),
            ("Dims", Some("dims")),
            ("shape", None),
            ("max_batchsize", Some("max_batch_size")),
            ("batch_size", Some("max_batch_size")),
            ("type_fp32", Some("TYPE_FP32")),
            ("", None),
        ] {
            assert_eq!(nearest(typed, names.into_iter()), expected, "{typed}");
        }
        assert_eq!(nearest(&"x".repeat(1 << 20), names.into_iter()), None);
    }
}
