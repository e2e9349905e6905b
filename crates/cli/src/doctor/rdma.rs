//! RDMA devices, which nothing needs and verbs:// addresses use.

use super::check::Check;
use crate::net::rdma::is_usable;
use legato_providers::ibverbs::{DevicePort, DevicesError};

const NAME: &str = "RDMA";

pub(super) fn check(found: &Result<Vec<DevicePort>, DevicesError>) -> Check {
    let ports = match found {
        Ok(ports) => ports,
        Err(error) => return Check::ok(NAME, format!("{error}; other addresses need none")),
    };
    let name = |port: &DevicePort| match port.port {
        0 => port.device.clone(),
        number => format!("{}/{number}", port.device),
    };
    let named = |usable: bool| -> Vec<_> {
        let such = ports.iter().filter(|port| is_usable(port) == usable);
        such.map(name).collect()
    };
    let (usable, unusable) = (named(true), named(false));
    match (&usable[..], &unusable[..]) {
        ([], []) => Check::ok(NAME, "no devices; other addresses than verbs:// need none"),
        (usable, []) => Check::ok(NAME, usable.join(", ")),
        (usable, unusable) => Check::warning(
            NAME,
            match usable {
                [] => format!("{} cannot be used", unusable.join(", ")),
                usable => format!(
                    "{}; {} cannot be used",
                    usable.join(", "),
                    unusable.join(", ")
                ),
            },
            "legato net devices says what they lack",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::Verdict;
    use super::*;
    use legato_providers::ibverbs::{PortState, Unusable};

    fn port(device: &str, unusable: Option<Unusable>) -> DevicePort {
        DevicePort {
            device: device.to_owned(),
            port: 1,
            state: PortState::Active,
            is_ethernet: false,
            active_mtu: None,
            gids: Vec::new(),
            unusable,
        }
    }

    #[test]
    fn devices_are_wanted_by_nobody_and_warned_of_when_they_lack_something() {
        let none = check(&Ok(vec![]));
        assert_eq!(none.verdict, Verdict::Ok);
        let missing = check(&Err(DevicesError::List(38)));
        assert_eq!(missing.verdict, Verdict::Ok);
        let good = check(&Ok(vec![port("mlx5_0", None)]));
        assert_eq!((good.verdict, &*good.why), (Verdict::Ok, "mlx5_0/1"));
        let ports = vec![port("mlx5_0", None), port("rxe0", Some(Unusable::NoGid))];
        let mixed = check(&Ok(ports));
        assert_eq!(mixed.verdict, Verdict::Warning);
        assert_eq!(mixed.why, "mlx5_0/1; rxe0/1 cannot be used");
    }
}
