//! Where a listener is: `shm:NAME`, `sim:NAME`, `roce://HOST:PORT`, `roce://HOST/SERVICE`,
//! `roce+tcp://HOST:PORT`, `verbs://HOST:PORT`, `verbs://DEVICE/PORT`, or `HOST:PORT` for the best that
//! both sides have.

use alloc::format;
use alloc::string::{String, ToString};
use core::fmt;
use core::net::{Ipv6Addr, SocketAddr};
use core::str::FromStr;

/// UDP port of RoCEv2 (annex A17.3.2). Over TCP the same number is used where none is given.
pub const ROCE_PORT: u16 = 4791;

/// An address that a provider can listen on or connect to.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// A Unix socket: a path, or after `@` a name in the abstract namespace, which leaves nothing
    /// in any file system.
    Shm(String),
    /// A named port of the simulator.
    Sim(String),
    /// RoCEv2 over UDP: a port, and the service of the same number there.
    Roce(SocketAddr),
    /// RoCEv2 as devices speak it, from UDP port [`ROCE_PORT`] to that port. The number here is the
    /// service's: a port of `rdma_cm(7)`.
    RoceService(SocketAddr),
    /// The packets of RoCEv2 in a TCP stream.
    RoceTcp(SocketAddr),
    /// An RDMA device, which is found by its IP address (`rdma_cm(7)`).
    Verbs(SocketAddr),
    /// An RDMA device of this machine by its name.
    VerbsPort(VerbsPort),
    /// The best that both sides have.
    Any(SocketAddr),
}

/// A port of an RDMA device of this machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VerbsPort {
    /// As `ibv_devices(1)` lists it.
    pub device: String,
    /// From 1.
    pub port: u8,
    /// The port of `rdma_cm(7)` that is listened at there.
    pub service: u16,
}

/// Why a text is not an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    #[error(
        "'{0}' has no known scheme: write shm:/path/to/socket, shm:@name, host:port, \
         roce://host:port, roce://host/service, roce+tcp://host:port, verbs://host:port or \
         verbs://device/port"
    )]
    UnknownScheme(String),
    #[error("the address has no name after '{0}:'")]
    Empty(&'static str),
    #[error("the name in '{0}' is longer than a Unix socket allows (107 bytes)")]
    TooLong(String),
    #[error("'{0}' is neither host:port nor an IP address, which is in [] if it is IPv6")]
    BadHost(String),
    #[error(
        "'{0}' names no port of an RDMA device: write DEVICE/PORT, such as mlx5_0/1, and :SERVICE \
         behind it for another port of rdma_cm than {ROCE_PORT}"
    )]
    BadDevice(String),
    /// The text is right, but only whoever has a resolver can make an address of it.
    #[error("'{}' is a name, which has to be resolved", .0.host)]
    Unresolved(UnresolvedAddress),
    #[error(
        "'{0}' names no service of an RDMA device: write roce://HOST/SERVICE, where the service is a \
         number from 1 to 65535"
    )]
    BadService(String),
}

/// An address with a name where an IP address belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnresolvedAddress {
    scheme: IpScheme,
    pub host: String,
    pub port: u16,
}

impl UnresolvedAddress {
    /// The address, when the host is known to be at `host`, whose port does not matter.
    pub fn resolve(&self, mut host: SocketAddr) -> Address {
        host.set_port(self.port);
        self.scheme.at(host)
    }
}

/// The kinds of addresses that are a host and a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IpScheme {
    Roce,
    RoceService,
    RoceTcp,
    Verbs,
    Any,
}

impl IpScheme {
    const fn at(self, address: SocketAddr) -> Address {
        match self {
            Self::Roce => Address::Roce(address),
            Self::RoceService => Address::RoceService(address),
            Self::RoceTcp => Address::RoceTcp(address),
            Self::Verbs => Address::Verbs(address),
            Self::Any => Address::Any(address),
        }
    }

    /// `HOST/SERVICE`.
    fn parse_service(text: &str) -> Result<Address, AddressError> {
        let bad = || AddressError::BadService(text.to_string());
        let (host, service) = text.split_once('/').ok_or_else(bad)?;
        let service: u16 = service.parse().map_err(|_| bad())?;
        // A port of UDP beside it would be another one than devices have.
        if service == 0 || host.parse::<SocketAddr>().is_ok() {
            return Err(bad());
        }
        Self::RoceService.parse(&format!("{host}:{service}"))
    }

