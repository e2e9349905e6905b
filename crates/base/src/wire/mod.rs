//! Byte layouts, little-endian, checked before use: a view is taken of the bytes, validated, and
//! turned into a value; nothing that a peer wrote is believed before that.

pub mod control;
pub mod handshake;
pub mod message;
pub mod node;
pub mod proof;
pub mod session;
pub mod slot;
pub mod stats;
