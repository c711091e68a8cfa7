//! Every ONNX operator, one file each: attributes, a lowering to core operators or a plain reference
//! evaluation, and cases. [`OPERATORS`] is the one list.

mod abs;
mod acos;
mod acosh;
mod add;
mod affine_grid;
mod and;
mod arg_max;
mod arg_min;
mod asin;
mod asinh;
mod atan;
mod atanh;
mod attention;
mod average_pool;
mod batch_normalization;
mod bernoulli;
mod bit_cast;
mod bit_shift;
mod bitwise_and;
mod bitwise_not;
mod bitwise_or;
mod bitwise_xor;
mod blackman_window;
mod cast;
mod cast_like;
mod ceil;
mod celu;
mod center_crop_pad;
mod clip;
mod col2_im;
mod common;
mod compress;
mod concat;
mod concat_from_sequence;
mod constant;
mod constant_of_shape;
mod conv;
mod conv_integer;
mod conv_transpose;
mod cos;
mod cosh;
mod cum_prod;
mod cum_sum;
mod deform_conv;
mod depth_to_space;
mod dequantize_linear;
mod det;
mod dft;
mod div;
mod dropout;
mod dynamic_quantize_linear;
mod einsum;
mod elu;
mod equal;
mod erf;
mod exp;
mod expand;
mod eye_like;
mod flatten;
mod floor;
mod gather;
mod gather_elements;
mod gather_nd;
mod gelu;
mod gemm;
mod global_average_pool;
mod global_lp_pool;
mod global_max_pool;
mod greater;
mod greater_or_equal;
mod grid_sample;
mod group_normalization;
mod gru;
mod hamming_window;
mod hann_window;
mod hard_sigmoid;
mod hard_swish;
mod hardmax;
mod identity;
mod r#if;
mod image_decoder;
mod instance_normalization;
mod is_inf;
mod is_nan;
mod layer_normalization;
mod leaky_relu;
mod less;
mod less_or_equal;
mod log;
mod log_softmax;
mod r#loop;
mod lp_normalization;
mod lp_pool;
mod lrn;
mod lstm;
mod mat_mul;
mod mat_mul_integer;
mod max;
mod max_pool;
mod max_roi_pool;
mod max_unpool;
mod mean;
mod mean_variance_normalization;
mod mel_weight_matrix;
mod microsoft;
mod min;
mod mish;
mod ml;
mod modulo;
mod mul;
mod multinomial;
mod neg;
mod negative_log_likelihood_loss;
mod non_max_suppression;
mod non_zero;
mod not;
mod one_hot;
mod optional;
mod optional_get_element;
mod optional_has_element;
mod or;
mod p_relu;
mod pad;
mod pow;
mod q_linear_conv;
mod q_linear_mat_mul;
mod quantize_linear;
mod random_normal;
mod random_normal_like;
mod random_uniform;
mod random_uniform_like;
mod range;
mod reciprocal;
mod reduce_l1;
mod reduce_l2;
mod reduce_log_sum;
mod reduce_log_sum_exp;
mod reduce_max;
mod reduce_mean;
mod reduce_min;
mod reduce_prod;
mod reduce_sum;
mod reduce_sum_square;
mod regex_full_match;
mod relu;
mod reshape;
mod resize;
mod reverse_sequence;
mod rms_normalization;
mod rnn;
mod roi_align;
mod rotary_embedding;
mod round;
mod scan;
mod scatter;
mod scatter_elements;
mod scatter_nd;
mod selu;
mod sequence_at;
mod sequence_construct;
mod sequence_empty;
mod sequence_erase;
mod sequence_insert;
mod sequence_length;
mod sequence_map;
mod shape;
mod shrink;
mod sigmoid;
mod sign;
mod sin;
mod sinh;
mod size;
mod slice;
mod softmax;
mod softmax_cross_entropy_loss;
mod softplus;
mod softsign;
mod space_to_depth;
mod split;
mod split_to_sequence;
mod sqrt;
mod squeeze;
mod stft;
mod string_concat;
mod string_normalizer;
mod string_split;
mod sub;
mod sum;
mod swish;
mod tan;
mod tanh;
mod tensor_scatter;
mod tf_idf_vectorizer;
mod thresholded_relu;
mod tile;
mod top_k;
mod training;
mod transpose;
mod trilu;
mod unique;
mod unsqueeze;
mod upsample;
mod r#where;
mod xor;

