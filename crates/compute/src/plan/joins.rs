//! Values that are made where a later step puts them.
//!
//! A step that joins values copies each of them to its place. Where one lies there as it is (`Kernel::joins`), it can
//! have been made there:
//!
//! ```text
//! before   a ████   b ██      joined ████ ██      read and written once more
//! after                       joined ████ ██      a and b are parts of it, from when they are made
//! ```

use super::layouts::layouts_of;
use super::{Draft, Memory, Place};
use crate::arena;
use crate::program::{Code, Program};
use halimede_graph::ValueId;
use smallvec::SmallVec;

impl Memory {
    /// Makes values that are joined parts of what they become, where they can be. Layouts are known already, and nothing has
    /// taken the memory of something else.
    pub(super) fn join(&mut self, program: &Program, drafts: &[Draft]) {
        let graph = program.graph();
        let mut are_made = vec![false; self.roots.len()];
        for output in drafts.iter().flat_map(|draft| &graph.nodes[draft.node].outputs) {
            are_made[output.index()] = true;
        }
        let outputs: Vec<usize> = graph.outputs.iter().map(|output| self.root(output.index())).collect();
        for draft in drafts {
            let node = &graph.nodes[draft.node];
            let (Some(&joined), Some(places)) = (node.outputs.first(), self.places_in(program, draft)) else {
                continue;
            };
            // Slices of a batch that is there as a whole lie elsewhere each.
            let (whole, slices) = (joined.index(), draft.sliced.as_ref().map_or(1, |(slices, _)| *slices));
            if self.root(whole) != whole || self.places[whole] != Place::Nothing || self.slices[whole] != slices {
                continue;
            }
            for (&input, offset) in node.inputs.iter().zip(places) {
                let Some(input) = input.map(ValueId::index) else { continue };
                let part = self.root(input);
                // No part of something else, though it may be known by other names.
                let is_its_own = part != whole && self.bytes(part) == self.bytes(input);
                let is_made = self.places[part] == Place::Nothing && are_made[part] && !outputs.contains(&part);
                let fits = self.slices[part] == slices && offset.is_multiple_of(arena::ALIGNMENT);
                if is_its_own && is_made && fits {
                    (self.roots[part], self.offsets[part]) = (whole, offset);
                }
            }
        }
    }

    /// Where a step puts its inputs, in bytes from the start of its output.
    fn places_in(&self, program: &Program, draft: &Draft) -> Option<SmallVec<[usize; 4]>> {
        draft.prepared.as_ref()?;
        let Code::Kernel(kernel) = &program.codes()[draft.node] else { return None };
        let (inputs, outputs) = self.described(program, draft)?;
        kernel.joins(&inputs, &outputs, &layouts_of(&program.graph().nodes[draft.node], &self.layouts))
    }
}
