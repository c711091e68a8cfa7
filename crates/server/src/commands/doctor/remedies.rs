//! What to do about models of backends that are not here.

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
    ("tensorrtllm", "a server for language models, which needs NVIDIA's GPUs: keep it on the machine that has one"),
    ("tensorrt_llm", "a server for language models, which needs NVIDIA's GPUs: keep it on the machine that has one"),
    ("identity_fp32", "it is one of NVIDIA's tests: the backend 'identity' does the same"),
];

/// The way out for a model whose instances are on GPUs.
pub(super) const OF_GPU_INSTANCES: &str = "write KIND_AUTO or KIND_CPU in its instance_group, or leave the group out";

/// The way out for a model whose backend is not here. A backend that nobody knows is somebody's own library.
pub(super) fn of(backend: &str) -> &'static str {
    REMEDIES.iter().find(|(name, _)| *name == backend).map_or(
        "libraries of backends are not loaded: write it as a Python model (backend: \"python\"), or export the model to ONNX",
        |(_, remedy)| remedy,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_backend_has_a_way_out() {
        assert!(of("pytorch").contains("torch.onnx.export"));
        assert!(of("company_secret").starts_with("libraries of backends are not loaded"));
        for (index, (name, remedy)) in REMEDIES.iter().enumerate() {
            assert!(!remedy.is_empty());
            assert!(REMEDIES[..index].iter().all(|(other, _)| other != name), "'{name}' is there twice");
        }
    }
}
