//! Regions of shared memory: what clients may say of them, compared with plain arithmetic on wide numbers.

use std::collections::BTreeMap;

use halimede_platform::shared_memory::{OwnedSharedMemory, SharedMemoryError};

use crate::{extensions, shared_memory::Regions};

/// Bytes of the object; no multiple of a page.
const OBJECT_BYTES: u64 = 10_000;

/// An object whose every byte tells where it lies.
pub(super) struct Object {
    memory: OwnedSharedMemory,
    content: Vec<u8>,
}

impl Object {
    pub fn new(name: &str) -> Result<Self, SharedMemoryError> {
        let memory = OwnedSharedMemory::create(&format!("/{name}"), OBJECT_BYTES)?;
        let content: Vec<u8> = (0..OBJECT_BYTES).map(|index| (index % 251) as u8).collect();
        memory.region().write(0, &content)?;
        Ok(Self { memory, content })
    }

    pub fn key(&self) -> &str {
        self.memory.region().key()
    }

    /// Runs the operations in `bytes`: a letter, a name of one letter and two numbers each. What follows
    /// an operation of an unknown letter is the body of a request to register a region.
    pub fn run(&self, mut bytes: &[u8]) -> bool {
        let regions = Regions::new(true);
        // What should be registered: the start and the length of each region.
        let mut expected: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        while let Some((operation, rest)) = Operation::split(bytes) {
            bytes = rest;
            let Operation { letter, name, first, second } = operation;
            let within = |size: u64| u128::from(first) + u128::from(second) <= u128::from(size);
            match letter {
                b'r' => {
                    let is_right = !expected.contains_key(&name) && within(OBJECT_BYTES);
                    assert_eq!(regions.register(&name, self.key(), first, second).is_ok(), is_right);
                    if is_right {
                        expected.insert(name, (first, second));
                    }
                }
                b'u' => {
                    assert!(regions.unregister(&name).is_ok());
                    expected.remove(&name);
                }
                b'p' => {
                    let place = regions.place(&name, first, second);
                    let Some(&(start, len)) = expected.get(&name) else {
                        assert!(place.is_err());
                        continue;
                    };
                    assert_eq!(place.is_ok(), within(len) && first < len.max(1));
                    if let Ok(place) = place {
                        let read = place.read().expect("the object is as large as it was");
                        let from = (start + first) as usize;
                        assert_eq!(&*read, &self.content[from..from + second as usize]);
                        assert!(place.write("o", &read).is_ok());
                        assert!(place.write("o", &[0].repeat(second as usize + 1)).is_err());
                    }
                }
                b's' => {
                    let status = regions.status(None).expect("shared memory is allowed");
                    let seen = status.into_iter().map(|region| (region.name, (region.offset, region.byte_size)));
                    assert_eq!(seen.collect::<BTreeMap<_, _>>(), expected);
                }
                _ => break,
            }
        }
        // Whatever it says, it names no object that there is, unless by its key.
        let _ = extensions::shared_memory::http_register(&regions, "body", bytes);
        let _ = extensions::shared_memory::http_status(&regions, "");
        let _ = extensions::shared_memory::grpc_status(&regions, "body");
        !expected.is_empty()
    }
}

struct Operation {
    letter: u8,
    name: String,
    first: u64,
    second: u64,
}

impl Operation {
    fn split(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let ([letter, name], rest) = bytes.split_first_chunk()?;
        let (first, rest) = rest.split_first_chunk()?;
        let (second, rest) = rest.split_first_chunk()?;
        let (first, second) = (u64::from_le_bytes(*first), u64::from_le_bytes(*second));
        let name = char::from(*name).to_string();
        Some((Self { letter: *letter, name, first, second }, rest))
    }
}
