//! What a carrier has counted.

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a carrier and an inbox have counted since they were made.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Of both together.
            #[must_use]
            pub const fn plus(self, other: &Self) -> Self {
                Self { $($name: self.$name.wrapping_add(other.$name),)* }
            }
        }
    };
}

counters! {
    packets_sent,
    bytes_sent,
    /// System calls that sent.
    sends,
    /// Messages of several packets that the kernel or the NIC cut into datagrams.
    segmented_messages,
    /// Messages that had to be sent packet by packet, because the device cannot segment.
    segmentation_refused,
    /// Times that a socket took no more, and a buffer of ours had to wait.
    would_block,
    /// Packets that could not be sent at all; each is told as a notice too.
    refused,
    /// Packets that the device's queue dropped on the way out.
    dropped_by_device,
    /// Answers of routers and hosts to what was sent before (ICMP).
    icmp_errors,
    /// Notices that nobody took in time.
    notices_lost,
    /// Connections of a stream made, and lost again.
    connections,
    connections_lost,
    /// Connections dropped because what came was no packet of a peer's.
    garbage,
    /// Connections dropped because the peer has another secret, or only one side has any.
    secrets_refused,
    packets_received,
    bytes_received,
    /// System calls that received something.
    receives,
    /// Messages that the kernel had joined from several datagrams.
    joined_messages,
    /// Packets whose invariant CRC is wrong.
    damaged,
    /// Datagrams too short or too long for a packet.
    malformed,
    /// IPv4 packets whose identification was what an own sender's would be. Damage to them is found
    /// with the full strength of the CRC.
    identifications_expected,
    /// IPv4 packets whose identification was found from the CRC. One of 2^16 damaged ones is not
    /// found out by it, only by the checksums of UDP and of the link.
    identifications_solved,
}
