//! What to do about models that do not load. Texts of refusals are Triton's where it has one, and people search for them: the way
//! out stands beside them.

use halimede_serving::Options;

/// Backends of Triton's own that this server does not have, and the way out for their models.
const REMEDIES: [(&str, &str); 12] = [
    (
        "pytorch",
        "export it to ONNX where it was made (torch.onnx.export), or load it with torch in a Python model (backend: \
         \"python\")",
    ),
    ("tensorflow", "convert it: python -m tf2onnx.convert --saved-model DIR --output model.onnx"),
    ("tensorrt", "a plan runs on one kind of NVIDIA's GPUs alone: serve the ONNX file that it was built from"),
    ("openvino", "serve the model that the IR was converted from, as ONNX; no tool converts an IR back"),
    ("fil", "convert the trees to ONNX (onnxmltools: convert_xgboost, convert_lightgbm; skl2onnx): they run here"),
    ("dali", "do the same steps in a Python model (backend: \"python\"), or in ONNX before the model"),
    ("paddle", "convert it: paddle2onnx --model_dir DIR --save_file model.onnx"),
    ("mxnet", "export it to ONNX where it was made"),
    ("vllm", "a server for language models, which needs a GPU: keep it on the machine that has one"),
    ("tensorrtllm", OF_TENSORRT_LLM),
    ("tensorrt_llm", OF_TENSORRT_LLM),
    ("identity_fp32", "it is one of NVIDIA's tests: the backend 'identity' does the same"),
];

/// The way out for the models of a backend that nobody knows, which is somebody's own library.
const OF_A_LIBRARY: &str = "libraries of backends are not loaded: write it as a Python model (backend: \"python\"), or export the model to ONNX";

/// The way out for a folder without a configuration and without versions: what backend its name speaks of says nothing then.
pub(super) const OF_NO_MODEL: &str = "if this is no model, move it out of the repository; if it is one, put its file into the folder of a version, \
                                      as MODEL/1/model.onnx or MODEL/1/model.py";

/// The way out for models of TensorRT-LLM.
const OF_TENSORRT_LLM: &str =
    "a server for language models, which needs NVIDIA's GPUs: keep it on the machine that has one";

/// The way out where a platform is named that says no backend.
const OF_PLATFORM: &str = "write the backend instead, such as backend: \"onnxruntime\" or \"python\"";

/// The way out for profiles of instances.
const OF_PROFILE: &str = "remove 'profile' from the group: it is for plans of TensorRT";

/// The way out for a model whose first dimension is no batch.
const OF_BATCHES: &str =
    "write max_batch_size: 0 and dims with all dimensions, or export the model with a first dimension of any size";

/// The way out for metrics of a model.
const OF_METRICS: &str = "complete the entry of model_metrics, or remove it";

/// The way out for what only plans of TensorRT have.
const OF_PLANS: &str =
    "remove is_shape_tensor and is_non_linear_format_io from config.pbtxt: they are for plans of TensorRT";

/// The way out where an input or output lacks a field.
const OF_FIELD: &str =
    "write it in config.pbtxt; of an ONNX model input and output may be left out as a whole: its file tells them";

/// The way out for parameters.
const OF_PARAMETERS: &str = "correct the value in 'parameters' of config.pbtxt";

/// The way out for settings of backends.
const OF_BACKEND_CONFIG: &str = "correct the flag --backend-config";

/// The way out where warming up fails.
const OF_WARMUP: &str = "correct model_warmup in config.pbtxt (its files lie in MODEL/warmup/), or remove it: the first request then takes longer";

/// The way out where the steps of an ensemble do not fit together.
const OF_STEPS: &str = "correct the maps of the steps: each tensor is an input of the ensemble or written by one step, and read by another or \
                        an output, with one datatype and shape (docs/ensembles.md)";

