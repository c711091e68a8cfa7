use super::{Block, Kind, portable};
#[cfg(target_arch = "x86_64")]
use super::{amx, avx2, avx512};
#[cfg(target_arch = "aarch64")]
use super::{arm, sme, strips};
use half::{bf16, f16};
use halimede_tensor::Element;
#[cfg(target_arch = "aarch64")]
use std::arch::is_aarch64_feature_detected;

/// Bytes of neighbours of the summed axis that lie together for each column of a panel.
pub(crate) const GROUP_BYTES: usize = 4;

/// Numbers of the summed axis that a step multiplies.
pub(crate) const fn step<N>() -> usize {
    super::STEP_BYTES / size_of::<N>()
}

/// Neighbours of the summed axis that lie together for each column of a panel.
pub(crate) const fn group<N>() -> usize {
    GROUP_BYTES / size_of::<N>()
}

/// Numbers of a left operand, and with them everything in which products differ: what they are multiplied
/// by, what they are summed in, and the instructions for it.
///
/// | left | right | sums |
/// |------|-------|------|
/// | bf16 | bf16  | f32  |
/// | f16  | f16   | f32  |
/// | u8   | i8    | i32  |
/// | i8   | i8    | i32  |
pub trait Factor: Element {
    /// Numbers of the right operand, as wide as those of the left one.
    type Right: Element;
    /// Sums of products.
    type Sum: Element + Default;

    /// Numbers of the summed axis that a step multiplies.
    const STEP: usize = step::<Self>();
    /// Neighbours of the summed axis that lie together for each column of a panel.
    const GROUP: usize = group::<Self>();

    /// The kinds of unit of this machine, plain loops left out.
    fn kinds() -> Vec<Kind>;

    /// What a kind is called in listings.
    fn name(kind: Kind) -> &'static str;

    /// `sum + left · right`.
    fn plus_product(sum: Self::Sum, left: Self, right: Self::Right) -> Self::Sum;

    /// Computes a block that has a step at least.
    ///
    /// # Safety
    /// As [`super::Tiles::block`], on a unit of this kind that the thread has entered.
    unsafe fn block(kind: Kind, block: &Block<'_, Self>);
}

impl Factor for bf16 {
    type Right = bf16;
    type Sum = f32;

    fn kinds() -> Vec<Kind> {
        #[allow(unused_mut, reason = "other processors have none")]
        let mut kinds = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            use halimede_platform::chip::Feature;
            if is_x86_feature_detected!("avx512bf16") && avx512::is_available() {
                kinds.push(Kind::Avx512);
            }
            // Tiles leave single rows to vectors.
            if kinds.contains(&Kind::Avx512) && amx::permitted(Feature::AmxBf16) {
                kinds.push(Kind::Amx);
            }
        }
        #[cfg(target_arch = "aarch64")]
        if is_aarch64_feature_detected!("bf16") {
            kinds.extend([Kind::Dot, Kind::Mmla]);
            // Outer products leave few rows to vectors.
            if sme::is_available() {
                kinds.push(Kind::Sme);
            }
        }
        kinds
    }

    fn name(kind: Kind) -> &'static str {
        match kind {
            Kind::Portable => "portable-bf16",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2-bf16",
            #[cfg(target_arch = "x86_64")]
            Kind::AvxVnni => "avx-vnni-bf16",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512-bf16",
            #[cfg(target_arch = "x86_64")]
            Kind::Amx => "amx-bf16",
            #[cfg(target_arch = "aarch64")]
            Kind::Dot => "neon-bfdot",
            #[cfg(target_arch = "aarch64")]
            Kind::Widening => "neon-bf16",
            #[cfg(target_arch = "aarch64")]
            Kind::Mmla => "neon-bfmmla",
            #[cfg(target_arch = "aarch64")]
            Kind::Sme => "sme-bf16",
        }
    }

    #[inline(always)]
    fn plus_product(sum: f32, left: bf16, right: bf16) -> f32 {
        sum + left.to_f32() * right.to_f32()
    }

    #[inline(always)]
    unsafe fn block(kind: Kind, block: &Block<'_, bf16>) {
        // SAFETY: the caller's promise; the kind proves that the instructions exist.
        unsafe {
            match kind {
                #[cfg(target_arch = "x86_64")]
                Kind::Avx512 => avx512::block(&avx512::BF16, block),
                // Vectors keep up with memory, and begin at once.
                #[cfg(target_arch = "x86_64")]
                Kind::Amx if block.rows == 1 => avx512::block(&avx512::BF16, block),
                #[cfg(target_arch = "x86_64")]
                Kind::Amx => amx::block(amx::BF16, block),
                #[cfg(target_arch = "aarch64")]
                Kind::Dot => strips::block(arm::dots::<arm::Bfdot>, arm::STRIP, block),
                #[cfg(target_arch = "aarch64")]
                Kind::Sme if block.rows > sme::FEW_ROWS => sme::block(sme::bf16, block),
                #[cfg(target_arch = "aarch64")]
                Kind::Mmla | Kind::Sme => strips::block(arm::products::<arm::Bfmmla>, arm::STRIP, block),
                _ => portable::block(block),
            }
        }
    }
}

impl Factor for f16 {
    type Right = f16;
    type Sum = f32;

    fn kinds() -> Vec<Kind> {
        #[cfg(target_arch = "aarch64")]
        if is_aarch64_feature_detected!("fhm") {
            return vec![Kind::Widening];
        }
        Vec::new()
    }

