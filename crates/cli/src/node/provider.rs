//! The provider of an address, with what is wrong with a device in full: an error of verbs has no room for
//! names.

use legato_base::secret::Keyring;
use legato_providers::AnyProvider;
use legato_providers::ibverbs::{IbverbsProvider, OpenError};
use legato_verbs::{Address, ROCE_PORT};

/// What a user is told who cannot have the port of devices.
pub(crate) fn device_port_in_use() -> String {
    format!(
        "UDP port {ROCE_PORT} of this machine is in use, and RDMA devices answer to no other; one legato run \
         or one node at a time can have it; ss -ulpn 'sport = {ROCE_PORT}' shows who"
    )
}

/// The provider that can listen at an address.
pub(crate) fn listening_at(
    address: &Address,
    keys: Option<&Keyring>,
) -> Result<AnyProvider, OpenError> {
    match address {
        Address::Verbs(_) | Address::VerbsPort(_) => {
            IbverbsProvider::open(address).map(|it| AnyProvider::Ibverbs(Box::new(it)))
        }
        _ => Ok(AnyProvider::listening_at(address, keys)?),
    }
}

/// The provider that can connect to an address.
pub(crate) fn reaching(
    address: &Address,
    keys: Option<&Keyring>,
) -> Result<AnyProvider, OpenError> {
    match address {
        Address::Verbs(_) => {
            IbverbsProvider::open_towards(address).map(|it| AnyProvider::Ibverbs(Box::new(it)))
        }
        _ => Ok(AnyProvider::reaching(core::slice::from_ref(address), keys)?),
    }
}
