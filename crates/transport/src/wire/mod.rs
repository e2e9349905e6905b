//! Packets as bytes, from the base transport header to before the invariant CRC, big-endian (IB
//! spec 9.2, 9.3), checked before use; and the invariant CRC.

mod body;
mod header;
pub mod icrc;
mod inverse;
mod opcode;
mod packet;
mod syndrome;

pub use body::{Body, Extra};
pub use header::{AtomicHeader, BaseHeader, DatagramHeader, RemoteHeader};
pub use opcode::Opcode;
pub use packet::{HEADERS_MAX, Packet, PacketError, encode};
pub use syndrome::{Acknowledgement, NakCode, Syndrome};