/// Ways out by what the text of a refusal says, the first that fits: all words of a row are in the text.
const BY_TEXT: &[(&[&str], &str)] = &[
    // What a member of an ensemble lacks stands behind this in the text, and is not the ensemble's to repair.
    (&["depends on '"], "repair the members that are named: this report says of each why it does not load"),
    // What lies in the repository.
    (
        &["failed to read text proto"],
        "correct the line that is named; config.pbtxt has the fields of Triton's model_config.proto",
    ),
    (
        &["failed to open text file", "No such file"],
        "write that file, or leave out --disable-auto-complete-config: the model's own file then tells what it is",
    ),
    (
        &["failed to open text file"],
        "make that a file of text that this user may read; it can be a link to one, but no folder and no pipe",
    ),
    (
        &["Could not determine backend"],
        "put the model's file into the folder of a version, as MODEL/1/model.onnx or MODEL/1/model.py, or name its \
         backend in config.pbtxt",
    ),
    (
        &["at least one version must be available"],
        "put the model's file into MODEL/VERSION/, VERSION being a number from 1 on without zeros in front, or name \
         versions in version_policy that are there",
    ),
    (
        &["directory name must equal model name"],
        "give the folder the name that config.pbtxt says, or remove 'name' there: it is the folder's then",
    ),
    (&["not unique across all model repositories"], "rename one of the two folders, or name one repository alone"),
    (
        &["unable to find '", "for model instance"],
        "put the file there, or write the name of the one that is there into default_model_filename",
    ),
    (
        &["Python model file not found"],
        "put the script there, or write the name of the one that is there into default_model_filename",
    ),
    (
        &["unable to find Python backend based backend library"],
        "put the backend's model.py there, or say with --backend-directory where it lies",
    ),
    (
        &["is outside"],
        "put the file into the model's folder, and name it by its path from the folder that the text names",
    ),
    (&["must specify 'version policy'"], "remove the empty version_policy"),
    (&["label file"], "put the file into the model's folder, or remove label_filename from the output"),
    // Backends and platforms.
    (&["unable to find backend library for backend"], OF_A_LIBRARY),
    (&["which this server does not load"], OF_A_LIBRARY),
    (&["escapes backend directory"], "write the backend's name alone, without a path, into 'backend' and 'runtime'"),
    (&["unable to find backend library"], "remove 'runtime' from config.pbtxt: the backend here is built in"),
    (
        &["unexpected 'platform' and 'backend' pair"],
        "remove 'platform' from config.pbtxt: 'backend' alone says what the model is",
    ),
    (&["unexpected platform type"], OF_PLATFORM),
    (&["unknown platform"], OF_PLATFORM),
    (
        &["must have platform type", "empty backend type"],
        "remove 'backend' from config.pbtxt: an ensemble has the platform \"ensemble\" alone",
    ),
    (
        &["ensemble scheduling must be set"],
        "write ensemble_scheduling with its steps, or remove platform: \"ensemble\"",
    ),
    (
        &["ensemble scheduling cannot be set"],
        "write platform: \"ensemble\" for an ensemble, or remove ensemble_scheduling",
    ),
    (
        &["asks for what this server cannot do yet"],
        "remove what is named from config.pbtxt, if the model's answers are good without it",
    ),
    // Instances.
    (&["has kind KIND_GPU"], OF_GPU_INSTANCES),
    (&["invalid or unsupported gpu id"], OF_GPU_INSTANCES),
    (&["but specifies one or more GPUs"], "remove 'gpus' from the group"),
    (&["has unexpected kind"], OF_GPU_INSTANCES),
    (&["specifies profile field"], OF_PROFILE),
    (&["specifies invalid profile"], OF_PROFILE),
    (&["instance group", "come to"], "lower 'count' in instance_group"),
    (&["has places for"], "lower the field that is named, or 'count' in instance_group"),
    (&["must specify one or more 'instance group's"], "write an instance_group, or remove the empty one"),
    (
        &["Resource count for", "is limited to"],
        "serve with --rate-limit-resource=NAME:COUNT of at least what is required, or lower 'count' of the resource in the \
         instance group's rate_limiter",
    ),
    (
        &["present as both global and device-specific"],
        "write 'global' alike wherever a rate_limiter of the repository names the resource",
    ),
    // Batches, queues and caches.
    (
        &["'max_batch_size' must be non-negative"],
        "write max_batch_size: 0 for a model without batches, else the largest batch",
    ),
    (&["does not support batching"], OF_BATCHES),
    (&["for the model to support batching the shape should have"], OF_BATCHES),
    (
        &["Response Cache does not currently support"],
        "remove response_cache from config.pbtxt: the answers depend on more than the request",
    ),
    (&["dynamic batching preferred size"], "write sizes from 1 to max_batch_size into preferred_batch_size"),
    (&["default priority level must"], "write a default_priority_level from 1 to priority_levels"),
    (&["priority queue policy must"], "write keys from 1 to priority_levels into priority_queue_policy"),
    (&["preserve_ordering"], "remove preserve_ordering, or what it does not go with"),
    (&["metric control must"], OF_METRICS),
    (&["metric identifier must"], OF_METRICS),
    (&["histogram options must"], "write the bounds of 'buckets' in model_metrics, or remove the entry"),
    // Sequences.
    (&["use_growable_memory"], "write use_same_buffer_for_input_output: true beside it, or remove use_growable_memory"),
    (&["sequence batching minimum slot utilization"], "write a minimum_slot_utilization from 0 to 1"),
    (
        &["sequence batching"],
        "correct sequence_batching in config.pbtxt: docs/sequences.md says what each control takes",
    ),
    (
        &["control", "data type"],
        "correct data_type of the control in sequence_batching: docs/sequences.md says what each control takes",
    ),
    (
        &["sequence control"],
        "write the input of the model that takes the signal, with its datatype, into control_input: `halimede explain` \
         prints the model's inputs",
    ),
    (
        &["initial_state"],
        "correct initial_state of that state in sequence_batching: docs/sequences.md shows one; files of it lie in \
         MODEL/initial_state/",
    ),
    (
        &[" state '"],
        "write a tensor of the model with its datatype and shape into 'state' of sequence_batching: `halimede explain` \
         prints the model's inputs and outputs",
    ),
    // Inputs and outputs computed from a batch.
    (&["ragged input"], "write dims: [ -1 ] for it, without 'optional': docs/ragged-batching.md shows a model"),
    (&["batch input"], "correct batch_input in config.pbtxt: docs/ragged-batching.md shows a model"),
    (&["batch output"], "correct batch_output in config.pbtxt: docs/ragged-batching.md shows a model"),
    (&["unknown source input name"], "write the name of one of the model's inputs into source_input"),
    (&["target output name"], "write the names of the model's outputs into target_name, each once"),
    // Inputs and outputs.
    (&["TensorRT"], OF_PLANS),
    (&["Non-linear IO format"], OF_PLANS),
    (&["NHWC/NCHW require 3 dims"], "write three dims, or remove 'format' of the input"),
    (&["must specify 'data_type'"], OF_FIELD),
    (
        &["must specify 'dims'"],
        "write them in config.pbtxt; of an ONNX model input and output may be left out as a whole: its file tells them",
    ),
    (&["must specify 'name'"], OF_FIELD),
    (&["cannot have empty reshape"], "remove 'reshape': without batches a scalar is dims: [ 1 ] alone"),
    (&["integer >= 1, or -1"], "write -1 for a dimension of any size, and the size of each other one"),
    (&["dims and reshape"], "write a 'reshape' with as many elements as 'dims', also between dimensions of -1"),
    (&["exceeds maximum size"], "write the sizes that the model really has, or -1 for any"),
    (
        &["inputs, model provides"],
        "name all inputs of the model, or leave out input and output: an ONNX file tells them; `halimede explain` prints \
         them",
    ),
    (
        &["optional input"],
        "write max_batch_size: 0, or remove 'optional': a batch needs every input of each of its requests",
    ),
    (&["unexpected inference"], "write one of the names that are allowed: `halimede explain` prints what each is"),
    (&["expects datatype"], "write the datatype that the model provides, as TYPE_STRING for TYPE_BYTES"),
    (&["unsupported datatype"], "write the datatype that the model has: `halimede explain` prints it"),
    (&["scalar tensor"], "write dims: [ 1 ]"),
    (
        &["the model expects", "dimensions"],
        "write the model's own shape into dims, without the batch where max_batch_size is above 0; `halimede explain` \
         prints it",
    ),
    (
        &["Unsupported ONNX Type"],
        "export the model with tensors alone as inputs and outputs (skl2onnx: the option zipmap=False)",
    ),
    // Its text says how to name another interpreter with --backend-config.
    (
        &["cannot import numpy"],
        "install numpy for the interpreter that is named (INTERPRETER -m pip install numpy), or name one that has it: \
         --backend-config=python,interpreter=PATH, or an environment of the model's own (docs/python-models.md)",
    ),
    // Parameters, warm-up, flags.
    (&["execution_mode"], "write 0 or 1 into the parameter, or remove it: it has no effect here"),
    (&["failed to convert '"], OF_PARAMETERS),
    (&["parameter '"], OF_PARAMETERS),
    (&["--backend-config"], OF_BACKEND_CONFIG),
    (&["backend setting"], OF_BACKEND_CONFIG),
    (&["warmup sample"], OF_WARMUP),
    (&["warmup setting"], OF_WARMUP),
    (&["warmup input"], OF_WARMUP),
    (&["warmup data"], OF_WARMUP),
    (
        &["would not fit into memory"],
        "lower 'count' in instance_group or max_batch_size, raise --memory-limit, or take a machine with more memory",
    ),
    // Ensembles.
    (
        &["contains models that are not available or ambiguous"],
        "put the members that are named into the repository, or correct model_name of the steps",
    ),
    (&["which ensemble '"], "put the member that is named into the repository, or correct model_name of the step"),
    (
        &["whose required version"],
        "write model_version: -1 for the newest into the step, or let version_policy of the member load that one",
    ),
    (&["circular dependency"], "take one of the ensembles that are named out of the steps of the other"),
    (
        &["instance group should not be specified"],
        "remove instance_group from config.pbtxt: the members of an ensemble have their own",
    ),
    (
        &["optimization should not be specified"],
        "remove optimization from config.pbtxt: the members of an ensemble have their own",
    ),
    (
        &["model_warmup can not be specified"],
        "remove model_warmup from config.pbtxt: the members of an ensemble have their own",
    ),
    (&["must specify '", "ensemble"], "complete ensemble_scheduling: docs/ensembles.md shows one"),
    (&["allows maximum batch size"], "lower max_batch_size of the ensemble, or raise that of the member"),
    (
        &["different decoupled models"],
        "let a step read tensors of one decoupled member alone: nobody could say which of their responses belong together",
    ),
    (&["in ensemble "], OF_STEPS),
    (&["ensemble tensor '"], OF_STEPS),
    (&["ensemble input '"], OF_STEPS),
    (&["ensemble output '"], OF_STEPS),
    (&["output '", "is not written"], OF_STEPS),
    // Python.
    (
        &["No module named"],
        "install the module for the Python that runs the model (python3 in PATH), or give the model an environment of its \
         own: EXECUTION_ENV_PATH, docs/python-models.md",
    ),
    (
        &["EXECUTION_ENV_PATH"],
        "name a folder, or an archive as conda-pack makes them, that has bin/python3: docs/python-models.md",
    ),
    (
        &["canonical path"],
        "name a folder, or an archive as conda-pack makes them, that is there: docs/python-models.md",
    ),
    (
        &["cannot start the Python interpreter"],
        "install Python 3 with numpy and put it into PATH, or name one: EXECUTION_ENV_PATH, docs/python-models.md",
    ),
    // ONNX files.
    (
        &["cannot open external data"],
        "put the file that is named beside the model's own: an export with external data writes both, and both are to be copied",
    ),
    (&["external data '"], "copy the file with external data anew, beside the model's own, or export the model again"),
    (
        &["not an ONNX model"],
        "bring the file anew (`git lfs pull`, where it is a pointer of a few lines), or export the model again",
    ),
    // Its text names the opset, too.
    (
        &["operator '", "is not known"],
        "the operator is not known here: export the model with operators of ONNX alone, or bring the operator \
         as a function of the model; libraries of operators are not loaded",
    ),
    (
        &["opset ", "is not known"],
        "convert the model with onnx.version_converter, or export it again for an opset that is known",
    ),
    (&["IR version ", "is not known"], "export the model again for an older IR version"),
    // Defects of ours.
    (&["panicked"], "that is a defect of this server: report it with the model"),
];

