use super::file::{ALIGNMENT, HEAD_BYTES, head_and_table};
use super::*;
use halimede_tensor::{Buffer, DType, Tensor};
use proptest::prelude::*;
use std::fs::{self, File, FileTimes};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("halimede-packed-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Folder(path)
    }

    fn store(&self, bytes_max: u64) -> Store {
        Store::new(self.0.clone(), bytes_max)
    }

    fn file(&self, key: Key) -> PathBuf {
        self.0.join(format!("{key}.weights"))
    }

    /// Names of the files in it.
    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn key(number: u128) -> Key {
    Key::new(number, "a unit", &CompileOptions::default())
}

/// Asks for two pieces; says which had to be packed.
fn ask(packer: &Packer) -> (Vec<Tensor>, Vec<&'static str>) {
    let mut packed = Vec::new();
    let floats = packer.pack::<f32>("panels", 3, |elements| {
        packed.push("panels");
        elements.copy_from_slice(&[1.0, 2.0, 3.0]);
    });
    let bytes = packer.pack::<i8>("tiles", 5, |elements| {
        packed.push("tiles");
        elements[4] = -7;
    });
    (vec![floats.unwrap(), bytes.unwrap()], packed)
}

/// Writes the file of a key.
fn write(store: &Store, key: Key) {
    let packer = store.writer(key).unwrap();
    assert_eq!(ask(&packer).1, ["panels", "tiles"]);
    packer.finish().unwrap();
}

#[test]
fn what_one_packed_the_next_one_maps() {
    let folder = Folder::new("maps");
    let store = folder.store(1 << 20);
    assert!(store.find(key(1)).unwrap().is_none());
    let packer = store.writer(key(1)).unwrap();
    let (packed, _) = ask(&packer);
    assert!(store.find(key(1)).unwrap().is_none(), "there before it is whole");
    packer.finish().unwrap();
    assert_eq!(folder.names(), [format!("{}.weights", key(1))]);

    let packer = store.find(key(1)).unwrap().unwrap();
    let (found, made) = ask(&packer);
    packer.finish().unwrap();
    assert_eq!((found, made), (packed, vec![]));
    let (found, _) = ask(&store.find(key(1)).unwrap().unwrap());
    assert!(found.iter().all(Tensor::is_foreign));
    assert!(found.iter().all(|tensor| tensor.bytes().unwrap().as_ptr().addr().is_multiple_of(ALIGNMENT)));
    // The pages stay for those who read them.
    store.remove(key(1));
    assert_eq!(found[0].slice::<f32>().unwrap(), [1.0, 2.0, 3.0]);
    assert!(store.find(key(1)).unwrap().is_none());
}

#[test]
fn pieces_of_something_else_are_not_taken() {
    let folder = Folder::new("misfit");
    let store = folder.store(1 << 20);
    write(&store, key(1));
    for (layout, len) in [("panels", 4), ("others", 3)] {
        let packer = store.find(key(1)).unwrap().unwrap();
        let tensor = packer.pack::<f32>(layout, len, |elements| elements.fill(9.0)).unwrap();
        assert_eq!(tensor.slice::<f32>().unwrap(), vec![9.0; len]);
        // What comes after it may not be what it seems either.
        assert_eq!(ask(&packer).1, ["panels", "tiles"]);
        assert!(packer.finish().is_err());
    }
    let packer = store.find(key(1)).unwrap().unwrap();
    packer.pack::<f32>("panels", 3, |_| {}).unwrap();
    assert!(packer.finish().is_err(), "half of the pieces were not asked for");
}

#[test]
fn constants_in_files_are_kept_too() {
    let folder = Folder::new("constants");
    let store = folder.store(1 << 20);
    let bytes: Vec<u8> = (0..8193u32).map(|i| i as u8).collect();
    let lent = Buffer::foreign(bytes).part(1, 8192).unwrap();
    let constant = Tensor::from_buffer(DType::F32, &[2, 1024], lent).unwrap();
    let small = Tensor::from_buffer(DType::U8, &[2], Buffer::foreign(vec![1u8, 2])).unwrap();
    for is_written in [true, false] {
        let packer = if is_written { store.writer(key(1)) } else { store.find(key(1)).map(Option::unwrap) }.unwrap();
        let owned = packer.owned(&constant).unwrap();
        assert_eq!((&owned, owned.is_foreign()), (&constant, !is_written));
        assert!(!packer.owned(&small).unwrap().is_foreign());
        packer.finish().unwrap();
    }
}

#[test]
fn damage_is_told_with_its_file() {
    let folder = Folder::new("damage");
    let store = folder.store(1 << 20);
    write(&store, key(1));
    let whole = fs::read(folder.file(key(1))).unwrap();
    let damaged = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        bytes
    };
    let last = whole.len() - 1;
    for (bytes, message) in [
        (Vec::new(), "it holds no packed weights"),
        (damaged(0), "it holds no packed weights"),
        (damaged(8), "its format is of version 3, this program's is 2"),
        (damaged(16), "its checksum is wrong"),
        (damaged(40), "its checksum is wrong"),
        (damaged(last), "its checksum is wrong"),
        (damaged(64 + 3), "the checksum of what lies from byte 64 on is wrong"),
        (damaged(128 + 4), "the checksum of what lies from byte 128 on is wrong"),
        (whole[..last].to_vec(), "its length is not what it says"),
        ([&whole[..], &[0]].concat(), "its length is not what it says"),
    ] {
        fs::write(folder.file(key(1)), bytes).unwrap();
        let error = store.find(key(1)).unwrap_err().to_string();
        assert_eq!(error, format!("packed weights in '{}': {message}", folder.file(key(1)).display()));
    }
    fs::write(folder.file(key(2)), &whole).unwrap();
    assert!(store.find(key(2)).unwrap_err().to_string().ends_with("it holds packed weights of something else"));
    // It is packed anew over it.
    write(&store, key(2));
    assert!(store.find(key(2)).unwrap().is_some());
}

