//! `legato net devices`: what this machine has to reach memory nodes by, and what is in the way.

pub(crate) mod rdma;
mod taken;

use crate::args::{DevicesArguments, NetCommand};
use crate::failure::Failure;
use crate::output::print;
use if_addrs::{IfOperStatus, Interface};
use legato_base::PAGE_SIZE;
use legato_providers::RoceProvider;
use legato_providers::roce::carrier::{MTU_OF_ONE_PACKET, largest_path_mtu};
use legato_verbs::{Address, ROCE_PORT, VerbsError};
use serde_json::{Value, json};
use std::net::{IpAddr, SocketAddr};
use taken::Taken;

/// Receive buffer that a NIC asks for; the kernel grants no more than this setting, in bytes.
const BUFFER_SETTING: &str = "/proc/sys/net/core/rmem_max";
const BUFFER_WANTED: u64 = 4 << 20;

pub(crate) fn run(command: &NetCommand) -> Result<u8, Failure> {
    let NetCommand::Devices(DevicesArguments { json }) = command;
    let interfaces = if_addrs::get_if_addrs()
        .map_err(|error| Failure::system("cannot list the network interfaces", error))?;
    let mut devices = vec![Device::shared_memory()];
    let taken = Taken::now();
    let of_interface = |interface| Device::of_interface(interface, &taken);
    devices.extend(interfaces.iter().map(of_interface));
    devices.extend(rdma::devices(rdma::ports()));
    let hint = buffer_hint(std::fs::read_to_string(BUFFER_SETTING).ok().as_deref());
    if *json {
        let devices: Vec<Value> = devices.iter().map(Device::json).collect();
        print(format_args!(
            "{:#}",
            json!({ "devices": devices, "hint": hint })
        ))?;
    } else {
        let hint = hint.map(|hint| format!("hint       {hint}"));
        let lines: Vec<_> = devices.iter().map(Device::text).chain(hint).collect();
        print(lines.join("\n"))?;
    }
    Ok(0)
}

/// A way to memory nodes.
#[derive(Debug)]
struct Device {
    provider: &'static str,
    interface: Option<String>,
    /// To listen at.
    address: Option<Address>,
    /// What it is good for, or why it is good for nothing and what to do.
    state: Result<String, String>,
}

impl Device {
    fn shared_memory() -> Self {
        Self {
            provider: "shm",
            interface: None,
            address: None,
            state: Ok("memory nodes on this machine: shm:@NAME or shm:/PATH".to_owned()),
        }
    }

    fn of_interface(interface: &Interface, taken: &Taken) -> Self {
        let ip = interface.ip();
        let at = |port| {
            let mut place = SocketAddr::new(ip, port);
            if let SocketAddr::V6(place) = &mut place
                && ip_is_of_a_link(ip)
            {
                place.set_scope_id(interface.index.unwrap_or(0));
            }
            place
        };
        let mtu = mtu_of(&interface.name);
        let state = obstacle(&interface.oper_status).map_or_else(
            || {
                let opened = RoceProvider::open(&Address::Roce(at(0))).map(drop);
                opened
                    .map_err(|error| refusal(&error))
                    .and_then(|()| worth(ip, mtu))
                    .map(|worth| worth + &beside(at(ROCE_PORT), taken))
            },
            Err,
        );
        Self {
            provider: "roce",
            interface: Some(interface.name.clone()),
            address: Some(Address::Roce(at(ROCE_PORT))),
            state,
        }
    }

    fn text(&self) -> String {
        let name = self.interface.as_deref().unwrap_or("-");
        let place = self
            .address
            .as_ref()
            .map_or_else(|| "-".to_owned(), Address::to_string);
        let state = match &self.state {
            Ok(worth) => worth.clone(),
            Err(why) => format!("unusable: {why}"),
        };
        format!("{:<10} {name:<12} {place:<32} {state}", self.provider)
    }