/// Where no text fits, by the backend.
const OF_ONNX: &str = "correct what is named in config.pbtxt, or check the file with onnx.checker and export it again; what ONNX Runtime loads \
                       and this server does not is a defect to report";
const OF_PYTHON: &str = "the text is that of the model's own code, or of Python: change the model's script, or give it what it asks for; \
                         docs/python-models.md says what it finds here";
const OF_OTHERS: &str = "correct what is named in the model's config.pbtxt";

/// The way out for a model whose instances are on GPUs.
const OF_GPU_INSTANCES: &str = "write KIND_AUTO or KIND_CPU in its instance_group, or leave the group out";

/// The way out for a model whose backend is not here.
pub(super) fn of_backend(backend: &str) -> &'static str {
    REMEDIES.iter().find(|(name, _)| *name == backend).map_or(OF_A_LIBRARY, |(_, remedy)| remedy)
}

/// The way out for a model of a backend that a server without flags does not have; `None` for those that it has.
pub(in crate::commands) fn of_foreign(backend: &str) -> Option<&'static str> {
    let options = Options::default();
    let is_here = ["onnxruntime", "python"].contains(&backend)
        || options.backends.iter().any(|known| known.name() == backend)
        || options.backend_directory.join(backend).is_dir();
    (!is_here).then(|| of_backend(backend))
}

