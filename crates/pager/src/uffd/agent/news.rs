//! What the agent tells the supervisor: children, and what people must know.

use super::{Agent, ProviderGlue};
use crate::{NodeIndex, PagerEvent, SpaceId, SpacePage, Stuck};
use alloc::format;
use alloc::string::{String, ToString};
use legato_base::wire::control::{AgentMessageBody, NodeSet};
use legato_base::wire::slot::SlotMismatch;
use rustix::process::Signal;

/// Of pages that came back as something else, a line for each of so many.
const REJECTIONS_TOLD: u64 = 4;

impl<G: ProviderGlue> Agent<G> {
    /// The supervisor holds every userfaultfd too: should the agent die, pages stay missing
    /// instead of reading zero. Also those of children whose forks wait until no event is missing.
    pub(super) fn hand_over_newborns(&mut self) {
        let supervisor = &mut self.supervisor;
        // If this fails the supervisor is gone, which is noticed elsewhere.
        self.pager.kernel_mut().hand_over_newborns(|fd| {
            let _ = supervisor.send(AgentMessageBody::Forked, &[fd]);
        });
    }

    /// The same of a child that did not wait.
    pub(super) fn hand_over(&self, space: SpaceId) {
        if let Some(fd) = self.pager.kernel().descriptor(space) {
            // If this fails the supervisor is gone, which is noticed elsewhere.
            let _ = self.supervisor.send(AgentMessageBody::Forked, &[fd]);
        }
    }

    /// A lost page was touched on a kernel without SIGBUS for it: whoever touched it waits, and is
    /// ended.
    fn end_for_lost(&self, page: SpacePage) {
        let text = format!(
            "the page at {:#x} is lost and was touched, and this kernel cannot answer with SIGBUS \
             (Linux 6.6 can); see why its node was lost",
            page.page().address()
        );
        if page.space() == SpaceId::OWN {
            return self.fatal(text);
        }
        // Which process has this address space only the supervisor can find out: it kills what an
        // agent has served that ends without a word.
        self.notice(format!("a process that it has forked was killed: {text}"));
        self.users.kill();
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::KILL);
    }

    pub(super) fn report(&mut self) {
        if let Some(page) = self.pager.kernel_mut().take_damage() {
            self.fatal(format!(
                "the mapping at {:#x} was replaced while its pages were leaving; going on could \
                 show wrong memory; please report it",
                page.address()
            ));
        }
        if self.pager.kernel_mut().take_foreign() {
            self.notice(
                "part of the program's memory belongs to a userfaultfd of its own and stays local; all else \
                 goes far, and nothing needs to be done"
                    .to_string(),
            );
        }
        if self.pager.kernel_mut().take_unreadable() {
            self.fatal(
                "which memory a forked child does not inherit cannot be read (/proc/self/smaps); \
                 going on could show it what was to be wiped; let it read that"
                    .to_string(),
            );
        }
        if self.pager.kernel_mut().take_unclear_fork() {
            self.fatal(
                "a thread forked while others moved or unmapped memory, and the child has changed \
                 its own before it could be told which came first; going on could show wrong memory; \
                 let no thread move memory while another forks"
                    .to_string(),
            );
        }
        if let Some(page) = self.pager.kernel_mut().take_lost_touched() {
            self.end_for_lost(page);
        }
        while let Some(event) = self.pager.poll_event() {
            match event {
                PagerEvent::Ready => {}
                PagerEvent::NodeLost { node, pages, why } => {
                    self.tell_lost(node, pages, why.to_string());
                }
                PagerEvent::PageRejected {
                    page,
                    node,
                    mismatch,
                } => self.tell_rejected(page, node, mismatch),
                PagerEvent::FarMemoryFull(why) => {
                    let text = why.to_string();
                    let _ = self
                        .supervisor
                        .send(AgentMessageBody::FarMemoryFull { text }, &[]);
                    self.users.kill();
                }
                PagerEvent::NothingToEvict(stuck) => self.fatal(stuck_text(&stuck)),
                PagerEvent::PageVanished { page } => self.fatal(format!(
                    "the page at {:#x} was dropped without an announcement, as MADV_GUARD_INSTALL \
                     does; going on could show wrong memory; please report it",
                    page.page().address()
                )),
                PagerEvent::MappingVanished { page } => self.fatal(format!(
                    "the mapping of the page at {:#x} was removed without an announcement; going \
                     on could show wrong memory; please report it",
                    page.page().address()
                )),
                PagerEvent::MovedOver { page } => self.fatal(format!(
                    "memory was moved over the page at {:#x}, whose mapping was not said to be gone: \
                     threads move memory at the same time, and what they did cannot be told; going \
                     on could show wrong memory; let one thread at a time move memory",
                    page.page().address()
                )),
                PagerEvent::FrameEmpty { page, frame } => self.fatal(format!(
                    "Legato's frame {} is empty and should hold the page at {:#x} (a defect of \
                     Legato); going on could show wrong memory; please report it",
                    frame.0,
                    page.page().address()
                )),
            }
        }
    }

    /// Nodes that could not be used from the beginning, but for those of which the supervisor knows.
    pub(super) fn tell_unreached(&self, known: NodeSet) {
        for node in self.pager.lost_nodes() {
            if !known.contains(node.0 as usize) {
                let text = match self.pager.node_failure(node) {
                    Some(error) => error.to_string(),
                    None => "it refuses this client; its log says why".to_string(),
                };
                self.tell_lost(node, 0, text);
            }
        }
    }

    fn tell_lost(&self, node: NodeIndex, pages: u64, text: String) {
        let node = node.0;
        let _ = self
            .supervisor
            .send(AgentMessageBody::NodeLost { node, pages, text }, &[]);
    }

    /// Of many such pages only some are told: the first ones, and from there on each time that they are
    /// twice as many.
    fn tell_rejected(&mut self, page: SpacePage, node: NodeIndex, mismatch: SlotMismatch) {
        self.rejected += 1;
        let so_far = match self.rejected {
            1..=REJECTIONS_TOLD => String::new(),
            count if count.is_power_of_two() => format!(", as with {count} pages so far"),
            _ => return,
        };
        self.notice(format!(
            "the page at {:#x} is lost: {} gave back what is not it ({mismatch}), and there is no \
             other copy{so_far}; stop using that node, and test its memory",
            page.page().address(),
            self.nodes
                .get(node.0 as usize)
                .map_or("its node", String::as_str),
        ));
    }

    /// Tells people and goes on: whoever touches the page gets SIGBUS.
    pub(super) fn notice(&self, text: String) {
        let _ = self.supervisor.send(AgentMessageBody::Notice { text }, &[]);
    }

    /// The program cannot go on.
    fn fatal(&self, text: String) {
        let _ = self.supervisor.send(AgentMessageBody::Fatal { text }, &[]);
        self.users.kill();
    }
}

fn stuck_text(stuck: &Stuck) -> String {
    let Stuck {
        local,
        limit,
        frames,
        charged,
        stayed,
    } = stuck;
    format!(
        "nothing that is in local memory can leave it (locked, pinned or too small mappings), and \
         its part of --cache is used up (local {local} of {limit}: frames {frames}, in charge of \
         {charged}, of which {stayed} stayed); raise --cache"
    )
}
