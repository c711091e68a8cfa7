//! Which values of a plan are blocked.
//!
//! A value may be blocked if everybody who writes or reads it can deal with that, and is if somebody is faster by it.
//! Some operands of a step have to lie alike, such as a result and what is added to it, so values are decided about in
//! groups. Where somebody looks beyond its pixels it has a border, if everybody can deal with that, too. No value is converted from one layout to the other: measured, one takes longer than a product gains
//! by reading it in blocks (`docs/benchmarks/layouts.md`).

use super::{Draft, Memory, Place};
use crate::layout::{Layout, Layouts, Stance, Stances};
use crate::program::{Code, Program};
use crate::{Prepared, TensorDesc};
use halimede_graph::{Node, ValueId};
use smallvec::SmallVec;

/// Values that lie alike, by a representative of each group.
struct Groups {
    parents: Vec<usize>,
    /// Of representatives: some value of the group has to be row-major.
    are_fixed: Vec<bool>,
    /// Of representatives: somebody is faster where they are blocked.
    are_wanted: Vec<bool>,
    /// Of representatives: the widest border that makes somebody faster, and whether none of the values can have one.
    borders: Vec<u8>,
    are_bare: Vec<bool>,
}

impl Groups {
    fn new(count: usize) -> Groups {
        Groups {
            parents: (0..count).collect(),
            are_fixed: vec![false; count],
            are_wanted: vec![false; count],
            borders: vec![0; count],
            are_bare: vec![false; count],
        }
    }

    fn of(&self, mut value: usize) -> usize {
        while self.parents[value] != value {
            value = self.parents[value];
        }
        value
    }

    fn fix(&mut self, value: usize) {
        let group = self.of(value);
        self.are_fixed[group] = true;
    }

    fn want(&mut self, value: usize) {
        let group = self.of(value);
        self.are_wanted[group] = true;
    }

    fn want_border(&mut self, value: usize, border: u8) {
        let group = self.of(value);
        self.borders[group] = self.borders[group].max(border);
        // Without one it makes no difference, but where there is nothing to see beyond.
        self.are_wanted[group] |= border == 0;
    }

    fn leave_bare(&mut self, value: usize) {
        let group = self.of(value);
        self.are_bare[group] = true;
    }

    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.of(a), self.of(b));
        if a != b {
            self.parents[b] = a;
            self.are_fixed[a] |= self.are_fixed[b];
            self.are_wanted[a] |= self.are_wanted[b];
            self.borders[a] = self.borders[a].max(self.borders[b]);
            self.are_bare[a] |= self.are_bare[b];
        }
    }

    fn layout(&self, value: usize) -> Layout {
        let group = self.of(value);
        match self.borders[group] {
            _ if self.are_fixed[group] => Layout::RowMajor,
            border if border > 0 && !self.are_bare[group] => Layout::Bordered(border),
            _ if self.are_wanted[group] => Layout::Blocked,
            _ => Layout::RowMajor,
        }
    }
}

impl Memory {
    /// Decides which values are blocked, and prepares the steps that write and read them for that. Values that share
    /// bytes, because one is the other under another shape, are known already.
    pub(super) fn lay_out(&mut self, program: &Program, drafts: &mut [Draft]) {
        let stances: Vec<Option<Stances>> = drafts.iter().map(|draft| self.stances(program, draft)).collect();
        if !stances.iter().flatten().any(Stances::wants_blocks) {
            return;
        }
        let graph = program.graph();
        let mut groups = Groups::new(self.roots.len());
        for value in 0..self.roots.len() {
            let root = self.root(value);
            if root != value {
                // Its rows are others.
                groups.fix(value);
                groups.fix(root);
            }
            if self.places[value] != Place::Nothing {
                groups.fix(value);
            }
        }
        graph.outputs.iter().for_each(|output| groups.fix(output.index()));
        for (draft, stances) in drafts.iter().zip(&stances) {
            let node = &graph.nodes[draft.node];
            for (value, stance) in operands(node, stances.as_ref()) {
                // A slice of what is there as a whole does not lie together in blocks.
                let is_whole = draft.sliced.is_some() && self.slices[value.index()] == 1;
                match stance {
                    Stance::RowMajor => groups.fix(value.index()),
                    Stance::Either => {}
                    Stance::Faster => groups.want(value.index()),
                    Stance::Bordered(border) => groups.want_border(value.index(), border),
                    Stance::AsOutput => groups.join(value.index(), node.outputs[0].index()),
                }
                if stances.as_ref().is_none_or(|stances| !stances.takes_borders) {
                    groups.leave_bare(value.index());
                }
                if is_whole {
                    // Together with what has to lie as it does.
                    groups.fix(value.index());
                }
            }
        }
        let chosen: Vec<Layout> = (0..self.roots.len()).map(|value| groups.layout(value)).collect();
        // Who says that a value may lie so knows that it can; one that took no memory would be worse than one that is row-major.
        let fits = |value: usize| match (chosen[value], &self.descs[value]) {
            (Layout::RowMajor, _) => true,
            (layout, desc) => desc.as_ref().is_some_and(|desc| layout.bytes(desc).is_some()),
        };
        if let Some(value) = (0..chosen.len()).find(|&value| !fits(value)) {
            debug_assert!(false, "{:?} cannot be {:?}", self.descs[value], chosen[value]);
            return;
        }
        let mut made = Vec::new();
        for (index, draft) in drafts.iter().enumerate() {
            let node = &graph.nodes[draft.node];
            let layouts = layouts_of(node, &chosen);
            if !layouts.are_row_major() {
                // A kernel that thinks better of what it said leaves all as it was.
                let Some(prepared) = self.laid_out(program, draft, &layouts) else {
                    debug_assert!(false, "{} is not prepared for what it takes: {layouts:?}", node.name);
                    return;
                };
                made.push((index, prepared));
            }
        }
        made.into_iter().for_each(|(index, prepared)| drafts[index].prepared = Some(prepared));
        self.layouts = chosen;
    }

