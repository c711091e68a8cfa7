//! Operators of classical machine learning (`ai.onnx.ml`), one file each.

pub(super) mod array_feature_extractor;
pub(super) mod binarizer;
pub(super) mod category_mapper;
pub(super) mod dict_vectorizer;
pub(super) mod feature_vectorizer;
pub(super) mod imputer;
mod keys;
pub(super) mod label_encoder;
pub(super) mod linear_classifier;
pub(super) mod linear_regressor;
mod lists;
pub(super) mod normalizer;
pub(super) mod one_hot_encoder;
pub(super) mod scaler;
mod scores;
mod svm;
pub(super) mod svm_classifier;
pub(super) mod svm_regressor;
pub(super) mod tree_ensemble;
pub(super) mod tree_ensemble_classifier;
pub(super) mod tree_ensemble_regressor;
mod trees;
pub(super) mod zip_map;
