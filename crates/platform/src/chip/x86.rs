//! x86-64: everything from the CPUID instruction, the same on every system.

use std::arch::is_x86_feature_detected as detected;
use std::arch::x86_64::{__cpuid, __cpuid_count, CpuidResult};

use super::{Cache, Caches, Chip, Feature, Features};

pub(super) fn detect() -> Chip {
    let vendor = vendor();
    let (family, model, stepping) = signature(__cpuid(1).eax);
    Chip {
        brand: brand(),
        family: Some(family),
        model: Some(model),
        stepping: Some(stepping),
        features: features(),
        caches: caches(&vendor),
        vendor: Some(vendor),
    }
}

fn vendor() -> String {
    let leaf = __cpuid(0);
    text([leaf.ebx, leaf.edx, leaf.ecx])
}

fn brand() -> Option<String> {
    if __cpuid(0x8000_0000).eax < 0x8000_0004 {
        return None;
    }
    let leaves = [0x8000_0002, 0x8000_0003, 0x8000_0004].map(__cpuid);
    let brand: String = leaves.iter().map(|leaf| text([leaf.eax, leaf.ebx, leaf.ecx, leaf.edx])).collect();
    let brand = brand.trim_matches(['\0', ' ']).to_owned();
    (!brand.is_empty()).then_some(brand)
}

fn text<const N: usize>(registers: [u32; N]) -> String {
    registers.iter().flat_map(|register| register.to_le_bytes()).map(char::from).collect()
}

/// Family, model and stepping from register EAX of leaf 1: the extended fields count only for
/// the families that announce them.
fn signature(eax: u32) -> (u32, u32, u32) {
    let (family, model, stepping) = (eax >> 8 & 15, eax >> 4 & 15, eax & 15);
    let extended_family = if family == 15 { eax >> 20 & 255 } else { 0 };
    let extended_model = if family == 6 || family == 15 { eax >> 16 & 15 } else { 0 };
    (family + extended_family, extended_model << 4 | model, stepping)
}

fn features() -> Features {
    let tiles = Tiles::detect();
    // The macro also asks whether the system saves the registers, which CPUID alone does not say.
    Features::from_iter([
        (Feature::Sse2, detected!("sse2")),
        (Feature::Sse42, detected!("sse4.2")),
        (Feature::Avx, detected!("avx")),
        (Feature::F16c, detected!("f16c")),
        (Feature::Fma, detected!("fma")),
        (Feature::Avx2, detected!("avx2")),
        (Feature::AvxVnni, detected!("avxvnni")),
        (Feature::Avx512f, detected!("avx512f")),
        (Feature::Avx512bw, detected!("avx512bw")),
        (Feature::Avx512cd, detected!("avx512cd")),
        (Feature::Avx512dq, detected!("avx512dq")),
        (Feature::Avx512vl, detected!("avx512vl")),
        (Feature::Avx512vbmi, detected!("avx512vbmi")),
        (Feature::Avx512vnni, detected!("avx512vnni")),
        (Feature::Avx512bf16, detected!("avx512bf16")),
        (Feature::Avx512fp16, detected!("avx512fp16")),
        (Feature::AmxTile, tiles.tile),
        (Feature::AmxInt8, tiles.int8),
        (Feature::AmxBf16, tiles.bf16),
        (Feature::AmxFp16, tiles.fp16),
    ])
}

/// The matrix tiles, which the standard library does not detect on stable Rust.
#[derive(Default)]
struct Tiles {
    tile: bool,
    int8: bool,
    bf16: bool,
    fp16: bool,
}

impl Tiles {
    fn detect() -> Self {
        /// State components 17 and 18 of XCR0: the system saves tile configuration and tile data.
        const TILE_STATE: u64 = 0b11 << 17;
        // AVX-512 implies that XGETBV may be executed, and every processor with tiles has it.
        if __cpuid(0).eax < 7 || !detected!("avx512f") || saved_state() & TILE_STATE != TILE_STATE {
            return Self::default();
        }
        let leaf = __cpuid_count(7, 0);
        let tile = leaf.edx >> 24 & 1 != 0;
        let fp16 = leaf.eax >= 1 && __cpuid_count(7, 1).eax >> 21 & 1 != 0;
        Self { tile, int8: tile && leaf.edx >> 25 & 1 != 0, bf16: tile && leaf.edx >> 22 & 1 != 0, fp16: tile && fp16 }
    }
}

/// XCR0: which register state the system saves for threads.
fn saved_state() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: reads a control register; the caller has established AVX, which implies that the
    // system has enabled the instruction.
    unsafe {
        std::arch::asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack, preserves_flags));
    }
    u64::from(high) << 32 | u64::from(low)
}

