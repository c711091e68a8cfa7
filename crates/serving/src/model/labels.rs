//! Names of classes, one per line of a file.

use std::{fs, path::Path};

use crate::{error::Error, paths::is_inside};

/// The lines of the label file `file` in the model's directory, in whatever encoding they are.
///
/// # Errors
/// The file is not there, or outside the directory.
pub(crate) fn read_labels(directory: &Path, file: &str, output: &str, model: &str) -> Result<Vec<Vec<u8>>, Error> {
    let path = directory.join(file);
    if !is_inside(file) {
        return Err(Error::unsupported(format!(
            "label file path '{}' for output '{output}' in model '{model}' is outside model directory",
            path.display()
        )));
    }
    let text = fs::read(&path)
        .map_err(|error| Error::internal(format!("unable to open label file {}: {error}", path.display())))?;
    let text = text.strip_suffix(b"\n").unwrap_or(&text);
    let lines = text.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    Ok(lines.map(<[u8]>::to_vec).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_the_bytes_of_their_lines() {
        let directory = std::env::temp_dir().join(format!("halimede-labels-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let read = |text: &[u8]| {
            fs::write(directory.join("labels.txt"), text).unwrap();
            read_labels(&directory, "labels.txt", "y", "m").unwrap()
        };
        // In Latin 1.
        assert_eq!(read(b"caf\xe9\r\n\nlast"), [&b"caf\xe9"[..], b"", b"last"]);
        assert_eq!(read(b"one\n\n"), [&b"one"[..], b""]);
        assert!(read_labels(&directory, "../labels.txt", "y", "m").unwrap_err().message.contains("is outside"));
        fs::remove_dir_all(directory).unwrap();
    }
}