    fn parse(self, text: &str) -> Result<Address, AddressError> {
        if let Ok(address) = text.parse() {
            return Ok(self.at(address));
        }
        if let Ok(address) = format!("{text}:{ROCE_PORT}").parse() {
            return Ok(self.at(address));
        }
        let bad = || AddressError::BadHost(text.to_string());
        let (host, rest) = match text.strip_prefix('[').and_then(|text| text.split_once(']')) {
            Some((host, rest)) if has_interface_name(host) => (host, rest),
            Some(_) => return Err(bad()),
            None => {
                let (host, rest) = text.split_at(text.find(':').unwrap_or(text.len()));
                if !is_host_name(host) {
                    return Err(bad());
                }
                (host, rest)
            }
        };
        let port = match rest.strip_prefix(':') {
            Some(port) => port.parse().map_err(|_| bad())?,
            None if rest.is_empty() => ROCE_PORT,
            None => return Err(bad()),
        };
        Err(AddressError::Unresolved(UnresolvedAddress {
            scheme: self,
            host: host.to_string(),
            port,
        }))
    }
}

impl VerbsPort {
    fn parse(text: &str) -> Result<Self, AddressError> {
        let bad = || AddressError::BadDevice(text.to_string());
        let (device, place) = text.split_once('/').ok_or_else(bad)?;
        let (port, service) = match place.split_once(':') {
            Some((port, service)) => (port, service.parse().map_err(|_| bad())?),
            None => (place, ROCE_PORT),
        };
        let port = port.parse().map_err(|_| bad())?;
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        // What may stand in a file name of sysfs (IBV_SYSFS_NAME_MAX is 64 with the final zero).
        if port == 0 || device.is_empty() || device.len() > 63 || !device.bytes().all(is_name) {
            return Err(bad());
        }
        Ok(Self {
            device: device.to_string(),
            port,
            service,
        })
    }
}

impl fmt::Display for VerbsPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}:{}", self.device, self.port, self.service)
    }
}

/// Letters, digits, dots and hyphens (RFC 1123, 2.1), and the underscore that many have. A name of
/// digits and dots alone is a mistyped IPv4 address.
fn is_host_name(text: &str) -> bool {
    text.len() <= HOST_NAME_MAX
        && text.bytes().any(|byte| byte.is_ascii_alphabetic())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte))
}

/// An IPv6 address and, after `%`, the name of the interface that it is reached by (RFC 4007, 11).
fn has_interface_name(text: &str) -> bool {
    text.split_once('%').is_some_and(|(address, name)| {
        let is_part = |byte: u8| byte.is_ascii_graphic() && !b"/:".contains(&byte);
        address.parse::<Ipv6Addr>().is_ok()
            && (1..=INTERFACE_NAME_MAX).contains(&name.len())
            && name.bytes().all(is_part)
    })
}

/// Longest name of a network interface (IFNAMSIZ less its final zero, netdevice(7)).
const INTERFACE_NAME_MAX: usize = 15;
/// Longest name of the domain name system, as text.
const HOST_NAME_MAX: usize = 253;
/// Longest name of a Unix socket (`sun_path` less its final zero, unix(7)).
const UNIX_NAME_MAX: usize = 107;

