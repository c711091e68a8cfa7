use std::fs;
use std::path::{Path, PathBuf};

/// A model with inputs and the outputs that they must give.
#[derive(Debug, Clone)]
pub struct TestCase {
    /// The name of its folder, or of the model's file.
    pub name: String,
    /// The model: a file, or a folder with one and its external data.
    pub model: PathBuf,
    /// Inputs with outputs; a case without any cannot be checked.
    pub data: Vec<DataSet>,
}

/// The files of one `test_data_set_*` folder, in the model's order.
#[derive(Debug, Clone)]
pub struct DataSet {
    /// The folder.
    pub path: PathBuf,
    /// `input_0.pb`, `input_1.pb`, ….
    pub inputs: Vec<PathBuf>,
    /// `output_0.pb`, `output_1.pb`, ….
    pub outputs: Vec<PathBuf>,
}

/// Why no test case was found.
#[derive(Debug, thiserror::Error)]
pub enum DiscoverError {
    /// A folder could not be listed.
    #[error("cannot read '{}': {error}", path.display())]
    Read {
        /// The folder.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// Nothing there looks like a test case.
    #[error(
        "'{}' holds no test case: expected a model.onnx with test_data_set_0/input_0.pb and output_0.pb beside it, \
         or folders of such", .0.display()
    )]
    Nothing(PathBuf),
}

/// Folders within folders that are looked into.
const MAX_DEPTH: usize = 4;

/// The test cases at `path`: a case's folder, a folder of such folders, or a model's file with its data
/// beside it. In order of name.
pub fn discover(path: &Path) -> Result<Vec<TestCase>, DiscoverError> {
    let mut cases = Vec::new();
    if path.is_file() {
        cases.push(TestCase {
            name: name(path.parent().filter(|p| p.file_name().is_some()).unwrap_or(path)),
            model: path.to_owned(),
            data: data_sets(path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")))?,
        });
    } else {
        walk(path, MAX_DEPTH, &mut cases)?;
    }
    if cases.is_empty() { Err(DiscoverError::Nothing(path.to_owned())) } else { Ok(cases) }
}

fn walk(folder: &Path, depth: usize, cases: &mut Vec<TestCase>) -> Result<(), DiscoverError> {
    let entries = list(folder)?;
    let data = data_sets(folder)?;
    let is_model = |entry: &&PathBuf| entry.extension().is_some_and(|e| e == "onnx");
    let models: Vec<&PathBuf> = entries.iter().filter(is_model).collect();
    let model = match models[..] {
        [only] => Some(only),
        _ => models.into_iter().find(|model| name(model) == "model.onnx"),
    };
    if let Some(model) = model
        && (!data.is_empty() || name(model) == "model.onnx")
    {
        cases.push(TestCase { name: name(folder), model: model.clone(), data });
        return Ok(());
    }
    for entry in entries.iter().filter(|entry| entry.is_dir()) {
        if depth > 0 {
            walk(entry, depth - 1, cases)?;
        }
    }
    Ok(())
}

fn data_sets(folder: &Path) -> Result<Vec<DataSet>, DiscoverError> {
    let mut sets = Vec::new();
    for entry in list(folder)? {
        if entry.is_dir() && name(&entry).starts_with("test_data_set_") {
            sets.push(DataSet { inputs: numbered(&entry, "input"), outputs: numbered(&entry, "output"), path: entry });
        }
    }
    Ok(sets)
}

/// `prefix_0.pb`, `prefix_1.pb` and so on, as far as they go.
fn numbered(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    (0..).map(|index| folder.join(format!("{prefix}_{index}.pb"))).take_while(|path| path.is_file()).collect()
}

fn list(folder: &Path) -> Result<Vec<PathBuf>, DiscoverError> {
    let read = || fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, std::io::Error>>();
    let mut entries = read().map_err(|error| DiscoverError::Read { path: folder.to_owned(), error })?;
    entries.sort();
    Ok(entries)
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
