use crate::Report;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Failures that are known, each with its reason: `case: reason` a line; `#` begins a comment. What chance
/// decides is listed as `?case: reason`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ExpectedFailures(
    /// Whether a case may pass too.
    BTreeMap<String, bool>,
);

impl ExpectedFailures {
    /// Reads the list; an error names the line that is none.
    pub fn parse(text: &str) -> Result<ExpectedFailures, String> {
        let mut list = BTreeMap::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (line, by_chance) = line.strip_prefix('?').map_or((line, false), |rest| (rest, true));
            let entry = line.split_once(':').map(|(case, reason)| (case.trim(), reason.trim()));
            match entry {
                Some((case, reason)) if !case.is_empty() && !reason.is_empty() => {
                    list.insert(case.to_owned(), by_chance);
                }
                _ => return Err(format!("line {}: expected 'case: reason', got '{line}'", index + 1)),
            }
        }
        Ok(ExpectedFailures(list))
    }

    /// The failures of a report as a list.
    pub fn of(report: &Report) -> String {
        let mut text = String::new();
        for failure in &report.failures {
            let reason = failure.to_string();
            let reason = reason.strip_prefix(&failure.case).unwrap_or(&reason).trim_start_matches(": ");
            // Writing into a string cannot fail.
            let _ = writeln!(text, "{}: {}", failure.case, reason.replace('\n', " "));
        }
        text
    }

    /// How a report departs from the list: new failures, and listed ones that passed.
    pub fn differences(&self, report: &Report) -> Vec<String> {
        let new = report.failures.iter().filter(|failure| !self.0.contains_key(&failure.case));
        let new = new.map(|failure| format!("not listed as failing: {failure}"));
        let mended = report.passes.iter().filter(|case| self.0.get(*case) == Some(&false));
        new.chain(mended.map(|case| format!("passes now, take it off the list: {case}"))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Failure;

    #[test]
    fn lists_are_read_back_and_differences_named() {
        let mut report =
            Report { failures: vec![Failure::new("a", Some("Add (opset 14)"), "x: y")], ..Report::default() };
        let list = ExpectedFailures::parse(&ExpectedFailures::of(&report)).unwrap();
        assert!(list.differences(&report).is_empty());
        report.failures.push(Failure::new("b", None, "new"));
        report.passes.push("a".to_owned());
        assert_eq!(list.differences(&report).len(), 2);
        let list = ExpectedFailures::parse("?a: random numbers").unwrap();
        assert_eq!(list.differences(&report).len(), 1, "a may pass and may fail");
        assert!(ExpectedFailures::parse("no reason").is_err());
        assert!(ExpectedFailures::parse("# comment\n\n").unwrap().0.is_empty());
    }
}
