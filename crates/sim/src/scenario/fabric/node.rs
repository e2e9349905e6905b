//! The software of one life of a machine: a fabric, exported memory, buffers.

use super::model::{Broken, Life, QUIET, byte, bytes};
use crate::provider::SimProvider;
use legato_base::Duration;
use legato_fabric::{Buffer, ConnectionId, Fabric, FabricConfig, RequestId};
use legato_verbs::{
    AccessFlags, Address, MemoryRegion, Provider as _, ScatterGatherEntry, VerbsError,
};

/// Bytes of a buffer: three packets.
pub(super) const PIECE: u32 = 12 * 1024;
const PIECES: usize = 12;
/// What a returned buffer is filled with.
const RETURNED: u8 = 0xA5;
/// Exported bytes that are only read.
pub(super) const READABLE: u32 = 16 * 1024;
/// Exported bytes that are written, each place once.
pub(super) const WRITABLE: u64 = 1024 * 1024;

/// For 16 connections of which most have one credit, and the first all that they want.
const SHARED_RECEIVES: u32 = 120;

/// How a fabric is made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Beliefs {
    /// How long it believes in a silent peer.
    pub(super) liveness: Duration,
    /// How long it does not believe its NIC.
    pub(super) late_write_bound: Duration,
    pub(super) shares_receives: bool,
}

/// A buffer, by its number.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) number: usize,
    entry: ScatterGatherEntry,
}

impl Buffer for Piece {
    fn entries(&self) -> Vec<ScatterGatherEntry> {
        vec![self.entry]
    }
}

/// How far a node is with connecting to another machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    Away,
    Connecting(ConnectionId),
    Up {
        connection: ConnectionId,
        life: Life,
    },
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) life: Life,
    pub(super) nic: SimProvider,
    pub(super) fabric: Fabric<Piece>,
    pub(super) exported: MemoryRegion,
    /// Bytes of the writable part that writes have been given.
    pub(super) given: u64,
    pieces: MemoryRegion,
    free: Vec<usize>,
    /// By machine.
    pub(super) peers: Vec<Peer>,
    /// Requests to answer.
    pub(super) requests: Vec<(RequestId, Vec<u8>)>,
}

pub(super) fn address(machine: usize) -> Address {
    Address::Sim(format!("service-{machine}"))
}

impl Node {
    pub(super) fn new(
        mut nic: SimProvider,
        life: Life,
        machines: usize,
        beliefs: Beliefs,
    ) -> Result<Self, VerbsError> {
        let config = FabricConfig {
            liveness: beliefs.liveness,
            late_write_bound: beliefs.late_write_bound,
            shared_receives: beliefs.shares_receives.then_some(SHARED_RECEIVES),
            incarnation: life.number << 8 | life.machine as u64,
            connections_max: 16,
            credits: 4,
            message_length_max: 200,
            one_sided_max: 8,
            first_generation: u32::MAX - 20,
            ..FabricConfig::default()
        };
        let mut fabric = Fabric::new(&mut nic, config)?;
        let remote =
            AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
        let length = u64::from(READABLE) + WRITABLE;
        let exported = nic.allocate_region(fabric.domain(), length, remote)?;
        nic.write_region(&exported, 0, &bytes(readable(life), READABLE))?;
        let length = PIECES as u64 * u64::from(PIECE);
        let pieces = nic.allocate_region(fabric.domain(), length, AccessFlags::LOCAL_WRITE)?;
        nic.write_region(&pieces, 0, &vec![RETURNED; length as usize])?;
        fabric.listen(&mut nic, &address(life.machine))?;
        Ok(Self {
            life,
            nic,
            fabric,
            exported,
            given: 0,
            pieces,
            free: (0..PIECES).collect(),
            peers: vec![Peer::Away; machines],
            requests: Vec::new(),
        })
    }

    /// A buffer of its own for an operation, if there is one and nobody has touched it.
    pub(super) fn take_piece(&mut self, length: u32) -> Result<Option<Piece>, Broken> {
        let Some(number) = self.free.pop() else {
            return Ok(None);
        };
        self.check_quiet(number)?;
        let entry = self.pieces.entry(Self::offset(number), length);
        Ok(Some(Piece { number, entry }))
    }

    pub(super) fn fill_piece(&mut self, piece: &Piece, with: &[u8]) -> Result<(), Broken> {
        let offset = Self::offset(piece.number);
        let written = self.nic.write_region(&self.pieces, offset, with);
        written.map_err(|error| (QUIET, format!("a buffer cannot be written: {error}")))
    }

    pub(super) fn give_piece(&mut self, piece: &Piece) -> Result<(), Broken> {
        self.fill_piece(piece, &[RETURNED; PIECE as usize])?;
        self.free.push(piece.number);
        Ok(())
    }

    pub(super) fn read_piece(&self, number: usize, length: u32) -> Option<Vec<u8>> {
        let mut into = vec![0; length as usize];
        self.nic
            .read_region(&self.pieces, Self::offset(number), &mut into)
            .ok()?;
        Some(into)
    }

    /// What is exported at a place.
    pub(super) fn read_exported(&self, offset: u64, length: u32) -> Option<Vec<u8>> {
        let mut into = vec![0; length as usize];
        self.nic
            .read_region(&self.exported, offset, &mut into)
            .ok()?;
        Some(into)
    }

    /// No returned buffer has changed.
    pub(super) fn check_all_quiet(&self) -> Result<(), Broken> {
        self.free
            .iter()
            .try_for_each(|&number| self.check_quiet(number))
    }

    fn check_quiet(&self, number: usize) -> Result<(), Broken> {
        let held = self.read_piece(number, PIECE).unwrap_or_default();
        match held.iter().position(|&byte| byte != RETURNED) {
            None => Ok(()),
            Some(place) => Err((
                QUIET,
                format!("buffer {number} holds {:#04x} at {place}", held[place]),
            )),
        }
    }

    /// What the machine's regions are given back as.
    pub(super) fn end(&mut self) -> Result<(), VerbsError> {
        let exported = self.nic.deregister_region(&self.exported);
        let pieces = self.nic.deregister_region(&self.pieces);
        let ended = self.fabric.shutdown(&mut self.nic);
        exported.and(pieces).and(ended)
    }

    const fn offset(number: usize) -> u64 {
        number as u64 * PIECE as u64
    }
}

/// The number whose bytes are in the readable part of a life's memory.
pub(super) const fn readable(life: Life) -> u64 {
    (1 << 40) + (life.number << 8) + life.machine as u64
}

/// What a read of exported memory must bring.
pub(super) fn expected(life: Life, offset: u64, length: u32) -> Vec<u8> {
    (offset..offset + u64::from(length))
        .map(|place| byte(readable(life), place))
        .collect()
}