    fn json(&self) -> Value {
        json!({
            "provider": self.provider,
            "interface": self.interface,
            "address": self.address.as_ref().map(Address::to_string),
            "usable": self.state.is_ok(),
            "text": self.state.as_ref().unwrap_or_else(|why| why),
        })
    }
}

fn ip_is_of_a_link(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// What keeps an address from being used, before anything is tried.
fn obstacle(status: &IfOperStatus) -> Option<String> {
    // All that is known on Linux is whether the interface runs.
    (*status != IfOperStatus::Up)
        .then(|| "it is down or has no link: ip link set NAME up, and look at the cable".into())
}

fn refusal(error: &VerbsError) -> String {
    match error {
        VerbsError::PermissionDenied => "UDP sockets are not permitted here".to_owned(),
        other => other.to_string(),
    }
}

/// How a page goes over an interface of this MTU.
fn worth(ip: IpAddr, mtu: Option<u32>) -> Result<String, String> {
    let scope = if ip.is_loopback() {
        "this machine only; "
    } else if ip_is_of_a_link(ip) {
        "machines of this link, each with the interface of its own behind %; "
    } else {
        ""
    };
    let Some(mtu) = mtu else {
        return Ok(format!("{scope}its MTU is not known"));
    };
    let path = largest_path_mtu(mtu, ip.is_ipv6()).ok_or_else(|| {
        format!("an MTU of {mtu} has no room for packets of 256 bytes; ip link set NAME mtu 1500")
    })?;
    let packets = (PAGE_SIZE as u32).div_ceil(path.bytes());
    let advice = if packets > 1 {
        format!("; an MTU of {MTU_OF_ONE_PACKET} makes it one")
    } else {
        String::new()
    };
    Ok(format!(
        "{scope}MTU {mtu}: packets of {}, {packets} for a page{advice}",
        path.bytes()
    ))
}

/// What to do where somebody has the port that a node listens at if none is named.
fn beside(mut place: SocketAddr, taken: &Taken) -> String {
    match taken.free_from(place.ip(), place.port()) {
        None | Some(ROCE_PORT) => String::new(),
        Some(port) => {
            place.set_port(port);
            format!(
                "; UDP port {ROCE_PORT} is in use, by a memory node, a program with an RDMA device or the kernel's \
                 rdma_rxe: another node listens at {}",
                Address::Roce(place)
            )
        }
    }
}

fn mtu_of(name: &str) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/sys/class/net/{name}/mtu")).ok()?;
    text.trim().parse().ok()
}

fn buffer_hint(setting: Option<&str>) -> Option<String> {
    let most: u64 = setting?.trim().parse().ok()?;
    (most < BUFFER_WANTED).then(|| {
        format!(
            "net.core.rmem_max is {most}: bursts may be dropped and sent again; sysctl -w \
             net.core.rmem_max={BUFFER_WANTED} net.core.wmem_max={BUFFER_WANTED}"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_says_how_a_page_goes_over_it() {
        let ip: IpAddr = "192.0.2.1".parse().unwrap();
        assert!(
            worth(ip, Some(1500))
                .unwrap()
                .contains("4 for a page; an MTU of")
        );
        let jumbo = worth(ip, Some(9000)).unwrap();
        assert!(jumbo.ends_with("packets of 4096, 1 for a page"), "{jumbo}");
        assert!(worth(ip, Some(200)).unwrap_err().contains("mtu 1500"));
        let loopback = worth("::1".parse().unwrap(), Some(65536)).unwrap();
        assert!(loopback.starts_with("this machine only"));
        let local = worth("fe80::1".parse().unwrap(), Some(1500)).unwrap();
        assert!(local.starts_with("machines of this link"));
    }

    #[test]
    fn what_is_in_the_way_is_said() {
        assert!(
            obstacle(&IfOperStatus::Unknown)
                .unwrap()
                .contains("ip link set")
        );
        assert_eq!(obstacle(&IfOperStatus::Up), None);
        assert!(buffer_hint(Some("212992\n")).is_some());
        assert_eq!(buffer_hint(Some("8388608")), None);
        assert_eq!(buffer_hint(None), None);
    }
}
