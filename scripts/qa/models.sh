#!/usr/bin/env bash
# Generate the ONNX models of NVIDIA's QA suites with the generators of a checkout of the server repository.
# Needs Python with onnx 1.20.1 (what NVIDIA pins; newer versions write models that few runtimes read), numpy, ml_dtypes.
#
#   models.sh CHECKOUT OUT [PYTHON]
set -euo pipefail
checkout=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
python=${3:-python3}

cd "$checkout/qa/common"
# Each line: generator, folder below OUT, further arguments.
while read -r generator folder arguments; do
  [[ -n $generator ]] || continue
  # shellcheck disable=SC2086 # the arguments are words
  PYTHONPATH=. "$python" "gen_qa_$generator.py" $arguments --models_dir="$out/$folder" >/dev/null
done <<'END'
models                        qa_model_repository                                   --onnx --onnx_opset=0
models                        qa_variable_model_repository                          --onnx --onnx_opset=0 --variable
identity_models               qa_identity_model_repository                          --onnx --onnx_opset=0
reshape_models                qa_reshape_model_repository                           --onnx --onnx_opset=0 --variable
sequence_models               qa_sequence_model_repository                          --onnx --onnx_opset=0
sequence_models               qa_variable_sequence_model_repository                 --onnx --onnx_opset=0 --variable
implicit_models               qa_sequence_implicit_model_repository                 --onnx --onnx_opset=0
implicit_models               qa_variable_sequence_implicit_model_repository        --onnx --onnx_opset=0 --variable
implicit_models               qa_sequence_initial_state_implicit_model_repository   --onnx --onnx_opset=0 --initial-state zero
implicit_models               qa_variable_sequence_initial_state_implicit_model_repository  --onnx --onnx_opset=0 --initial-state zero --variable
dyna_sequence_models          qa_dyna_sequence_model_repository                     --onnx --onnx_opset=0
dyna_sequence_implicit_models qa_dyna_sequence_implicit_model_repository            --onnx --onnx_opset=0
ragged_models                 qa_ragged_model_repository                            --onnx --onnx_opset=0
ort_scalar_models             qa_scalar_models                                      --onnx_opset=0
models                        qa_ensemble_model_repository/qa_model_repository      --ensemble
models                        qa_ensemble_model_repository/qa_variable_model_repository  --ensemble --variable
reshape_models                qa_ensemble_model_repository/qa_reshape_model_repository   --ensemble
identity_models               qa_ensemble_model_repository/qa_identity_model_repository  --ensemble
sequence_models               qa_ensemble_model_repository/qa_sequence_model_repository  --ensemble
sequence_models               qa_ensemble_model_repository/qa_variable_sequence_model_repository  --ensemble --variable
END

# Without a GPU, as the scripts do for TRITON_SERVER_CPU_ONLY.
grep -rl KIND_GPU "$out" --include=config.pbtxt | xargs -r sed -i 's/KIND_GPU/KIND_CPU/'
# Ensembles whose members come from other frameworks cannot load here.
find "$out/qa_ensemble_model_repository" -mindepth 2 -maxdepth 2 -type d \
  \( -name '*plan*' -o -name '*libtorch*' -o -name '*graphdef*' -o -name '*savedmodel*' \) -exec rm -r {} +
echo "$(find "$out" -name model.onnx | wc -l) ONNX models in $out"
