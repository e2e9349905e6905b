//! Opcodes of the base transport header (IB spec table 38; RoCEv2 annex A17).

macro_rules! opcodes {
    ($($name:ident = $number:literal,)*) => {
        /// What a packet is for, with the number on the wire.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Opcode {
            $($name = $number,)*
        }

        impl Opcode {
            /// All that are spoken here.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            pub const fn from_number(number: u8) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }
        }
    };
}

opcodes! {
    SendFirst = 0x00,
    SendMiddle = 0x01,
    SendLast = 0x02,
    SendLastImmediate = 0x03,
    SendOnly = 0x04,
    SendOnlyImmediate = 0x05,
    WriteFirst = 0x06,
    WriteMiddle = 0x07,
    WriteLast = 0x08,
    WriteLastImmediate = 0x09,
    WriteOnly = 0x0A,
    WriteOnlyImmediate = 0x0B,
    ReadRequest = 0x0C,
    ReadResponseFirst = 0x0D,
    ReadResponseMiddle = 0x0E,
    ReadResponseLast = 0x0F,
    ReadResponseOnly = 0x10,
    Acknowledge = 0x11,
    AtomicAcknowledge = 0x12,
    CompareSwap = 0x13,
    FetchAdd = 0x14,
    SendLastInvalidate = 0x16,
    SendOnlyInvalidate = 0x17,
    DatagramOnly = 0x64,
    DatagramOnlyImmediate = 0x65,
    CongestionNotification = 0x81,
}

impl Opcode {
    /// May such a packet carry bytes of a message?
    pub const fn has_payload(self) -> bool {
        !matches!(
            self,
            Self::ReadRequest
                | Self::Acknowledge
                | Self::AtomicAcknowledge
                | Self::CompareSwap
                | Self::FetchAdd
                | Self::CongestionNotification
        )
    }
}