use super::Operator;
pub(crate) use common::{infer_by_lowering, lower_call};

/// Every operator, in alphabetical order within its domain.
pub static OPERATORS: &[&Operator] = &[
    &abs::OPERATOR,
    &acos::OPERATOR,
    &acosh::OPERATOR,
    &add::OPERATOR,
    &affine_grid::OPERATOR,
    &and::OPERATOR,
    &arg_max::OPERATOR,
    &arg_min::OPERATOR,
    &asin::OPERATOR,
    &asinh::OPERATOR,
    &atan::OPERATOR,
    &atanh::OPERATOR,
    &attention::OPERATOR,
    &average_pool::OPERATOR,
    &batch_normalization::OPERATOR,
    &bernoulli::OPERATOR,
    &bit_cast::OPERATOR,
    &bit_shift::OPERATOR,
    &bitwise_and::OPERATOR,
    &bitwise_not::OPERATOR,
    &bitwise_or::OPERATOR,
    &bitwise_xor::OPERATOR,
    &blackman_window::OPERATOR,
    &cast::OPERATOR,
    &cast_like::OPERATOR,
    &ceil::OPERATOR,
    &celu::OPERATOR,
    &center_crop_pad::OPERATOR,
    &clip::OPERATOR,
    &col2_im::OPERATOR,
    &compress::OPERATOR,
    &concat::OPERATOR,
    &concat_from_sequence::OPERATOR,
    &constant::OPERATOR,
    &constant_of_shape::OPERATOR,
    &conv::OPERATOR,
    &conv_integer::OPERATOR,
    &conv_transpose::OPERATOR,
    &cos::OPERATOR,
    &cosh::OPERATOR,
    &cum_prod::OPERATOR,
    &cum_sum::OPERATOR,
    &dft::OPERATOR,
    &deform_conv::OPERATOR,
    &depth_to_space::OPERATOR,
    &dequantize_linear::OPERATOR,
    &det::OPERATOR,
    &div::OPERATOR,
    &dropout::OPERATOR,
    &dynamic_quantize_linear::OPERATOR,
    &einsum::OPERATOR,
    &elu::OPERATOR,
    &equal::OPERATOR,
    &erf::OPERATOR,
    &exp::OPERATOR,
    &expand::OPERATOR,
    &eye_like::OPERATOR,
    &flatten::OPERATOR,
    &floor::OPERATOR,
    &gru::OPERATOR,
    &gather::OPERATOR,
    &gather_elements::OPERATOR,
    &gather_nd::OPERATOR,
    &gelu::OPERATOR,
    &gemm::OPERATOR,
    &global_average_pool::OPERATOR,
    &global_lp_pool::OPERATOR,
    &global_max_pool::OPERATOR,
    &greater::OPERATOR,
    &greater_or_equal::OPERATOR,
    &grid_sample::OPERATOR,
    &group_normalization::OPERATOR,
    &hamming_window::OPERATOR,
    &hann_window::OPERATOR,
    &hard_sigmoid::OPERATOR,
    &hard_swish::OPERATOR,
    &hardmax::OPERATOR,
    &identity::OPERATOR,
    &r#if::OPERATOR,
    &image_decoder::OPERATOR,
    &instance_normalization::OPERATOR,
    &is_inf::OPERATOR,
    &is_nan::OPERATOR,
    &lrn::OPERATOR,
    &lstm::OPERATOR,
    &layer_normalization::OPERATOR,
    &leaky_relu::OPERATOR,
    &less::OPERATOR,
    &less_or_equal::OPERATOR,
    &log::OPERATOR,
    &log_softmax::OPERATOR,
    &r#loop::OPERATOR,
    &lp_normalization::OPERATOR,
    &lp_pool::OPERATOR,
    &mat_mul::OPERATOR,
    &mat_mul_integer::OPERATOR,
    &max::OPERATOR,
    &max_pool::OPERATOR,
    &max_roi_pool::OPERATOR,
    &max_unpool::OPERATOR,
    &mean::OPERATOR,
    &mean_variance_normalization::OPERATOR,
    &mel_weight_matrix::OPERATOR,
    &min::OPERATOR,
    &mish::OPERATOR,
    &modulo::OPERATOR,
    &mul::OPERATOR,
    &multinomial::OPERATOR,
    &neg::OPERATOR,
    &negative_log_likelihood_loss::OPERATOR,
    &non_max_suppression::OPERATOR,
    &non_zero::OPERATOR,
    &not::OPERATOR,
    &one_hot::OPERATOR,
    &optional::OPERATOR,
    &optional_get_element::OPERATOR,
    &optional_has_element::OPERATOR,
    &or::OPERATOR,
    &p_relu::OPERATOR,
    &pad::OPERATOR,
    &pow::OPERATOR,
    &q_linear_conv::OPERATOR,
    &q_linear_mat_mul::OPERATOR,
    &quantize_linear::OPERATOR,
    &rms_normalization::OPERATOR,
    &rnn::OPERATOR,
    &random_normal::OPERATOR,
    &random_normal_like::OPERATOR,
    &random_uniform::OPERATOR,
    &random_uniform_like::OPERATOR,
    &range::OPERATOR,
    &reciprocal::OPERATOR,
    &reduce_l1::OPERATOR,
    &reduce_l2::OPERATOR,
    &reduce_log_sum::OPERATOR,
    &reduce_log_sum_exp::OPERATOR,
    &reduce_max::OPERATOR,
    &reduce_mean::OPERATOR,
    &reduce_min::OPERATOR,
    &reduce_prod::OPERATOR,
    &reduce_sum::OPERATOR,
    &reduce_sum_square::OPERATOR,
    &regex_full_match::OPERATOR,
    &relu::OPERATOR,
    &reshape::OPERATOR,
    &resize::OPERATOR,
    &reverse_sequence::OPERATOR,
    &roi_align::OPERATOR,
    &rotary_embedding::OPERATOR,
    &round::OPERATOR,
    &stft::OPERATOR,
    &scan::OPERATOR,
    &scatter::OPERATOR,
    &scatter_elements::OPERATOR,
    &scatter_nd::OPERATOR,
    &selu::OPERATOR,
    &sequence_at::OPERATOR,
    &sequence_construct::OPERATOR,
    &sequence_empty::OPERATOR,
    &sequence_erase::OPERATOR,
    &sequence_insert::OPERATOR,
    &sequence_length::OPERATOR,
    &sequence_map::OPERATOR,
    &shape::OPERATOR,
    &shrink::OPERATOR,
    &sigmoid::OPERATOR,
    &sign::OPERATOR,
    &sin::OPERATOR,
    &sinh::OPERATOR,
    &size::OPERATOR,
    &slice::OPERATOR,
    &softmax::OPERATOR,
    &softmax_cross_entropy_loss::OPERATOR,
    &softplus::OPERATOR,
    &softsign::OPERATOR,
    &space_to_depth::OPERATOR,
    &split::OPERATOR,
    &split_to_sequence::OPERATOR,
    &sqrt::OPERATOR,
    &squeeze::OPERATOR,
    &string_concat::OPERATOR,
    &string_normalizer::OPERATOR,
    &string_split::OPERATOR,
    &sub::OPERATOR,
    &sum::OPERATOR,
    &swish::OPERATOR,
    &tan::OPERATOR,
    &tanh::OPERATOR,
    &tensor_scatter::OPERATOR,
    &tf_idf_vectorizer::OPERATOR,
    &thresholded_relu::OPERATOR,
    &tile::OPERATOR,
    &top_k::OPERATOR,
    &transpose::OPERATOR,
    &trilu::OPERATOR,
    &unique::OPERATOR,
    &unsqueeze::OPERATOR,
    &upsample::OPERATOR,
    &r#where::OPERATOR,
    &xor::OPERATOR,
    &microsoft::attention::OPERATOR,
    &microsoft::bias_gelu::OPERATOR,
    &microsoft::dequantize_linear::OPERATOR,
    &microsoft::dynamic_quantize_mat_mul::OPERATOR,
    &microsoft::embed_layer_normalization::OPERATOR,
    &microsoft::fast_gelu::OPERATOR,
    &microsoft::fused_conv::OPERATOR,
    &microsoft::fused_gemm::OPERATOR,
    &microsoft::fused_mat_mul::OPERATOR,
    &microsoft::gather_block_quantized::OPERATOR,
    &microsoft::gelu::OPERATOR,
    &microsoft::group_query_attention::OPERATOR,
    &microsoft::inverse::OPERATOR,
    &microsoft::mat_mul_integer_to_float::OPERATOR,
    &microsoft::mat_mul_n_bits::OPERATOR,
    &microsoft::multi_head_attention::OPERATOR,
    &microsoft::nhwc_conv::OPERATOR,
    &microsoft::nhwc_max_pool::OPERATOR,
    &microsoft::q_attention::OPERATOR,
    &microsoft::q_gemm::OPERATOR,
    &microsoft::q_linear_add::OPERATOR,
    &microsoft::q_linear_average_pool::OPERATOR,
    &microsoft::q_linear_concat::OPERATOR,
    &microsoft::q_linear_conv::OPERATOR,
    &microsoft::q_linear_global_average_pool::OPERATOR,
    &microsoft::q_linear_leaky_relu::OPERATOR,
    &microsoft::q_linear_mul::OPERATOR,
    &microsoft::q_linear_reduce_mean::OPERATOR,
    &microsoft::q_linear_sigmoid::OPERATOR,
    &microsoft::q_linear_softmax::OPERATOR,
    &microsoft::q_linear_where::OPERATOR,
    &microsoft::quantize_linear::OPERATOR,
    &microsoft::quick_gelu::OPERATOR,
    &microsoft::rotary_embedding::OPERATOR,
    &microsoft::simplified_layer_normalization::OPERATOR,
    &microsoft::skip_layer_normalization::OPERATOR,
    &microsoft::skip_simplified_layer_normalization::OPERATOR,
    &microsoft::tokenizer::OPERATOR,
    &microsoft::transpose_mat_mul::OPERATOR,
    &microsoft::trilu::OPERATOR,
    &ml::array_feature_extractor::OPERATOR,
    &ml::binarizer::OPERATOR,
    &ml::category_mapper::OPERATOR,
    &ml::dict_vectorizer::OPERATOR,
    &ml::feature_vectorizer::OPERATOR,
    &ml::imputer::OPERATOR,
    &ml::label_encoder::OPERATOR,
    &ml::linear_classifier::OPERATOR,
    &ml::linear_regressor::OPERATOR,
    &ml::normalizer::OPERATOR,
    &ml::one_hot_encoder::OPERATOR,
    &ml::svm_classifier::OPERATOR,
    &ml::svm_regressor::OPERATOR,
    &ml::scaler::OPERATOR,
    &ml::tree_ensemble::OPERATOR,
    &ml::tree_ensemble_classifier::OPERATOR,
    &ml::tree_ensemble_regressor::OPERATOR,
    &ml::zip_map::OPERATOR,
    &training::adagrad::OPERATOR,
    &training::adam::OPERATOR,
    &training::momentum::OPERATOR,
];

/// The operator of that name, where the engine knows it.
pub fn find(domain: &str, name: &str) -> Option<&'static Operator> {
    let domain = if domain == "ai.onnx" { "" } else { domain };
    OPERATORS.iter().copied().find(|operator| operator.name == name && operator.domain == domain)
}