#[test]
fn what_was_used_longest_ago_goes_first() {
    let folder = Folder::new("bound");
    let bytes = 64 + 2 * 64 + 2 * 32;
    let store = folder.store(3 * bytes);
    let long_ago = |path: &Path, hours: u64| {
        let time = SystemTime::now() - Duration::from_secs(3600 * hours);
        File::options().write(true).open(path).unwrap().set_times(FileTimes::new().set_modified(time)).unwrap();
    };
    for number in 1..=3 {
        write(&store, key(number));
        assert_eq!(fs::metadata(folder.file(key(number))).unwrap().len(), bytes);
        long_ago(&folder.file(key(number)), 10 - number as u64);
    }
    // Files of others are left alone, those that nobody finishes are not.
    fs::write(folder.0.join("notes.txt"), vec![0; 1000]).unwrap();
    let abandoned = folder.0.join("x.1-0.unfinished");
    fs::write(&abandoned, b"").unwrap();
    long_ago(&abandoned, 2);
    assert!(store.find(key(1)).unwrap().is_some());
    write(&store, key(4));
    let mut expected: Vec<String> = [1, 3, 4].map(|number| format!("{}.weights", key(number))).into();
    expected.push("notes.txt".to_owned());
    expected.sort();
    assert_eq!(folder.names(), expected);
}

#[test]
fn what_is_larger_than_the_bound_is_not_written() {
    let folder = Folder::new("large");
    let store = folder.store(100);
    let packer = store.writer(key(1)).unwrap();
    assert_eq!(ask(&packer).0[0].slice::<f32>().unwrap(), [1.0, 2.0, 3.0]);
    let error = packer.finish().unwrap_err().to_string();
    assert_eq!(error, "it would be larger than the 100 bytes for all files");
    assert_eq!(folder.names(), Vec::<String>::new());
}

#[test]
fn without_a_folder_nothing_is_lost() {
    let folder = Folder::new("file");
    fs::write(&folder.0, b"no folder").unwrap();
    let store = folder.store(1 << 20);
    // What stands there instead of a folder is told where it matters: nothing can be written.
    let message = store.writer(key(1)).unwrap_err().to_string();
    assert!(message.contains(&folder.0.display().to_string()), "{message}");
    assert!(store.find(key(1)).is_err());
    fs::remove_file(&folder.0).unwrap();
    assert!(store.find(key(1)).unwrap().is_none());
}

#[test]
fn keys_tell_graphs_units_and_options_apart() {
    let options = |precision| CompileOptions { precision, ..CompileOptions::default() };
    let keys = [
        Key::new(1, "a", &CompileOptions::default()),
        Key::new(2, "a", &CompileOptions::default()),
        Key::new(1, "b", &CompileOptions::default()),
        Key::new(1, "a", &options(crate::Precision::Balanced)),
    ];
    for (index, key) in keys.iter().enumerate() {
        assert!(!keys[..index].contains(key));
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(parse(&bytes, key(1)).is_err());
    }

    /// Wherever a file is damaged, it is told, or what is found is what was packed: nobody reads what fills it up.
    #[test]
    fn damage_is_told_or_harms_nothing(damage in prop::collection::vec((any::<prop::sample::Index>(), 1..=255u8), 1..4)) {
        let contents: [Vec<u8>; 3] = [(0..300u32).map(|i| i as u8).collect(), Vec::new(), vec![7; 64]];
        let mut pieces = Vec::new();
        let mut whole = vec![0; HEAD_BYTES];
        for (layout, bytes) in (1..).zip(&contents) {
            pieces.push(Piece::new(layout, whole.len(), bytes));
            whole.extend(bytes);
            whole.resize(whole.len().next_multiple_of(ALIGNMENT), 0);
        }
        let (head, table) = head_and_table(&pieces, whole.len(), key(1));
        whole[..HEAD_BYTES].copy_from_slice(&head);
        whole.extend(table);
        prop_assert_eq!(parse(&whole, key(1)), Ok(pieces.clone()));
        let mut damaged = whole;
        for (index, bits) in damage {
            let index = index.index(damaged.len());
            damaged[index] ^= bits;
        }
        if let Ok(found) = parse(&damaged, key(1)) {
            prop_assert_eq!(&found, &pieces);
            for (piece, bytes) in found.iter().zip(&contents) {
                prop_assert_eq!(&damaged[piece.bytes.clone()], &bytes[..]);
            }
        }
    }

    /// Heads whose checksum is right, so that what they say is looked at.
    #[test]
    fn no_piece_lies_outside(rows in prop::collection::vec((0..400usize, 0..400usize), 0..4), end in 0..400usize) {
        let pieces: Vec<Piece> = rows.iter().map(|&(start, len)| Piece::new(1, start, &vec![0; len])).collect();
        let (head, table) = head_and_table(&pieces, end, key(1));
        let mut file = head.to_vec();
        file.resize(end.max(HEAD_BYTES), 0);
        file.extend(table);
        let mut next = HEAD_BYTES;
        let mut fits = |piece: &Piece| {
            let fits = piece.bytes.start.is_multiple_of(ALIGNMENT) && piece.bytes.start >= next && piece.bytes.end <= end;
            next = piece.bytes.end;
            fits
        };
        let parsed = parse(&file, key(1));
        prop_assert_eq!(parsed.is_ok(), end >= HEAD_BYTES && pieces.iter().all(&mut fits));
        prop_assert!(parsed.is_err() || parsed == Ok(pieces));
    }
}