impl Address {
    /// IP address and port, or IP address and service, of those that have them.
    pub const fn place(&self) -> Option<SocketAddr> {
        match self {
            Self::Roce(place)
            | Self::RoceService(place)
            | Self::RoceTcp(place)
            | Self::Verbs(place)
            | Self::Any(place) => Some(*place),
            Self::Shm(_) | Self::Sim(_) | Self::VerbsPort(_) => None,
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Some(rest) = text.strip_prefix("roce://") {
            if rest.contains('/') {
                return IpScheme::parse_service(rest);
            }
            return IpScheme::Roce.parse(rest);
        }
        if let Some(rest) = text.strip_prefix("roce+tcp://") {
            return IpScheme::RoceTcp.parse(rest);
        }
        if let Some(rest) = text.strip_prefix("verbs://") {
            if rest.contains('/') {
                return VerbsPort::parse(rest).map(Self::VerbsPort);
            }
            return IpScheme::Verbs.parse(rest);
        }
        match text.split_once(':') {
            Some(("shm", "" | "@")) => Err(AddressError::Empty("shm")),
            Some(("shm", name)) if name.len() > UNIX_NAME_MAX => {
                Err(AddressError::TooLong(text.to_string()))
            }
            Some(("shm", name)) => Ok(Self::Shm(name.to_string())),
            Some(("sim", "")) => Err(AddressError::Empty("sim")),
            Some(("sim", name)) => Ok(Self::Sim(name.to_string())),
            _ => IpScheme::Any.parse(text).map_err(|error| match error {
                AddressError::BadHost(text) => AddressError::UnknownScheme(text),
                other => other,
            }),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shm(name) => write!(f, "shm:{name}"),
            Self::Sim(name) => write!(f, "sim:{name}"),
            Self::Roce(address) => write!(f, "roce://{address}"),
            Self::RoceService(at) => {
                // The host with the brackets and the scope of IPv6.
                let text = at.to_string();
                let host = text.rsplit_once(':').map_or("", |(host, _)| host);
                write!(f, "roce://{host}/{}", at.port())
            }
            Self::RoceTcp(address) => write!(f, "roce+tcp://{address}"),
            Self::Verbs(address) => write!(f, "verbs://{address}"),
            Self::VerbsPort(port) => write!(f, "verbs://{port}"),
            Self::Any(address) => write!(f, "{address}"),
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_a_round_trip() {
        for text in [
            "shm:/run/legato/node.sock",
            "shm:@legato-1",
            "sim:node-a",
            "roce://10.0.0.1:4791",
            "roce://[fe80::1%3]:18515",
            "roce://10.0.0.1/4791",
            "roce://[fe80::1%3]/7000",
            "roce+tcp://[2001:db8::7]:4791",
            "verbs://10.0.0.1:4791",
            "verbs://mlx5_0/1:7000",
            "192.0.2.1:1",
            "[::1]:4791",
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn the_port_may_be_left_out() {
        for (short, long) in [
            ("roce://10.0.0.1", "roce://10.0.0.1:4791"),
            ("roce+tcp://[::1]", "roce+tcp://[::1]:4791"),
            ("verbs://[::1]", "verbs://[::1]:4791"),
            ("verbs://rxe0/2", "verbs://rxe0/2:4791"),
            ("192.0.2.1", "192.0.2.1:4791"),
        ] {
            assert_eq!(short.parse::<Address>().unwrap().to_string(), long);
        }
    }

    #[test]
    fn a_name_waits_for_a_resolver() {
        for (text, at) in [
            ("roce://node-1.example", "roce://10.0.0.9:4791"),
            ("roce+tcp://node_1:99", "roce+tcp://10.0.0.9:99"),
            ("roce://node-1/7000", "roce://10.0.0.9/7000"),
            ("node:1", "10.0.0.9:1"),
        ] {
            let Err(AddressError::Unresolved(name)) = text.parse::<Address>() else {
                panic!("{text} is a name");
            };
            let host = ([10, 0, 0, 9], 1).into();
            assert_eq!(name.resolve(host).to_string(), at);
        }
    }

    #[test]
    fn an_interface_has_a_name() {
        for (text, host, at) in [
            (
                "roce://[fe80::1%eth0]",
                "fe80::1%eth0",
                "roce://[fe80::1%7]:4791",
            ),
            (
                "roce+tcp://[fe80::1%br-0.5]:99",
                "fe80::1%br-0.5",
                "roce+tcp://[fe80::1%7]:99",
            ),
            (
                "roce://[fe80::1%eth0]/7000",
                "fe80::1%eth0",
                "roce://[fe80::1%7]/7000",
            ),
            ("[fe80::1%eth0]:1", "fe80::1%eth0", "[fe80::1%7]:1"),
        ] {
            let Err(AddressError::Unresolved(name)) = text.parse::<Address>() else {
                panic!("{text} has a name");
            };
            assert_eq!(name.host, host);
            assert_eq!(
                name.resolve("[fe80::1%7]:5".parse().unwrap()).to_string(),
                at
            );
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "",
            "tcp:host:1",
            "shm:",
            "shm:@",
            "sim:",
            "roce:",
            "roce://",
            "roce+tcp://",
            "roce://:1",
            "roce://node:",
            "roce://node:65536",
            "roce://10.0.0",
            "roce://::1",
            "roce://a b",
            "roce://[::1",
            "roce://[fe80::1%]",
            "roce://[fe80::1%a/b]",
            "roce://[fe80::1%sixteen_letters_]",
            "roce://[fe80::1%eth0]4791",
            "roce://[fe80::1%eth0]:4791/7000",
            "roce://[10.0.0.1%eth0]",
            "roce://[node%eth0]",
            "roce://10.0.0.1/",
            "roce://10.0.0.1/0",
            "roce://10.0.0.1/65536",
            "roce://10.0.0.1:4791/7000",
            "roce://node:4791/7000",
            "roce:///7000",
            "10.0.0.256:1",
            "verbs://",
            "verbs:///1",
            "verbs://rxe0/",
            "verbs://rxe0/0",
            "verbs://rxe0/256",
            "verbs://rxe0/1:",
            "verbs://rxe0/1/2",
            "verbs://a b/1",
            "http://node:80",
        ] {
            assert!(
                matches!(
                    text.parse::<Address>(),
                    Err(AddressError::UnknownScheme(_)
                        | AddressError::Empty(_)
                        | AddressError::BadHost(_)
                        | AddressError::BadDevice(_)
                        | AddressError::BadService(_))
                ),
                "{text}"
            );
        }
        let long = alloc::format!("shm:/{}", "x".repeat(200));
        assert!(matches!(
            long.parse::<Address>(),
            Err(AddressError::TooLong(_))
        ));
    }
}