    fn name(kind: Kind) -> &'static str {
        match kind {
            #[cfg(target_arch = "aarch64")]
            Kind::Widening => "neon-fmlal",
            _ => "portable-f16",
        }
    }

    #[inline(always)]
    fn plus_product(sum: f32, left: f16, right: f16) -> f32 {
        sum + left.to_f32() * right.to_f32()
    }

    #[inline(always)]
    unsafe fn block(kind: Kind, block: &Block<'_, f16>) {
        // SAFETY: the caller's promise; the kind proves that the instructions exist.
        unsafe {
            match kind {
                #[cfg(target_arch = "aarch64")]
                Kind::Widening => arm::widening(block),
                _ => portable::block(block),
            }
        }
    }
}

impl Factor for u8 {
    type Right = i8;
    type Sum = i32;

    fn kinds() -> Vec<Kind> {
        #[allow(unused_mut, reason = "other processors have none")]
        let mut kinds = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            use halimede_platform::chip::Feature;
            if is_x86_feature_detected!("avx2") {
                kinds.push(Kind::Avx2);
                if is_x86_feature_detected!("avxvnni") {
                    kinds.push(Kind::AvxVnni);
                }
            }
            if is_x86_feature_detected!("avx512vnni") && avx512::is_available() {
                kinds.push(Kind::Avx512);
            }
            // Tiles leave few rows to vectors, and what ends blocks beside them rounds to bf16.
            let has_vectors = kinds.contains(&Kind::Avx512) && is_x86_feature_detected!("avx512bf16");
            if has_vectors && amx::permitted(Feature::AmxInt8) {
                kinds.push(Kind::Amx);
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            if is_aarch64_feature_detected!("dotprod") {
                kinds.push(Kind::Dot);
            }
            if is_aarch64_feature_detected!("i8mm") {
                kinds.push(Kind::Mmla);
                if sme::is_available() {
                    kinds.push(Kind::Sme);
                }
            }
        }
        kinds
    }

    fn name(kind: Kind) -> &'static str {
        match kind {
            Kind::Portable => "portable-int8",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2-int8",
            #[cfg(target_arch = "x86_64")]
            Kind::AvxVnni => "avx-vnni",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512-vnni",
            #[cfg(target_arch = "x86_64")]
            Kind::Amx => "amx-int8",
            #[cfg(target_arch = "aarch64")]
            Kind::Dot => "neon-dotprod",
            #[cfg(target_arch = "aarch64")]
            Kind::Widening => "neon-int8",
            #[cfg(target_arch = "aarch64")]
            Kind::Mmla => "neon-i8mm",
            #[cfg(target_arch = "aarch64")]
            Kind::Sme => "sme-int8",
        }
    }

    #[inline(always)]
    fn plus_product(sum: i32, left: u8, right: i8) -> i32 {
        sum.wrapping_add(i32::from(left) * i32::from(right))
    }

    #[inline(always)]
    unsafe fn block(kind: Kind, block: &Block<'_, u8>) {
        // SAFETY: the caller's promise; the kind proves that the instructions exist.
        unsafe {
            match kind {
                Kind::Portable => portable::block(block),
                #[cfg(target_arch = "aarch64")]
                Kind::Widening => portable::block(block),
                #[cfg(target_arch = "x86_64")]
                Kind::Avx2 => avx2::block(&avx2::AVX2, block),
                #[cfg(target_arch = "x86_64")]
                Kind::AvxVnni => avx2::block(&avx2::VNNI, block),
                #[cfg(target_arch = "x86_64")]
                Kind::Avx512 => avx512::block(&avx512::U8, block),
                #[cfg(target_arch = "x86_64")]
                Kind::Amx if block.rows <= 2 => avx512::block(&avx512::U8, block),
                #[cfg(target_arch = "x86_64")]
                Kind::Amx => amx::block(amx::U8, block),
                #[cfg(target_arch = "aarch64")]
                Kind::Dot => strips::block(arm::dots::<arm::SdotOfUnsigned>, arm::STRIP, block),
                #[cfg(target_arch = "aarch64")]
                Kind::Sme if block.rows > sme::FEW_ROWS => sme::block(sme::u8_by_i8, block),
                #[cfg(target_arch = "aarch64")]
                Kind::Mmla | Kind::Sme => strips::block(arm::products::<arm::Usmmla>, arm::STRIP, block),
            }
        }
    }
}

impl Factor for i8 {
    type Right = i8;
    type Sum = i32;

    fn kinds() -> Vec<Kind> {
        u8::kinds().into_iter().filter(|kind| kind.multiplies_signed()).collect()
    }

    fn name(kind: Kind) -> &'static str {
        u8::name(kind)
    }

    #[inline(always)]
    fn plus_product(sum: i32, left: i8, right: i8) -> i32 {
        sum.wrapping_add(i32::from(left) * i32::from(right))
    }

    #[inline(always)]
    unsafe fn block(kind: Kind, block: &Block<'_, i8>) {
        // SAFETY: the caller's promise; the kind proves that the instructions exist.
        unsafe {
            match kind {
                #[cfg(target_arch = "x86_64")]
                Kind::Amx => amx::block(amx::I8, block),
                #[cfg(target_arch = "aarch64")]
                Kind::Dot => strips::block(arm::dots::<arm::Sdot>, arm::STRIP, block),
                #[cfg(target_arch = "aarch64")]
                Kind::Sme if block.rows > sme::FEW_ROWS => sme::block(sme::i8_by_i8, block),
                #[cfg(target_arch = "aarch64")]
                Kind::Mmla | Kind::Sme => strips::block(arm::products::<arm::Smmla>, arm::STRIP, block),
                _ => portable::block(block),
            }
        }
    }
}
