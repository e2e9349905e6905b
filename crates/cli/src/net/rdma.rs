//! RDMA devices: which ports there are, how a page goes over each, and why one cannot be used.

use super::Device;
use legato_base::PAGE_SIZE;
use legato_providers::ibverbs::{self, DevicePort, DevicesError, Library};
use legato_providers::roce::carrier::MTU_OF_ONE_PACKET;
use legato_verbs::{Address, PathMtu, ROCE_PORT, VerbsPort};
use std::net::{IpAddr, SocketAddr};

const PROVIDER: &str = "ibverbs";
const NO_DEVICES: &str = "no RDMA devices: /sys/class/infiniband is empty; a NIC's driver brings them, and \
                          rdma link add rxe0 type rxe netdev NAME makes one of software";

/// The ports of this machine's devices.
pub(crate) fn ports() -> Result<Vec<DevicePort>, DevicesError> {
    let library = Library::open()?;
    ibverbs::devices(&library)
}

/// A line for each port, or one that says why there is none.
pub(super) fn devices(found: Result<Vec<DevicePort>, DevicesError>) -> Vec<Device> {
    let none = |why| Device {
        provider: PROVIDER,
        interface: None,
        address: None,
        state: Err(why),
    };
    match found {
        Err(error) => vec![none(error.to_string())],
        Ok(ports) if ports.is_empty() => vec![none(NO_DEVICES.to_owned())],
        Ok(ports) => ports.iter().map(of_port).collect(),
    }
}

fn of_port(port: &DevicePort) -> Device {
    let ip = ip_of(port);
    let name = match port.port {
        0 => port.device.clone(),
        number => format!("{}/{number}", port.device),
    };
    let by_name = (port.port > 0).then(|| {
        Address::VerbsPort(VerbsPort {
            device: port.device.clone(),
            port: port.port,
            service: ROCE_PORT,
        })
    });
    let by_ip = ip.map(|ip| Address::Verbs(SocketAddr::new(ip, ROCE_PORT)));
    Device {
        provider: PROVIDER,
        interface: Some(name),
        address: by_ip.or(by_name),
        state: state(port, ip),
    }
}

/// By which others reach it.
fn ip_of(port: &DevicePort) -> Option<IpAddr> {
    let is_global = |ip: &IpAddr| !matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let ips = port.gids.iter().filter_map(|gid| gid.ip);
    ips.filter(is_global).min_by_key(IpAddr::is_ipv6)
}

/// What it is good for, or why for nothing.
fn state(port: &DevicePort, ip: Option<IpAddr>) -> Result<String, String> {
    if let Some(why) = &port.unusable {
        return Err(why.to_string());
    }
    if port.is_ethernet && ip.is_none() {
        return Err(
            "its GIDs are link-local addresses alone, which mean another machine on each link: give the \
             network interface a global one"
                .to_owned(),
        );
    }
    Ok(port.active_mtu.map_or_else(
        || "its MTU is not known".to_owned(),
        |mtu| worth(mtu, port.is_ethernet),
    ))
}

fn worth(mtu: PathMtu, is_ethernet: bool) -> String {
    let packets = (PAGE_SIZE as u32).div_ceil(mtu.bytes());
    let advice = match (packets, is_ethernet) {
        (1, _) => String::new(),
        (_, true) => {
            format!("; an MTU of {MTU_OF_ONE_PACKET} of its network interface makes it one")
        }
        (_, false) => "; an MTU of 4096 of the fabric makes it one".to_owned(),
    };
    let kind = if is_ethernet { "RoCE" } else { "InfiniBand" };
    format!(
        "{kind}: packets of {}, {packets} for a page{advice}",
        mtu.bytes()
    )
}

/// Whether it can be used at all.
pub(crate) fn is_usable(port: &DevicePort) -> bool {
    state(port, ip_of(port)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use legato_providers::ibverbs::{GidKind, PortGid, PortState, Unusable};

    fn port(ips: &[&str]) -> DevicePort {
        let gid = |(index, ip): (usize, &&str)| PortGid {
            index: index as u32,
            gid: Default::default(),
            kind: GidKind::RoceV2,
            ip: Some(ip.parse().unwrap()),
        };
        DevicePort {
            device: "rxe0".to_owned(),
            port: 1,
            state: PortState::Active,
            is_ethernet: true,
            active_mtu: Some(PathMtu::Bytes1024),
            gids: ips.iter().enumerate().map(gid).collect(),
            unusable: None,
        }
    }

    fn text_of(port: DevicePort) -> String {
        devices(Ok(vec![port])).remove(0).text()
    }

    #[test]
    fn a_port_has_the_address_by_which_others_reach_it() {
        let text = text_of(port(&["fe80::1", "2001:db8::1", "10.0.0.1"]));
        assert!(text.contains("rxe0/1"), "{text}");
        assert!(text.contains(" verbs://10.0.0.1:4791 "), "{text}");
        assert!(
            text.contains("RoCE: packets of 1024, 4 for a page; an MTU of"),
            "{text}"
        );
        let jumbo = DevicePort {
            active_mtu: Some(PathMtu::Bytes4096),
            ..port(&["10.0.0.1"])
        };
        assert!(text_of(jumbo).ends_with("packets of 4096, 1 for a page"));
    }

    #[test]
    fn why_a_port_cannot_be_used_is_one_line() {
        let with = |unusable| DevicePort {
            unusable: Some(unusable),
            ..port(&[])
        };
        for (port, word) in [
            (with(Unusable::PortNotActive(PortState::Down)), "down"),
            (with(Unusable::NoGid), "GID"),
            (with(Unusable::PermissionDenied), "/dev/infiniband"),
            (with(Unusable::NoDeviceNode), "ib_uverbs"),
            (with(Unusable::MemoryLock { limit_kib: 64 }), "ulimit -l"),
            (port(&["fe80::1"]), "link-local"),
        ] {
            let text = text_of(port);
            assert!(text.contains("unusable: ") && text.contains(word), "{text}");
            assert_eq!(text.lines().count(), 1, "{text}");
        }
    }

    #[test]
    fn why_there_are_no_devices_is_one_line() {
        let missing = std::path::Path::new("/nowhere/libibverbs.so.1");
        let missing = Library::open_at(missing, missing).unwrap_err();
        for (found, word) in [
            (Err(DevicesError::Load(missing)), "apt install"),
            (Err(DevicesError::List(38)), "ib_uverbs"),
            (Ok(vec![]), "rdma link add"),
        ] {
            let lines = devices(found);
            let text = lines[0].text();
            assert_eq!(lines.len(), 1);
            assert!(
                text.contains("no RDMA devices: ") && text.contains(word),
                "{text}"
            );
            assert_eq!(text.lines().count(), 1, "{text}");
            assert_eq!(lines[0].json()["usable"], false);
        }
    }
}