/// Caches by the deterministic cache parameters: leaf 4 on Intel, 0x8000_001D on AMD, same format.
fn caches(vendor: &str) -> Caches {
    let leaf = match vendor {
        "AuthenticAMD" | "HygonGenuine" => 0x8000_001D,
        _ => 4,
    };
    let highest = __cpuid(leaf & 0x8000_0000).eax;
    if highest < leaf {
        return Caches::default();
    }
    // Ends at the first descriptor of type "none"; the bound is for hypervisors that never end.
    decode_caches((0..16).map(|index| __cpuid_count(leaf, index)))
}

fn decode_caches(descriptors: impl Iterator<Item = CpuidResult>) -> Caches {
    let mut caches = Caches::default();
    for CpuidResult { eax, ebx, ecx, .. } in descriptors {
        const INSTRUCTION: u32 = 2; // 1: data, 3: both
        match eax & 31 {
            0 => break,
            INSTRUCTION => continue,
            _ => {}
        }
        let line = (ebx & 0xFFF) + 1;
        let partitions = (ebx >> 12 & 0x3FF) + 1;
        let ways = (ebx >> 22) + 1;
        let bytes = [ways, partitions, line].into_iter().fold(ecx as usize + 1, |product, n| product * n as usize);
        let cache = Some(Cache { bytes, shared_by: Some((eax >> 14 & 0xFFF) as usize + 1) });
        match eax >> 5 & 7 {
            1 => (caches.l1d, caches.line) = (cache, Some(line as usize)),
            2 => caches.l2 = cache,
            3 => caches.l3 = cache,
            _ => {}
        }
    }
    caches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_of_known_chips() {
        assert_eq!(signature(0x00A0_0F11), (0x19, 0x01, 1)); // Zen 3, Milan
        assert_eq!(signature(0x00A1_0F11), (0x19, 0x11, 1)); // Zen 4, Genoa
        assert_eq!(signature(0x000C_06F2), (6, 0xCF, 2)); // Emerald Rapids
        assert_eq!(signature(0x0008_06F8), (6, 0x8F, 8)); // Sapphire Rapids
    }

    #[test]
    fn descriptors_become_caches() {
        let leaf = |eax, ebx, ecx| CpuidResult { eax, ebx, ecx, edx: 0 };
        // Sapphire Rapids: 48 KiB L1d, 32 KiB L1i, 2 MiB L2, 105 MiB L3, then "none" and noise
        let caches = decode_caches(
            [
                leaf(0x0400_4121, 0x02C0_003F, 0x3F),
                leaf(0x0400_4122, 0x01C0_003F, 0x3F),
                leaf(0x0400_4143, 0x03C0_003F, 0x7FF),
                leaf(0x040F_C163, 0x0380_003F, 0x1_BFFF),
                leaf(0, 0, 0),
                leaf(0x0400_4143, 0x03C0_003F, 0),
            ]
            .into_iter(),
        );
        let cache = |bytes, threads| Some(Cache { bytes, shared_by: Some(threads) });
        assert_eq!(
            caches,
            Caches { l1d: cache(48 << 10, 2), l2: cache(2 << 20, 2), l3: cache(105 << 20, 64), line: Some(64) }
        );
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_kernel_agrees() {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        let line = |name: &str| {
            let line = cpuinfo.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name));
            line.map(|line| line.split_once(':').unwrap().1.trim().to_owned())
        };
        let chip = detect();
        assert_eq!(chip.vendor, line("vendor_id"));
        assert_eq!(chip.brand, line("model name"));
        assert_eq!(chip.family.map(|n| n.to_string()), line("cpu family"));
        assert_eq!(chip.model.map(|n| n.to_string()), line("model"));
        assert_eq!(chip.stepping.map(|n| n.to_string()), line("stepping"));
        let flags = line("flags").unwrap();
        for (feature, flag) in [
            (Feature::Sse42, "sse4_2"),
            (Feature::Avx2, "avx2"),
            (Feature::Fma, "fma"),
            (Feature::AvxVnni, "avx_vnni"),
            (Feature::Avx512f, "avx512f"),
            (Feature::Avx512bw, "avx512bw"),
            (Feature::Avx512dq, "avx512dq"),
            (Feature::Avx512vl, "avx512vl"),
            (Feature::Avx512vnni, "avx512_vnni"),
            (Feature::Avx512bf16, "avx512_bf16"),
            (Feature::Avx512fp16, "avx512_fp16"),
            (Feature::AmxTile, "amx_tile"),
            (Feature::AmxInt8, "amx_int8"),
            (Feature::AmxBf16, "amx_bf16"),
        ] {
            assert_eq!(chip.features.has(feature), flags.split(' ').any(|f| f == flag), "{flag}");
        }
    }
}