/// The way out for a model of a backend that is here and that was refused with this text.
pub(super) fn of_text(text: &str, backend: &str) -> &'static str {
    by_text(text).unwrap_or(match backend {
        "onnxruntime" => OF_ONNX,
        "python" => OF_PYTHON,
        _ => OF_OTHERS,
    })
}

fn by_text(text: &str) -> Option<&'static str> {
    let fits = |words: &[&str]| words.iter().all(|word| text.contains(word));
    BY_TEXT.iter().find(|(words, _)| fits(words)).map(|(_, remedy)| *remedy)
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn every_backend_has_a_way_out() {
        assert!(of_backend("pytorch").contains("torch.onnx.export"));
        assert!(of_backend("company_secret").starts_with("libraries of backends are not loaded"));
        for (index, (name, remedy)) in REMEDIES.iter().enumerate() {
            assert!(!remedy.is_empty());
            assert!(REMEDIES[..index].iter().all(|(other, _)| other != name), "'{name}' is there twice");
        }
    }

    #[test]
    fn backends_that_are_here_are_not_foreign() {
        for backend in ["onnxruntime", "python", "identity", "sequence"] {
            assert_eq!(of_foreign(backend), None, "{backend}");
        }
        assert_eq!(of_foreign("tensorrt"), Some(of_backend("tensorrt")));
        assert_eq!(of_foreign("company_secret"), Some(OF_A_LIBRARY));
    }

    #[test]
    fn the_way_out_fits_the_text() {
        for (text, expected) in [
            ("must specify 'model_name' in step 0 of ensemble 'e'", "complete ensemble_scheduling"),
            ("model input 'x' must specify 'dims' for m", "write them in config.pbtxt"),
            ("model 'm': /m/1/model.onnx: not an ONNX model: cut. The file may be", "bring the file anew"),
            ("instance group m_0 of model m has kind KIND_GPU but server does not support GPUs", "write KIND_AUTO"),
            (
                "ensemble 'e' depends on 'm' which has no loaded version. Model 'm' loading failed with error: unable to find \
                 backend library for backend 'dali'",
                "repair the members",
            ),
            (
                "node 'y' (acme.Own (opset 1)): not supported: operator 'Own' of domain 'acme' is not known",
                "the operator is not known here",
            ),
            ("opset 99 is not known (1 to 24)", "convert the model with onnx.version_converter"),
            ("tensor 'W': cannot open external data 'weights.bin': No such file", "put the file that is named beside"),
            ("external data 'weights.bin' has 4 bytes; the model asks for 8 from 0 on", "copy the file with external"),
            (
                "the Python interpreter /usr/bin/python3 cannot import numpy, which Python models need: No module named \
                 'numpy'. Install it there, or name another interpreter with --backend-config=python,interpreter=PATH",
                "install numpy for the interpreter",
            ),
            ("ModuleNotFoundError: No module named 'torch'", "install the module"),
        ] {
            let remedy = of_text(text, "onnxruntime");
            assert!(remedy.starts_with(expected), "{text}: {remedy}");
        }
        assert_eq!(of_text("no licence", "python"), OF_PYTHON);
    }

    /// Texts with which configurations are refused, as they stand in the source of `serving`.
    fn refusals(path: &Path, found: &mut Vec<String>) {
        if path.is_dir() {
            // What tests say is no refusal.
            let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
            entries.filter(|entry| !entry.ends_with("tests")).for_each(|entry| refusals(&entry, found));
            return;
        }
        let source = fs::read_to_string(path).unwrap();
        let source = source.split("#[cfg(test)]").next().unwrap();
        for rest in source.split("invalid!(").skip(1) {
            let Some((_, rest)) = rest.split_once('"') else { continue };
            let text = rest.split_once('"').unwrap().0;
            // A line that ends with a backslash goes on behind the blanks of the next one.
            found.push(text.split("\\\n").map(str::trim_start).collect());
        }
    }

    #[test]
    fn every_refusal_of_a_configuration_has_its_way_out() {
        let serving = Path::new(env!("CARGO_MANIFEST_DIR")).join("../serving/src");
        let mut texts = Vec::new();
        for place in
            ["config/complete", "config/ensemble", "config/validate", "config/parameters.rs", "config/support.rs"]
        {
            refusals(&serving.join(place), &mut texts);
        }
        assert!(texts.len() > 80, "{} texts: where did the others go?", texts.len());
        // The two begin with a place that the code before them puts together.
        texts.retain(|text| !text.starts_with("{place}"));
        let without: Vec<&String> = texts.iter().filter(|text| by_text(text).is_none()).collect();
        assert!(without.is_empty(), "no way out is known for {without:#?}");
    }
}