    /// What a step, whole or of a slice, reads and writes.
    pub(super) fn described(&self, program: &Program, draft: &Draft) -> Option<Described> {
        if let Some((slices, _)) = draft.sliced {
            let sliced = self.sliced(program, draft, slices)?;
            return Some((sliced.inputs, sliced.outputs));
        }
        let node = &program.graph().nodes[draft.node];
        Some((self.input_descs(node), self.output_descs(node)?))
    }

    /// How the operands of a step may lie; `None` where all of them are row-major.
    fn stances(&self, program: &Program, draft: &Draft) -> Option<Stances> {
        draft.prepared.as_ref()?;
        let Code::Kernel(kernel) = &program.codes()[draft.node] else { return None };
        let (inputs, outputs) = self.described(program, draft)?;
        kernel.stances(&inputs, &outputs)
    }

    fn laid_out(&self, program: &Program, draft: &Draft, layouts: &Layouts) -> Option<Prepared> {
        let Code::Kernel(kernel) = &program.codes()[draft.node] else { return None };
        let (inputs, outputs) = self.described(program, draft)?;
        kernel.prepare_laid_out(&inputs, &outputs, layouts).ok()
    }
}

/// How the operands of a node lie, by how each value does.
pub(super) fn layouts_of(node: &Node, layouts: &[Layout]) -> Layouts {
    let layout = |value: ValueId| layouts[value.index()];
    Layouts {
        inputs: node.inputs.iter().map(|input| input.map_or(Layout::RowMajor, layout)).collect(),
        output: node.outputs.first().map_or(Layout::RowMajor, |&value| layout(value)),
        band: None,
    }
}

/// Inputs and outputs of a step.
type Described = (SmallVec<[Option<TensorDesc>; 4]>, SmallVec<[TensorDesc; 1]>);

/// The values that a node reads and writes, each with how it may lie.
fn operands<'a>(node: &'a Node, stances: Option<&'a Stances>) -> impl Iterator<Item = (ValueId, Stance)> + 'a {
    let input = move |index: usize| stances.and_then(|stances| stances.inputs.get(index).copied());
    let inputs = node.inputs.iter().enumerate();
    let inputs = inputs.filter_map(move |(index, value)| Some(((*value)?, input(index).unwrap_or(Stance::RowMajor))));
    let output = move |index: usize| stances.filter(|_| index == 0).map_or(Stance::RowMajor, |stances| stances.output);
    inputs.chain(node.outputs.iter().enumerate().map(move |(index, &value)| (value, output(index))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_alike_is_decided_about_together() {
        let mut groups = Groups::new(7);
        // A residual, its sum and the next one; somebody is faster with the first of them.
        groups.join(0, 1);
        groups.want(0);
        groups.join(2, 1);
        // Somebody is faster, but another one cannot.
        groups.want(3);
        groups.join(3, 4);
        groups.fix(4);
        // Nobody cares.
        groups.join(5, 6);
        let layouts: Vec<Layout> = (0..7).map(|value| groups.layout(value)).collect();
        let (rows, blocks) = (Layout::RowMajor, Layout::Blocked);
        assert_eq!(layouts, [blocks, blocks, blocks, rows, rows, rows, rows]);
        groups.join(2, 4);
        assert!((0..7).all(|value| groups.layout(value) == rows), "one of them has to be row-major, and so all have");
    }

    #[test]
    fn borders_are_as_wide_as_the_widest_and_for_those_who_can_have_them() {
        let mut groups = Groups::new(6);
        // Two look beyond what lies alike; a third is faster where it is blocked.
        groups.want_border(0, 1);
        groups.want_border(1, 2);
        groups.join(1, 0);
        // Somebody cannot have a border, and nobody else is faster with blocks.
        groups.want_border(2, 1);
        groups.leave_bare(2);
        // The same, and somebody is.
        groups.join(3, 4);
        groups.want_border(3, 1);
        groups.leave_bare(4);
        groups.want(4);
        // Nothing is seen beyond.
        groups.want_border(5, 0);
        let layouts: Vec<Layout> = (0..6).map(|value| groups.layout(value)).collect();
        let (rows, blocks, wide) = (Layout::RowMajor, Layout::Blocked, Layout::Bordered(2));
        assert_eq!(layouts, [wide, wide, rows, blocks, blocks, blocks]);
    }
}
