/// An instruction set that kernels are compiled for.
///
/// Holding a value other than [`Isa::PORTABLE`] proves that this machine has the instructions: only
/// [`Isa::detect`] and [`Isa::available`] make them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Isa(Level);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Level {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16,
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl Isa {
    /// What every machine of this architecture has, left to the compiler: SSE2 on x86-64, NEON on arm64.
    pub const PORTABLE: Isa = Isa(Level::Portable);

    /// The widest set of this machine.
    pub fn detect() -> Isa {
        *Isa::available().last().unwrap_or(&Isa::PORTABLE)
    }

    /// Every set of this machine, narrowest first.
    pub fn available() -> Vec<Isa> {
        #[allow(unused_mut, reason = "other processors have one set")]
        let mut sets = vec![Isa::PORTABLE];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c") {
                sets.push(Isa(Level::Avx2));
                if is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                {
                    sets.push(Isa(Level::Avx512));
                    if is_x86_feature_detected!("avx512bf16") {
                        sets.push(Isa(Level::Avx512Bf16));
                    }
                }
            }
        }
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("neon") {
            sets.push(Isa(Level::Neon));
        }
        sets
    }

    /// The name in listings.
    pub fn name(self) -> &'static str {
        match self.0 {
            Level::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 | Level::Avx512Bf16 => "avx512",
            #[cfg(target_arch = "aarch64")]
            Level::Neon => "neon",
        }
    }

    /// Whether this is AVX-512 (F, BW, DQ, VL), which implies [`Isa::has_avx2`].
    pub fn has_avx512(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return matches!(self.0, Level::Avx512 | Level::Avx512Bf16);
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Whether it rounds to bf16 in one instruction as well (AVX-512 BF16), which implies [`Isa::has_avx512`].
    pub fn has_avx512_bf16(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self.0 == Level::Avx512Bf16;
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Whether this is AVX2 with FMA and F16C or wider.
    pub fn has_avx2(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self.0 != Level::Portable;
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Whether this is NEON, for what is written with its instructions rather than left to the compiler.
    pub fn has_neon(self) -> bool {
        #[cfg(target_arch = "aarch64")]
        return self.0 == Level::Neon;
        #[cfg(not(target_arch = "aarch64"))]
        false
    }
}

/// Defines a function that runs `$body`, which must be `#[inline(always)]`, compiled for the given
/// instruction set: the compiler vectorises the one body once per set. The function may have type
/// parameters, each with one bound.
macro_rules! multiversion {
    ($(#[$meta:meta])* $vis:vis fn $name:ident$(<$($T:ident: $bound:path),+>)?($($arg:ident: $type:ty),* $(,)?) = $body:path) => {
        $(#[$meta])*
        $vis fn $name$(<$($T: $bound),+>)?(isa: $crate::Isa, $($arg: $type),*) {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
                fn avx512$(<$($T: $bound),+>)?($($arg: $type),*) {
                    $body($($arg),*)
                }
                #[target_feature(enable = "avx2,fma,f16c")]
                fn avx2$(<$($T: $bound),+>)?($($arg: $type),*) {
                    $body($($arg),*)
                }
                if isa.has_avx512() {
                    // SAFETY: an `Isa` with AVX-512 exists only where the machine has it.
                    return unsafe { avx512($($arg),*) };
                }
                if isa.has_avx2() {
                    // SAFETY: as above for AVX2, FMA and F16C.
                    return unsafe { avx2($($arg),*) };
                }
            }
            let _ = isa;
            $body($($arg),*)
        }
    };
}
pub(crate) use multiversion;
